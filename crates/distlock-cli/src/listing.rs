//! Holders and waiters, as a table or as JSON: the same for `ls` and `show`.

use std::time::SystemTime;

use distlock::Kind;
use distlock::store::{Holder, Mode, Record, Waiter};
use serde::Serialize;

use crate::duration;
use crate::output::{self, Style};
use crate::table::Table;

/// A holder or a waiter. The names and the order of the fields are part of the command's contract.
#[derive(Debug, Serialize)]
pub(crate) struct ListEntry {
    kind: &'static str,
    name: Option<String>,
    key: Option<String>,
    mode: &'static str,
    holder: String,
    lock_id: String,
    token: Option<u64>,
    acquired_at: Option<String>,
    expires_in_ms: Option<u64>,
    weight: u32,
    capacity: u32,
    /// `held` or `waiting`, where waiters are shown too.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    #[serde(skip)]
    held_for: Option<std::time::Duration>,
}

impl ListEntry {
    fn held(record: &Record, holder: &Holder, now: SystemTime) -> Self {
        let acquired = holder.acquired_at.and_then(|at| jiff::Timestamp::try_from(at).ok());
        let expires_in_ms = holder.expires_in.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
        ListEntry {
            token: holder.token.map(|token| token.get()),
            acquired_at: acquired.map(|at| format!("{at:.3}")),
            expires_in_ms,
            // The store's clock may be ahead of ours.
            held_for: holder.acquired_at.map(|at| now.duration_since(at).unwrap_or_default()),
            ..ListEntry::of(record, holder.lock_id.label(), holder.lock_id.as_str(), holder.weight)
        }
    }

    fn waiting(record: &Record, waiter: &Waiter) -> Self {
        ListEntry {
            state: Some("waiting"),
            ..ListEntry::of(record, waiter.lock_id.label(), waiter.lock_id.as_str(), waiter.weight)
        }
    }

    fn of(record: &Record, holder: &str, lock_id: &str, weight: u32) -> Self {
        ListEntry {
            kind: record.kind.as_str(),
            name: record.name.clone(),
            key: record.key.clone(),
            mode: Mode::of(record.kind, weight).as_str(),
            holder: holder.to_owned(),
            lock_id: lock_id.to_owned(),
            token: None,
            acquired_at: None,
            expires_in_ms: None,
            weight,
            capacity: record.capacity,
            state: None,
            held_for: None,
        }
    }

    fn permits(&self) -> String {
        match (Kind::parse(self.kind), self.mode) {
            (Some(Kind::Semaphore), _) => format!("{}/{}", self.weight, self.capacity),
            (Some(Kind::RwLock), "exclusive") => "write".to_owned(),
            (Some(Kind::RwLock), _) => "read".to_owned(),
            _ => "-".to_owned(),
        }
    }

    fn cells(&self) -> Vec<String> {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let name = self.name.clone().or_else(|| self.key.as_ref().map(|key| format!("(key {key})")));
        vec![
            self.kind.to_owned(),
            or_dash(name),
            self.holder.clone(),
            or_dash(self.token.map(|token| token.to_string())),
            match self.state {
                Some("waiting") => "waiting".to_owned(),
                _ => or_dash(self.held_for.map(duration::show)),
            },
            or_dash(self.expires_in_ms.map(|ms| duration::show(std::time::Duration::from_millis(ms)))),
            self.permits(),
        ]
    }
}

/// All holders.
pub(crate) fn holders(records: &[Record]) -> Vec<ListEntry> {
    let now = SystemTime::now();
    let of = |record: &Record| -> Vec<ListEntry> {
        record.holders.iter().map(|holder| ListEntry::held(record, holder, now)).collect()
    };
    records.iter().flat_map(of).collect()
}

/// All holders, each lock's followed by its waiters in order.
pub(crate) fn holders_and_waiters(records: &[Record]) -> Vec<ListEntry> {
    let now = SystemTime::now();
    let mut entries = Vec::new();
    for record in records {
        let held = record.holders.iter().map(|holder| ListEntry::held(record, holder, now));
        entries.extend(held.map(|entry| ListEntry { state: Some("held"), ..entry }));
        entries.extend(record.waiters.iter().map(|waiter| ListEntry::waiting(record, waiter)));
    }
    entries
}

/// The table for people.
pub(crate) fn table(entries: &[ListEntry]) -> String {
    let mut table = Table::new(&["KIND", "NAME", "HOLDER", "TOKEN", "HELD FOR", "EXPIRES IN", "PERMITS"]);
    for entry in entries {
        table.push(entry.cells());
    }
    let colours = output::colours();
    table.render(|header| output::styled(header, Style::Bold, colours))
}
