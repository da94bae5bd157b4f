//! Values of a reply. A reply that our statements cannot produce is an error, never a panic.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use distlock_core::store::Holder;
use distlock_core::store::support::errors;
use distlock_core::{FencingToken, LockId, Result};
use mysql_async::prelude::FromValue;
use mysql_async::{Row, Value};

fn value<'r>(row: &'r Row, column: &str) -> Option<&'r Value> {
    let at = row
        .columns_ref()
        .iter()
        .position(|other| other.name_ref().eq_ignore_ascii_case(column.as_bytes()))?;
    row.as_ref(at)
}

/// A column; `None` for NULL.
pub(crate) fn optional<T: FromValue>(row: &Row, column: &str) -> Result<Option<T>> {
    match value(row, column) {
        None => Err(errors::unexpected_reply(format!("without the column {column}"))),
        Some(Value::NULL) => Ok(None),
        Some(value) => match T::from_value_opt(value.clone()) {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(errors::unexpected_reply(format!("with the column {column} of another type"))),
        },
    }
}

/// A column that is not NULL.
pub(crate) fn required<T: FromValue>(row: &Row, column: &str) -> Result<T> {
    optional(row, column)?.ok_or_else(|| errors::unexpected_reply(format!("without a value of {column}")))
}

/// A column of ours that is text.
pub(crate) fn text(row: &Row, column: &str) -> Result<String> {
    let bytes: Vec<u8> = required(row, column)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Microseconds that are left.
pub(crate) fn time_left(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or_default())
}

/// A holder from the columns `id`, `weight`, `token`, `since` and `remaining`.
pub(crate) fn holder(row: &Row) -> Result<Holder> {
    let since = time_left(required(row, "since")?);
    Ok(Holder::new(LockId::from_stored(text(row, "id")?), required(row, "weight")?)
        .with_token(FencingToken::new(required(row, "token")?))
        .with_acquired_at(moment(since))
        .with_expires_in(time_left(required(row, "remaining")?)))
}

pub(crate) fn moment(since_1970: Duration) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(since_1970)
}
