//! The documents as Rust types.

use std::time::{Duration, SystemTime};

use distlock_core::store::Holder;
use distlock_core::{FencingToken, LockId, Result};
use mongodb::bson::{Bson, Document};

use crate::error::{self, number};
use crate::pipelines::LAST_TOKEN;

/// The document of a mutex.
#[derive(Clone, Debug)]
pub(crate) struct LockDocument {
    /// Empty in a tombstone.
    pub(crate) lock_id: LockId,
    pub(crate) acquired_at: Option<i64>,
    pub(crate) expires_at: Option<i64>,
    pub(crate) token: i64,
}

const LOCK_FIELDS: [&str; 5] = ["_id", "lockId", "acquiredAt", "expiresAt", "fencingToken"];

impl LockDocument {
    /// Reads a document. A document in another format is an error, as the pipeline `lock_acquire` leaves it unchanged: read
    /// as a lock, it would appear to be held for ever.
    pub(crate) fn read(document: &Document, collection: &str) -> Result<Self> {
        let foreign = || error::foreign_document(collection);
        if document.keys().any(|key| !LOCK_FIELDS.contains(&key.as_str())) {
            return Err(foreign());
        }
        let lock_id = document.get_str("lockId").map_err(|_| foreign())?;
        let token = document.get("fencingToken").and_then(number).ok_or_else(foreign)?;
        if !matches!(document.get("expiresAt"), None | Some(Bson::DateTime(_) | Bson::Null)) {
            return Err(foreign());
        }
        Ok(LockDocument {
            lock_id: LockId::from_stored(lock_id),
            acquired_at: date_ms(document, "acquiredAt"),
            expires_at: date_ms(document, "expiresAt"),
            token,
        })
    }

    /// Reads a document that a claim was decided on: its token must be countable.
    pub(crate) fn read_countable(document: &Document, collection: &str) -> Result<Self> {
        let lock = LockDocument::read(document, collection)?;
        check_countable(document, "fencingToken", collection)?;
        Ok(lock)
    }

    /// The time until expiry, by the server's clock.
    pub(crate) fn time_left(&self, now: i64) -> Option<Duration> {
        self.expires_at.and_then(|until| positive_ms(until - now))
    }

    pub(crate) fn holder(&self, now: i64) -> Option<Holder> {
        let left = self.time_left(now)?;
        Some(
            Holder::new(self.lock_id.clone(), 1)
                .with_token(token(self.token))
                .with_acquired_at(self.acquired_at.and_then(system_time))
                .with_expires_in(left),
        )
    }
}

/// One entry in the wait queue of a mutex.
#[derive(Clone, Debug)]
pub(crate) struct QueueEntry {
    pub(crate) lock_id: LockId,
    /// The expiry that the waiter asks for.
    pub(crate) expiry: Duration,
    /// Whether the lock can be handed to it.
    pub(crate) direct: bool,
    pub(crate) decided_at: i64,
    pub(crate) expires_at: i64,
}

/// The document beside a mutex: its waiters, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct WaitQueueDocument {
    pub(crate) queue: Vec<QueueEntry>,
}

impl WaitQueueDocument {
    /// Leaves out entries that cannot be read: the queue is a hint.
    pub(crate) fn read(document: &Document) -> Self {
        let queue = entries(document, "queue").filter_map(|entry| {
            Some(QueueEntry {
                lock_id: LockId::from_stored(entry.get_str("lockId").ok()?),
                expiry: entry.get("expiry").and_then(number).and_then(positive_ms).unwrap_or_default(),
                direct: entry.get_bool("direct").unwrap_or_default(),
                decided_at: date_ms(entry, "decidedAt")?,
                expires_at: date_ms(entry, "expiresAt")?,
            })
        });
        WaitQueueDocument { queue: queue.collect() }
    }

    pub(crate) fn position(&self, lock_id: &LockId) -> Option<usize> {
        self.queue.iter().position(|entry| entry.lock_id == *lock_id)
    }
}

/// One holder of a pool.
#[derive(Clone, Debug)]
pub(crate) struct PoolHolder {
    pub(crate) lock_id: LockId,
    pub(crate) weight: u32,
    pub(crate) token: i64,
    pub(crate) acquired_at: Option<i64>,
    pub(crate) expires_at: i64,
}

/// One waiter of a pool.
#[derive(Clone, Debug)]
pub(crate) struct PoolWaiter {
    pub(crate) lock_id: LockId,
    pub(crate) weight: u32,
    pub(crate) decided_at: i64,
    pub(crate) expires_at: i64,
}

/// The document of a pool.
#[derive(Clone, Debug)]
pub(crate) struct PoolDocument {
    pub(crate) capacity: u32,
    pub(crate) holders: Vec<PoolHolder>,
    pub(crate) queue: Vec<PoolWaiter>,
    /// The messages of the last update.
    pub(crate) wake: String,
    /// The lock id that the last update released, and the address it was known under.
    pub(crate) released: Option<(LockId, String)>,
}

