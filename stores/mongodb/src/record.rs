//! The documents, read back.

use std::time::{Duration, SystemTime};

use distlock_core::store::Holder;
use distlock_core::{FencingToken, LockId, Result};
use mongodb::bson::{Bson, Document};

use crate::failure::{self, number};
use crate::message::{Next, introduced};
use crate::pipelines::LAST_TOKEN;

/// The document of a mutex.
#[derive(Clone, Debug)]
pub(crate) struct LockRecord {
    /// Empty in what is left of a released name.
    pub(crate) lock_id: LockId,
    pub(crate) acquired_at: Option<i64>,
    pub(crate) expires_at: Option<i64>,
    pub(crate) token: i64,
}

const FORMAT: [&str; 5] = ["_id", "lockId", "acquiredAt", "expiresAt", "fencingToken"];

impl LockRecord {
    /// Reads a document; an error if it is something else, which is what the step `lock_acquire` leaves alone: were it
    /// taken for a lock here, it would seem to be held for ever.
    pub(crate) fn read(document: &Document, collection: &str) -> Result<Self> {
        let alien = || failure::alien(collection);
        if document.keys().any(|key| !FORMAT.contains(&key.as_str())) {
            return Err(alien());
        }
        let lock_id = document.get_str("lockId").map_err(|_| alien())?;
        let token = document.get("fencingToken").and_then(number).ok_or_else(alien)?;
        if !matches!(document.get("expiresAt"), None | Some(Bson::DateTime(_) | Bson::Null)) {
            return Err(alien());
        }
        Ok(LockRecord {
            lock_id: LockId::from_stored(lock_id),
            acquired_at: moment(document, "acquiredAt"),
            expires_at: moment(document, "expiresAt"),
            token,
        })
    }

    /// Reads a document that is to be granted: its token must be one that can be counted on.
    pub(crate) fn read_countable(document: &Document, collection: &str) -> Result<Self> {
        let record = LockRecord::read(document, collection)?;
        countable(document, "fencingToken", collection)?;
        Ok(record)
    }

    /// The time left, by the server's clock.
    pub(crate) fn left(&self, now: i64) -> Option<Duration> {
        self.expires_at.and_then(|until| above_zero(until - now))
    }

    pub(crate) fn holder(&self, now: i64) -> Option<Holder> {
        let left = self.left(now)?;
        Some(
            Holder::new(self.lock_id.clone(), 1)
                .with_token(token(self.token))
                .with_acquired_at(self.acquired_at.and_then(system_time))
                .with_expires_in(left),
        )
    }
}

/// One entry in the line of a mutex.
#[derive(Clone, Debug)]
pub(crate) struct LineEntry {
    pub(crate) lock_id: LockId,
    pub(crate) decided_at: i64,
    pub(crate) expires_at: i64,
    pub(crate) next: Option<Next>,
}

/// The document beside a mutex: who waits for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct LineRecord {
    pub(crate) queue: Vec<LineEntry>,
    /// Who was about to release, with nobody in the line, and when.
    pub(crate) closing: Option<(LockId, i64)>,
}

impl LineRecord {
    pub(crate) fn read(document: &Document) -> Self {
        let queue = entries(document, "queue").filter_map(|entry| {
            Some(LineEntry {
                lock_id: LockId::from_stored(entry.get_str("lockId").ok()?),
                decided_at: moment(entry, "decidedAt")?,
                expires_at: moment(entry, "expiresAt")?,
                next: entry.get_str("introduction").ok().and_then(introduced),
            })
        });
        let closing = document.get_document("closing").ok().and_then(|closing| {
            Some((LockId::from_stored(closing.get_str("lockId").ok()?), moment(closing, "at")?))
        });
        LineRecord { queue: queue.collect(), closing }
    }

    pub(crate) fn place(&self, lock_id: &LockId) -> Option<usize> {
        self.queue.iter().position(|entry| entry.lock_id == *lock_id)
    }
}

/// One who holds a part of a pool.
#[derive(Clone, Debug)]
pub(crate) struct PoolHolder {
    pub(crate) lock_id: LockId,
    pub(crate) weight: u32,
    pub(crate) token: i64,
    pub(crate) acquired_at: Option<i64>,
    pub(crate) expires_at: i64,
}

/// One who waits for a part of a pool.
#[derive(Clone, Debug)]
pub(crate) struct PoolWaiter {
    pub(crate) lock_id: LockId,
    pub(crate) weight: u32,
    pub(crate) decided_at: i64,
    pub(crate) expires_at: i64,
}

