//! The reply to a command with many updates.

use std::collections::HashMap;

use distlock_core::{Error, Result};
use mongodb::bson::{Bson, Document, Timestamp};

use crate::error;

/// The result of a command with many updates.
#[derive(Clone, Debug, Default)]
pub(crate) struct UpdateOutcome {
    /// The updates that failed, by their index in the command.
    pub(crate) failed: HashMap<usize, WriteError>,
    /// How many documents matched, those created included.
    pub(crate) matched: i64,
    /// How many of the matched documents changed.
    pub(crate) modified: i64,
    /// The time of the last write, for a read that must see it.
    pub(crate) time: Option<Timestamp>,
}

/// Why one update of many failed.
#[derive(Clone, Debug)]
pub(crate) struct WriteError {
    pub(crate) code: i32,
    message: String,
}

impl WriteError {
    pub(crate) fn to_error(&self) -> Error {
        error::from_code(self.code, "write error", &self.message)
    }
}

impl UpdateOutcome {
    /// What a reply says.
    pub(crate) fn of(reply: &Document) -> Result<Self> {
        let mut outcome = UpdateOutcome {
            matched: reply.get("n").and_then(error::number).unwrap_or_default(),
            modified: reply.get("nModified").and_then(error::number).unwrap_or_default(),
            time: reply.get_timestamp("operationTime").ok(),
            ..UpdateOutcome::default()
        };
        let errors = reply.get_array("writeErrors").into_iter().flatten().filter_map(Bson::as_document);
        for item in errors {
            let index =
                item.get("index").and_then(error::number).and_then(|index| usize::try_from(index).ok());
            let index = index.ok_or_else(|| error::unexpected_reply("a write error without its index"))?;
            let code = item.get("code").and_then(error::number).and_then(|code| i32::try_from(code).ok());
            let message = item.get_str("errmsg").unwrap_or_default().to_owned();
            outcome.failed.insert(index, WriteError { code: code.unwrap_or_default(), message });
        }
        Ok(outcome)
    }
}
