//! The statements of each verb, and what their rows mean.

use std::time::Duration;

use distlock_core::store::support::errors;
use distlock_core::store::{Attempt, Claim, Released, Renewal};
use distlock_core::{FencingToken, RecordKind, Result};
use mysql_async::Row;

use crate::batch::{Item, Key, micros};
use crate::identifier::Tables;
use crate::rows::{optional, required, time_left};

/// The statements of one verb about one record.
#[derive(Debug)]
pub(super) struct Verb {
    pub(super) statements: String,
    /// The table whose rows it locks.
    pub(super) record: RecordKind,
    /// The engine sends it again soon after a failure: a renewal.
    pub(super) is_repeated: bool,
    /// One row answers all items: see [`counted`](super::counted).
    pub(super) is_counted: bool,
}

/// What the reply to a statement says about an item.
#[derive(Debug)]
pub(super) enum Found {
    /// Its row.
    Row(Row),
    /// It was counted.
    Counted,
}

impl Found {
    fn row(&self) -> Option<&Row> {
        match self {
            Found::Row(row) => Some(row),
            Found::Counted => None,
        }
    }
}

#[derive(Debug)]
pub(super) struct Verbs {
    acquire_lock: Verb,
    acquire_lock_queued: Verb,
    acquire_pool: Verb,
    poll: [String; 2],
    keep_entry: String,
    renew: [Verb; 2],
    release: [Verb; 2],
    break_lock: [String; 2],
}

/// How long a mutex that became free is reserved for the first waiter, if there is one. A waiter that died costs this much.
const RESERVED: Duration = Duration::from_millis(50);

/// The bounds of the pause between two questions of the first waiter, and its part of the time that the holder has held.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(400);
const PART_OF_HOLD: u32 = 16;

/// How long a waiter sleeps that has so many waiters before it. What was held for long is asked for less often, and what is
/// handed from client to client more often; later waiters ask less often than the first.
fn pause(held_for: Duration, place: u32) -> Duration {
    let first = (held_for / PART_OF_HOLD).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
    first.saturating_mul(place.saturating_add(1)).mul_f64(0.8 + 0.4 * fastrand::f64())
}

fn statement(tables: &Tables, text: &str) -> String {
    tables.statement(text).replace("{reserved}", &micros(RESERVED).to_string())
}

/// An index for arrays of both records.
fn index(record: RecordKind) -> usize {
    match record {
        RecordKind::Lock => 0,
        RecordKind::Pool => 1,
    }
}

impl Verbs {
    pub(super) fn new(tables: &Tables) -> Self {
        let verb = |record, text: &str| Verb {
            statements: statement(tables, text),
            record,
            is_repeated: false,
            is_counted: false,
        };
        let renewal = |verb: Verb| Verb { is_repeated: true, is_counted: true, ..verb };
        let lock = |text: &str| verb(RecordKind::Lock, text);
        let pool = |text: &str| verb(RecordKind::Pool, text);
        Verbs {
            acquire_lock: lock(include_str!("../sql/lock_acquire.sql")),
            acquire_lock_queued: lock(include_str!("../sql/lock_acquire_queued.sql")),
            acquire_pool: pool(include_str!("../sql/pool_acquire.sql")),
            poll: [include_str!("../sql/lock_poll.sql"), include_str!("../sql/pool_poll.sql")]
                .map(|text| statement(tables, text)),
            keep_entry: statement(tables, include_str!("../sql/entry_keep.sql")),
            renew: [lock(include_str!("../sql/lock_renew.sql")), pool(include_str!("../sql/pool_renew.sql"))]
                .map(renewal),
            release: [
                lock(include_str!("../sql/lock_release.sql")),
                pool(include_str!("../sql/pool_release.sql")),
            ],
            break_lock: [include_str!("../sql/lock_break.sql"), include_str!("../sql/pool_break.sql")]
                .map(|text| tables.statement(text)),
        }
    }

