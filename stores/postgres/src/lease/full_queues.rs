//! Mutexes with a full wait queue. Each claim writes the wait queue of its mutex, under the lock of its row, so a queue of a thousand
//! waiters costs a hundred times one of ten, for every release as well. So a queue has a limit. A waiter for which it has no room
//! asks again by a plain read, which locks and writes nothing, until there is room. It has no entry, so no release grants it the
//! lock; it may wait longer than those that came after it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use distlock_core::store::{Attempt, Claim};
use distlock_core::{RecordKind, Result};
use tokio_postgres::types::{ToSql, Type};

use super::store::StoreState;
use crate::keys::Key;
use crate::statement::{Request, Slot, Statement};
use crate::tables::Tables;
use crate::values::item_position;

/// How many waiters a queue has at most. A longer one is compressed by the server, and longer ones yet are stored in a second table.
pub(super) const MOST_WAITERS: usize = 64;
/// A waiter without an entry claims one if the queue is shorter than a random number from this to [`MOST_WAITERS`]. Several may read
/// at one moment that there is room, and each claim that then finds none is a write in vain; so the last places are found by few.
const ROOM_BELOW: usize = 48;
/// How long a waiter without an entry pauses until it asks again.
pub(super) const ASK_AGAIN: Duration = Duration::from_secs(1);
/// How long a full queue is remembered after the last answer that found it full, also by a process that got the lock meanwhile: its next
/// claim would find no room and write in vain. A thousand processes that take turns come back after five seconds.
const REMEMBERED_FOR: Duration = Duration::from_secs(10);
/// For how long after a queue was full there may be as many processes.
const CROWDED_FOR: Duration = Duration::from_secs(60);
/// How many are remembered at most.
const MAX_REMEMBERED: usize = 10_000;

static KEYS_AND_IDS: [Type; 3] = [Type::TEXT_ARRAY, Type::TEXT_ARRAY, Type::INT8_ARRAY];

/// The mutexes whose wait queues were full a moment ago.
#[derive(Debug)]
pub(super) struct FullQueues {
    statement: Statement,
    /// By key: when that was seen last.
    seen: Mutex<HashMap<String, Instant>>,
    /// When any queue was last seen to be full.
    last: Mutex<Option<Instant>>,
}

impl FullQueues {
    pub(super) fn new(tables: &Tables) -> Self {
        let text = include_str!("../sql/lock_queue_full.sql");
        let statement = Statement::new(Slot::LockQueueFull, text, tables, &KEYS_AND_IDS);
        FullQueues { statement, seen: Mutex::default(), last: Mutex::default() }
    }

    fn seen(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a claim has found no room.
    pub(super) fn note(&self, key: &str) {
        let mut seen = self.seen();
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        if seen.len() >= MAX_REMEMBERED {
            seen.retain(|_, at| at.elapsed() < REMEMBERED_FOR);
        }
        if seen.len() < MAX_REMEMBERED {
            seen.insert(key.to_owned(), Instant::now());
        }
    }

    /// Whether many processes may be waiting now: a queue was full lately.
    pub(super) fn is_crowded(&self) -> bool {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_some_and(|at| at.elapsed() < CROWDED_FOR)
    }

    /// The claims for mutexes whose queues were full a moment ago: their positions and keys.
    fn candidates(&self, claims: &[&Claim], utf8: bool) -> Vec<(usize, String)> {
        let seen = self.seen();
        if seen.is_empty() {
            return Vec::new();
        }
        let mutexes =
            claims.iter().enumerate().filter(|(_, claim)| claim.resource.kind().record() == RecordKind::Lock);
        let keyed = mutexes.map(|(at, claim)| (at, Key::new(&claim.resource, utf8).key));
        keyed.filter(|(_, key)| seen.get(key).is_some_and(|at| at.elapsed() < REMEMBERED_FOR)).collect()
    }
}

/// The answer to a claim for whose waiter the queue has no room. It does not say when the lease ends: the waiters of the queue ask at
/// that moment.
pub(super) fn no_room() -> Attempt {
    Attempt::busy(None).with_poll_after(ASK_AGAIN)
}

/// How short the queue must be for the claim. One that asks for the first time leaves the last places to those that ask again: a
/// process that has just released would take them from those that sleep.
fn room_below(claim: &Claim) -> i64 {
    let is_first = claim.waiting.as_ref().is_some_and(|waiting| waiting.attempt <= 1);
    let most = if is_first { ROOM_BELOW } else { fastrand::usize(ROOM_BELOW..=MOST_WAITERS) };
    i64::try_from(most).unwrap_or(i64::MAX)
}

/// Answers the claims for which the wait queues, as far as they are known to be full, have still no room. By position.
///
/// # Cancel safety
/// Dropping the future changes nothing.
pub(super) async fn answer(state: &StoreState, claims: &[&Claim]) -> Result<HashMap<usize, Attempt>> {
    let candidates = state.full_queues.candidates(claims, state.server.utf8);
    if candidates.is_empty() {
        return Ok(HashMap::new());
    }
    let keys: Vec<&str> = candidates.iter().map(|(_, key)| key.as_str()).collect();
    let ids: Vec<&str> = candidates.iter().map(|(at, _)| claims[*at].lock_id.as_str()).collect();
    let most: Vec<i64> = candidates.iter().map(|(at, _)| room_below(claims[*at])).collect();
    let parameters: [&(dyn ToSql + Sync); 3] = [&keys, &ids, &most];
    let rows = state.shared.query(&Request::new(&state.full_queues.statement, &parameters)).await?;
    let mut answers = HashMap::new();
    for row in &rows {
        if let Some((at, key)) = item_position(row, candidates.len())?.and_then(|place| candidates.get(place))
        {
            answers.insert(*at, no_room());
            state.full_queues.note(key);
        }
    }
    Ok(answers)
}