/// The document of a pool.
#[derive(Clone, Debug)]
pub(crate) struct PoolRecord {
    pub(crate) capacity: u32,
    pub(crate) holders: Vec<PoolHolder>,
    pub(crate) queue: Vec<PoolWaiter>,
    /// The messages of the last step.
    pub(crate) wake: String,
    /// Whose release the last step was, and its address.
    pub(crate) answer: Option<(LockId, String)>,
}

impl PoolRecord {
    pub(crate) fn read(document: &Document) -> Result<Self> {
        let odd = || failure::unreadable(document.get_str("_id").unwrap_or_default());
        let holders = entries(document, "holders").map(|entry| {
            Some(PoolHolder {
                lock_id: LockId::from_stored(entry.get_str("lockId").ok()?),
                weight: small(entry, "weight")?,
                token: entry.get("token").and_then(number)?,
                acquired_at: moment(entry, "acquiredAt"),
                expires_at: moment(entry, "expiresAt")?,
            })
        });
        let queue = entries(document, "queue").map(|entry| {
            Some(PoolWaiter {
                lock_id: LockId::from_stored(entry.get_str("lockId").ok()?),
                weight: small(entry, "weight")?,
                decided_at: moment(entry, "decidedAt")?,
                expires_at: moment(entry, "expiresAt")?,
            })
        });
        let answer = document.get_document("answer").ok().and_then(|answer| {
            Some((
                LockId::from_stored(answer.get_str("lockId").ok()?),
                answer.get_str("call").ok()?.to_owned(),
            ))
        });
        Ok(PoolRecord {
            capacity: small(document, "capacity").ok_or_else(odd)?,
            holders: holders.collect::<Option<_>>().ok_or_else(odd)?,
            queue: queue.collect::<Option<_>>().ok_or_else(odd)?,
            wake: document.get_str("wake").unwrap_or_default().to_owned(),
            answer,
        })
    }

    pub(crate) fn is_in_use(&self) -> bool {
        !(self.holders.is_empty() && self.queue.is_empty())
    }
}

impl PoolHolder {
    pub(crate) fn show(&self, now: i64) -> Option<Holder> {
        Some(
            Holder::new(self.lock_id.clone(), self.weight)
                .with_token(token(self.token))
                .with_acquired_at(self.acquired_at.and_then(system_time))
                .with_expires_in(above_zero(self.expires_at - now)?),
        )
    }
}

fn entries<'a>(document: &'a Document, key: &str) -> impl Iterator<Item = &'a Document> {
    document.get_array(key).into_iter().flatten().filter_map(Bson::as_document)
}

fn moment(document: &Document, key: &str) -> Option<i64> {
    document.get_datetime(key).ok().map(|moment| moment.timestamp_millis())
}

fn small(document: &Document, key: &str) -> Option<u32> {
    document.get(key).and_then(number).and_then(|n| u32::try_from(n).ok())
}

/// An error that names the document if its token cannot be counted on from.
pub(crate) fn countable(document: &Document, field: &str, collection: &str) -> Result<()> {
    let token = document.get(field);
    if is_countable(token) {
        return Ok(());
    }
    let id = document.get_str("_id").unwrap_or_default();
    Err(failure::uncountable(collection, id, token.unwrap_or(&Bson::Null)))
}

/// Whether a token can be counted on from; see [`LAST_TOKEN`].
pub(crate) fn is_countable(token: Option<&Bson>) -> bool {
    match token {
        // Beyond the whole numbers it is read as the last one, in either direction, and not a number as zero.
        Some(Bson::Double(n)) if n.is_nan() || *n < i64::MIN as f64 => false,
        token => token.and_then(number).is_some_and(|token| token <= LAST_TOKEN),
    }
}

/// A token as the API has it. Other programs may have written a negative one; that is below all of ours.
pub(crate) fn token(number: i64) -> FencingToken {
    FencingToken::new(u64::try_from(number).unwrap_or_default())
}

/// A time that is left.
pub(crate) fn above_zero(ms: i64) -> Option<Duration> {
    u64::try_from(ms).ok().filter(|ms| *ms > 0).map(Duration::from_millis)
}

fn system_time(ms: i64) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(u64::try_from(ms).ok()?))
}

/// When to ask again where nobody can be woken: what was taken a moment ago is likely to be back in a moment, and what has
/// been held for long is likely to stay. A quarter of the time it was held, so that a wait is hardly longer than it had to be
/// and costs a few dozen requests, however long it is.
pub(crate) fn ask_again(held_since: i64, now: i64) -> Duration {
    const SOONEST: Duration = Duration::from_millis(10);
    let quarter = above_zero((now - held_since) / 4).unwrap_or_default();
    quarter.max(SOONEST).mul_f64(0.75 + 0.5 * fastrand::f64())
}

/// A duration in whole milliseconds, rounded up: a lease is never shorter than it was asked for.
pub(crate) fn in_ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX / 4)
}