    /// A waiter's first attempt leaves no entry in the wait queue of a mutex: most mutexes are free then, and the next
    /// attempt follows soon. A pool is first come, first served, so there the first attempt counts.
    pub(super) fn acquire(&self, record: RecordKind, claims: &[&Claim]) -> &Verb {
        let is_queued = |claim: &&Claim| {
            claim.no_overtaking || claim.waiting.as_ref().is_some_and(|waiting| waiting.attempt > 1)
        };
        match record {
            RecordKind::Pool => &self.acquire_pool,
            RecordKind::Lock if claims.iter().any(is_queued) => &self.acquire_lock_queued,
            RecordKind::Lock => &self.acquire_lock,
        }
    }

    /// A plain read that answers waiters which ask again.
    pub(super) fn poll(&self, record: RecordKind) -> &str {
        &self.poll[index(record)]
    }

    /// Keeps the entries of waiters.
    pub(super) fn keep_entry(&self) -> &str {
        &self.keep_entry
    }

    pub(super) fn renew(&self, record: RecordKind) -> &Verb {
        &self.renew[index(record)]
    }

    pub(super) fn release(&self, record: RecordKind) -> &Verb {
        &self.release[index(record)]
    }

    pub(super) fn break_lock(&self, record: RecordKind, key: &Key) -> String {
        self.break_lock[index(record)].replace("{key}", &key.literal())
    }
}

/// The answer to a claim that was found. Without a row there is none: the statements answer every claim.
pub(super) fn attempt(item: &Item<'_>, capacity: u32, found: Option<&Found>) -> Result<Attempt> {
    let row = found.and_then(Found::row).ok_or_else(errors::too_few_answers)?;
    attempt_of(item, capacity, row)
}

/// The answer of a row.
pub(super) fn attempt_of(item: &Item<'_>, capacity: u32, row: &Row) -> Result<Attempt> {
    if item.is_pool() {
        let theirs: u32 = required(row, "capacity")?;
        if theirs != capacity && !item.resizes {
            return Err(errors::capacity_mismatch(item.resource, theirs, capacity));
        }
    }
    if optional::<i64>(row, "granted")? == Some(1) {
        return Ok(Attempt::granted(FencingToken::new(required(row, "token")?)));
    }
    let held_for = optional(row, "held_for")?.map(time_left).unwrap_or_default();
    let place = optional(row, "place")?.unwrap_or_default();
    Ok(Attempt::busy(optional(row, "remaining")?.map(time_left)).with_poll_after(pause(held_for, place)))
}

/// The answer to a renewal. What was not counted does not exist, expired, or is another client's.
pub(super) fn renewal(found: Option<&Found>) -> Result<Renewal> {
    Ok(if matches!(found, Some(Found::Counted)) { Renewal::Renewed } else { Renewal::NotYours })
}

/// The answer to a release. Without a row the record does not exist. Nothing is woken: waiters ask again.
pub(super) fn released(found: Option<&Found>) -> Result<Released> {
    let ours = match found.and_then(Found::row) {
        Some(row) => optional::<i64>(row, "ours")?,
        None => None,
    };
    Ok(if ours == Some(1) { Released::Done { woke: false } } else { Released::NotYours })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiters_ask_less_often_for_what_was_held_for_long_and_the_later_they_came() {
        let ms = Duration::from_millis;
        for (held_for, place, expected) in [
            (ms(0), 0, ms(10)),
            (ms(0), 3, ms(40)),
            (ms(1600), 0, ms(100)),
            (ms(1600), 1, ms(200)),
            (Duration::MAX, 0, ms(400)),
        ] {
            let pause = pause(held_for, place);
            assert!((expected.mul_f64(0.79)..=expected.mul_f64(1.21)).contains(&pause), "{pause:?}");
        }
        assert!(pause(ms(0), u32::MAX) > ms(1000));
    }
}
