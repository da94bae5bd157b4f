//! What is held, as a table for people and as JSON for programs: the same for `ls` and `show`.

use std::time::SystemTime;

use distlock::Kind;
use distlock::store::{Holder, Mode, Record, Waiter};
use serde::Serialize;

use crate::duration;
use crate::output::{self, Paint};
use crate::table::Table;

/// One who holds or waits. The names and the order of the fields are part of the contract.
#[derive(Debug, Serialize)]
pub(crate) struct Entry {
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
    /// Only where waiters are shown too: `held` or `waiting`.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    #[serde(skip)]
    held_for: Option<std::time::Duration>,
}

impl Entry {
    fn held(record: &Record, holder: &Holder, now: SystemTime) -> Self {
        let acquired = holder.acquired_at.and_then(|at| jiff::Timestamp::try_from(at).ok());
        let expires_in_ms = holder.expires_in.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
        Entry {
            token: holder.token.map(|token| token.get()),
            acquired_at: acquired.map(|at| format!("{at:.3}")),
            expires_in_ms,
            // The store's clock may be ahead of ours; then it was granted just now.
            held_for: holder.acquired_at.map(|at| now.duration_since(at).unwrap_or_default()),
            ..Entry::of(record, holder.lock_id.label(), holder.lock_id.as_str(), holder.weight)
        }
    }

    fn waiting(record: &Record, waiter: &Waiter) -> Self {
        Entry {
            state: Some("waiting"),
            ..Entry::of(record, waiter.lock_id.label(), waiter.lock_id.as_str(), waiter.weight)
        }
    }

    fn of(record: &Record, holder: &str, lock_id: &str, weight: u32) -> Self {
        Entry {
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

/// Everybody who holds.
pub(crate) fn holders(records: &[Record]) -> Vec<Entry> {
    let now = SystemTime::now();
    let of = |record: &Record| -> Vec<Entry> {
        record.holders.iter().map(|holder| Entry::held(record, holder, now)).collect()
    };
    records.iter().flat_map(of).collect()
}

/// Everybody who holds and, behind them in their order, everybody who waits.
pub(crate) fn holders_and_waiters(records: &[Record]) -> Vec<Entry> {
    let now = SystemTime::now();
    let mut entries = Vec::new();
    for record in records {
        let held = record.holders.iter().map(|holder| Entry::held(record, holder, now));
        entries.extend(held.map(|entry| Entry { state: Some("held"), ..entry }));
        entries.extend(record.waiters.iter().map(|waiter| Entry::waiting(record, waiter)));
    }
    entries
}

/// The table that people see.
pub(crate) fn table(entries: &[Entry]) -> String {
    let mut table = Table::new(&["KIND", "NAME", "HOLDER", "TOKEN", "HELD FOR", "EXPIRES IN", "PERMITS"]);
    for entry in entries {
        table.push(entry.cells());
    }
    let colours = output::colours();
    table.render(|header| output::painted(header, Paint::Bold, colours))
}
