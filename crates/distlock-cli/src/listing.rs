//! Holders and waiters, as a table or as JSON: the same for `ls` and `show`.

use std::time::SystemTime;

use distlock::store::{Holder, Mode, Record, Waiter};
use distlock::{Kind, LockId};
use serde::Serialize;

use crate::duration;
use crate::identity::Identity;
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
    /// How many wait for the lock; unknown where the store does not show waiters.
    waiting: Option<usize>,
    user: Option<String>,
    command: Option<String>,
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
            ..ListEntry::of(record, &holder.lock_id, holder.weight)
        }
    }

    fn waiting(record: &Record, waiter: &Waiter) -> Self {
        ListEntry { state: Some("waiting"), ..ListEntry::of(record, &waiter.lock_id, waiter.weight) }
    }

    fn of(record: &Record, lock_id: &LockId, weight: u32) -> Self {
        let identity = Identity::of(lock_id);
        ListEntry {
            kind: record.kind.as_str(),
            name: record.name.clone(),
            key: record.key.clone(),
            mode: Mode::of(record.kind, weight).as_str(),
            holder: lock_id.label().to_owned(),
            lock_id: lock_id.as_str().to_owned(),
            token: None,
            acquired_at: None,
            expires_in_ms: None,
            weight,
            capacity: record.capacity,
            waiting: None,
            user: identity.as_ref().map(|identity| identity.user.clone()),
            command: identity.map(|identity| identity.command),
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

    /// What `is_same` compares: everything but the times.
    fn identity(&self) -> impl PartialEq + '_ {
        let lock = (self.kind, &self.name, &self.key, self.capacity);
        (lock, &self.lock_id, self.token, self.weight, self.waiting)
    }
}

/// All holders. `shows_waiters`: whether the store knows how many wait.
pub(crate) fn holders(records: &[Record], shows_waiters: bool) -> Vec<ListEntry> {
    let now = SystemTime::now();
    let mut entries = Vec::new();
    for record in records {
        let waiting = shows_waiters.then_some(record.waiters.len());
        let held = record.holders.iter().map(|holder| ListEntry::held(record, holder, now));
        entries.extend(held.map(|entry| ListEntry { waiting, ..entry }));
    }
    entries
}

/// All holders, each lock's followed by its waiters in order.
pub(crate) fn holders_and_waiters(records: &[Record], shows_waiters: bool) -> Vec<ListEntry> {
    let now = SystemTime::now();
    let mut entries = Vec::new();
    for record in records {
        let waiting = shows_waiters.then_some(record.waiters.len());
        let held = record.holders.iter().map(|holder| ListEntry::held(record, holder, now));
        entries.extend(held.map(|entry| ListEntry { waiting, state: Some("held"), ..entry }));
        let waiters = record.waiters.iter().map(|waiter| ListEntry::waiting(record, waiter));
        entries.extend(waiters.map(|entry| ListEntry { waiting, ..entry }));
    }
    entries
}

/// Whether two lists show the same holders and numbers of waiters.
pub(crate) fn is_same(one: &[ListEntry], other: &[ListEntry]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(a, b)| a.identity() == b.identity())
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

const COLUMNS: [&str; 7] = ["KIND", "NAME", "HOLDER", "TOKEN", "HELD FOR", "EXPIRES IN", "PERMITS"];

/// The table of `ls`, for people: with the number of waiters.
pub(crate) fn table(entries: &[ListEntry]) -> String {
    styled(&with_waiters(entries))
}

/// The same without colours.
pub(crate) fn plain_table(entries: &[ListEntry]) -> String {
    with_waiters(entries).render(str::to_owned)
}

fn with_waiters(entries: &[ListEntry]) -> Table {
    filled(&["WAITING"], entries, |entry| vec![or_dash(entry.waiting.map(|count| count.to_string()))])
}

/// The table of `show`, for people: with the user and the command.
pub(crate) fn table_with_commands(entries: &[ListEntry]) -> String {
    styled(&filled(&["USER", "COMMAND"], entries, |entry| {
        vec![or_dash(entry.user.clone()), or_dash(entry.command.clone())]
    }))
}

fn filled(more: &[&'static str], entries: &[ListEntry], cells: impl Fn(&ListEntry) -> Vec<String>) -> Table {
    let mut table = Table::new(&[&COLUMNS, more].concat());
    for entry in entries {
        table.push([entry.cells(), cells(entry)].concat());
    }
    table
}

fn styled(table: &Table) -> String {
    let colours = output::colours();
    table.render(|header| output::styled(header, Style::Bold, colours))
}