impl PoolDocument {
    pub(crate) fn read(document: &Document) -> Result<Self> {
        let unreadable = || error::unreadable(document.get_str("_id").unwrap_or_default());
        let holders = entries(document, "holders").map(|entry| {
            Some(PoolHolder {
                lock_id: LockId::from_stored(entry.get_str("lockId").ok()?),
                weight: unsigned(entry, "weight")?,
                token: entry.get("token").and_then(number)?,
                acquired_at: date_ms(entry, "acquiredAt"),
                expires_at: date_ms(entry, "expiresAt")?,
            })
        });
        let queue = entries(document, "queue").map(|entry| {
            Some(PoolWaiter {
                lock_id: LockId::from_stored(entry.get_str("lockId").ok()?),
                weight: unsigned(entry, "weight")?,
                decided_at: date_ms(entry, "decidedAt")?,
                expires_at: date_ms(entry, "expiresAt")?,
            })
        });
        let released = document.get_document("answer").ok().and_then(|answer| {
            Some((
                LockId::from_stored(answer.get_str("lockId").ok()?),
                answer.get_str("call").ok()?.to_owned(),
            ))
        });
        Ok(PoolDocument {
            capacity: unsigned(document, "capacity").ok_or_else(unreadable)?,
            holders: holders.collect::<Option<_>>().ok_or_else(unreadable)?,
            queue: queue.collect::<Option<_>>().ok_or_else(unreadable)?,
            wake: document.get_str("wake").unwrap_or_default().to_owned(),
            released,
        })
    }

    pub(crate) fn is_in_use(&self) -> bool {
        !(self.holders.is_empty() && self.queue.is_empty())
    }
}

impl PoolHolder {
    pub(crate) fn holder(&self, now: i64) -> Option<Holder> {
        let left = positive_ms(self.expires_at - now)?;
        Some(
            Holder::new(self.lock_id.clone(), self.weight)
                .with_token(token(self.token))
                .with_acquired_at(self.acquired_at.and_then(system_time))
                .with_expires_in(left),
        )
    }
}

fn entries<'a>(document: &'a Document, key: &str) -> impl Iterator<Item = &'a Document> {
    document.get_array(key).into_iter().flatten().filter_map(Bson::as_document)
}

/// A date field, in milliseconds.
pub(crate) fn date_ms(document: &Document, key: &str) -> Option<i64> {
    document.get_datetime(key).ok().map(|date| date.timestamp_millis())
}

fn unsigned(document: &Document, key: &str) -> Option<u32> {
    document.get(key).and_then(number).and_then(|n| u32::try_from(n).ok())
}

/// An error that names the document if its token is not countable.
pub(crate) fn check_countable(document: &Document, field: &str, collection: &str) -> Result<()> {
    let token = document.get(field);
    if is_countable(token) {
        return Ok(());
    }
    let id = document.get_str("_id").unwrap_or_default();
    Err(error::uncountable(collection, id, token.unwrap_or(&Bson::Null)))
}

/// Whether a token can be followed by another; see [`LAST_TOKEN`].
pub(crate) fn is_countable(token: Option<&Bson>) -> bool {
    match token {
        // `number` saturates: it would read a double below the range as the lowest integer, and NaN as zero.
        Some(Bson::Double(n)) if n.is_nan() || *n < i64::MIN as f64 => false,
        token => token.and_then(number).is_some_and(|token| token <= LAST_TOKEN),
    }
}

/// A token as the API has it. A negative one, which only another program writes, becomes zero.
pub(crate) fn token(number: i64) -> FencingToken {
    FencingToken::new(u64::try_from(number).unwrap_or_default())
}

/// A token as the documents have it.
pub(crate) fn stored_token(token: FencingToken) -> i64 {
    i64::try_from(token.get()).unwrap_or(LAST_TOKEN).min(LAST_TOKEN)
}

/// A duration of more than zero milliseconds.
pub(crate) fn positive_ms(ms: i64) -> Option<Duration> {
    u64::try_from(ms).ok().filter(|ms| *ms > 0).map(Duration::from_millis)
}

/// A duration in whole milliseconds, rounded up: a lease is never shorter than requested.
pub(crate) fn whole_ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX / 4)
}

fn system_time(ms: i64) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(u64::try_from(ms).ok()?))
}

/// When to poll again where waiters cannot be woken. A short hold is likely to end soon, a long one is likely to go on, so
/// the interval is a quarter of the time it has been held. A waiter is late by a quarter of the hold at most, and sends a
/// few dozen requests however long the hold is.
pub(crate) fn poll_interval(held_since: i64, now: i64) -> Duration {
    const SHORTEST: Duration = Duration::from_millis(10);
    let quarter = positive_ms((now - held_since) / 4).unwrap_or_default();
    quarter.max(SHORTEST).mul_f64(0.75 + 0.5 * fastrand::f64())
}
