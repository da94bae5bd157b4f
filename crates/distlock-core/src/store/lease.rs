//! Stores whose records expire.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::support::queue_pause;
use super::{Store, WakeStream};
use crate::error::{Error, ErrorKind, Result};
use crate::resource::{FencingToken, LockId, Resource, WRITER_WEIGHT};

/// One answer for each item of a request, in the order of the request; or one error for all of them.
/// An item that fails alone gets an error of its own.
pub type Batch<T> = Result<Vec<Result<T>>>;

/// The address of a process (of an engine in it) for wake-ups. Printable ASCII without spaces, below 200 bytes
/// in all but contrived cases; a store that needs a narrower alphabet hashes it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Inbox(Arc<str>);

impl Inbox {
    /// An inbox of this name.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Inbox(name.into())
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is asked for: this much of a resource, under this lock id, for this long.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Claim {
    /// Kind and name.
    pub resource: Resource,
    /// Unique for each acquisition. Asking again with the same id is idempotent: a store that finds the claim
    /// granted already says so again and starts its expiry anew; one that finds it waiting keeps its place.
    pub lock_id: LockId,
    /// How much of the capacity: 1 for a mutex and a reader, everything for a writer.
    pub weight: u32,
    /// How much there is. A pool with live holders or waiters of another capacity answers
    /// [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch), unless the claim [resizes](Self::resizes).
    pub capacity: u32,
    /// How long the grant lasts, by the store's clock.
    pub expiry: Duration,
    /// How often the holder's session is to be renewed, where the store keeps sessions of its own alive. `None`: as the store
    /// likes.
    pub cadence: Option<Duration>,
    /// How to remember that we wait, if it is busy. `None`: one attempt, and no trace of it.
    pub waiting: Option<Waiting>,
    /// For a lock record: do not take a free lock before a waiter that registered earlier. Pools never do,
    /// whatever this says. A store for which this is not one step may ignore it: it is about order, not safety.
    pub no_overtaking: bool,
    /// A pool in use with another capacity gets the one of this claim, also for its waiters, and the claim is decided by it.
    pub resizes: bool,
    /// For session stores: how long the lock stays held after the grant, also if the session ends before. Zero: not longer
    /// than the session. Lease stores need not look at it: their expiry covers it.
    pub hold_at_least: Duration,
}

impl Claim {
    /// A claim for the whole of a resource of capacity 1, such as a mutex: one attempt, which leaves no trace.
    #[must_use]
    pub fn new(resource: Resource, lock_id: LockId, expiry: Duration) -> Self {
        Claim {
            resource,
            lock_id,
            weight: 1,
            capacity: 1,
            expiry,
            cadence: None,
            waiting: None,
            no_overtaking: false,
            resizes: false,
            hold_at_least: Duration::ZERO,
        }
    }

    /// The same with a minimum hold time.
    #[must_use]
    pub fn with_hold_at_least(mut self, hold_at_least: Duration) -> Self {
        self.hold_at_least = hold_at_least;
        self
    }

    /// The same about another resource.
    #[must_use]
    pub fn with_resource(mut self, resource: Resource) -> Self {
        self.resource = resource;
        self
    }

    /// The same under another lock id.
    #[must_use]
    pub fn with_lock_id(mut self, lock_id: LockId) -> Self {
        self.lock_id = lock_id;
        self
    }

    /// Asks for this much of the capacity.
    #[must_use]
    pub fn with_weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    /// Says how much there is.
    #[must_use]
    pub fn with_capacity(mut self, capacity: u32) -> Self {
        self.capacity = capacity;
        self
    }

    /// Asks for this long.
    #[must_use]
    pub fn with_expiry(mut self, expiry: Duration) -> Self {
        self.expiry = expiry;
        self
    }

    /// Says how often its session is to be renewed.
    #[must_use]
    pub fn with_cadence(mut self, cadence: impl Into<Option<Duration>>) -> Self {
        self.cadence = cadence.into();
        self
    }

    /// Waits if it is busy, or not.
    #[must_use]
    pub fn with_waiting(mut self, waiting: impl Into<Option<Waiting>>) -> Self {
        self.waiting = waiting.into();
        self
    }

    /// Does not take a free lock before a waiter that registered earlier.
    #[must_use]
    pub fn with_no_overtaking(mut self, no_overtaking: bool) -> Self {
        self.no_overtaking = no_overtaking;
        self
    }

    /// Whether there can ever be as much as this, whatever the state of the store: the first thing that a store of
    /// pools asks, since a claim for more than there is would wait for ever.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if not.
    pub fn check_weight(&self) -> Result<()> {
        let Claim { weight, capacity, .. } = *self;
        if (1..=capacity).contains(&weight) && capacity <= WRITER_WEIGHT {
            return Ok(());
        }
        let what = format!("a weight of {weight} is not between 1 and the capacity of {capacity}");
        Err(Error::new(ErrorKind::InvalidInput, what)
            .about(&self.resource)
            .advise("ask for at least one permit and for no more than there are"))
    }
}

impl Claim {
    /// For how long the store keeps, at the longest, what an attempt with this claim leaves there: a grant, or an entry in
    /// the wait queue.
    pub(crate) fn lasts(&self) -> Duration {
        self.waiting
            .as_ref()
            .map_or(self.expiry, |waiting| (waiting.ttl + queue_pause::LONGEST).max(self.expiry))
    }
}

/// How a claim waits.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Waiting {
    /// Whom to wake.
    pub inbox: Inbox,
    /// After this long without another attempt the waiter counts as gone. Of a waiter far behind
    /// in a long queue, the store may let the entry live for [`queue_pause`](super::support::queue_pause) longer.
    pub ttl: Duration,
    /// The number of this attempt: it rises with each attempt of a lock id. The wait queue remembers the highest
    /// number it has seen for a waiter, and a pushed grant repeats it ([`PushedGrant::attempt`](super::PushedGrant::attempt)). An attempt that is
    /// applied after a later one of the same lock id changes nothing in the queue.
    pub attempt: u64,
}

impl Waiting {
    /// Waits as this inbox, with the attempt of this number. Without another attempt within `ttl` the waiter counts as
    /// gone.
    #[must_use]
    pub fn new(inbox: Inbox, ttl: Duration, attempt: u64) -> Self {
        Waiting { inbox, ttl, attempt }
    }
}

/// What came of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Attempt {
    /// It is ours, for the whole expiry from the moment the store decided.
    #[non_exhaustive]
    Granted {
        /// Higher than the token of every earlier grant of the resource.
        token: FencingToken,
    },
    /// It is held by another client, or another waiter is before us.
    #[non_exhaustive]
    Busy {
        /// When it is worth asking again if no wake-up comes: the time left on whatever blocks us, rounded up where the
        /// store counts in coarse steps. The waiter asks again at that moment, so less is a request in vain.
        retry_after: Option<Duration>,
        /// For a store that cannot push: how long a waiter sleeps until it asks again, within
        /// [`Options::busy_wait_sleep`](crate::Options::busy_wait_sleep). `None`: a random time of that range.
        ///
        /// From a store that pushes: how long a waiter sleeps that has no queue entry, because the queue has no room, or that
        /// has many waiters before it ([`queue_pause`](super::support::queue_pause)). One without a subscription subscribes
        /// when there is room.
        poll_after: Option<Duration>,
    },
}

impl Attempt {
    /// It is ours.
    #[must_use]
    pub fn granted(token: FencingToken) -> Self {
        Attempt::Granted { token }
    }

    /// It is held by another client, or another waiter is before us.
    #[must_use]
    pub fn busy(retry_after: impl Into<Option<Duration>>) -> Self {
        Attempt::Busy { retry_after: retry_after.into(), poll_after: None }
    }

    /// A busy answer with the time until a waiter asks again, for a store that cannot push or whose wait queue is long. A grant
    /// stays as it is.
    #[must_use]
    pub fn with_poll_after(mut self, pause: impl Into<Option<Duration>>) -> Self {
        if let Attempt::Busy { poll_after, .. } = &mut self {
            *poll_after = pause.into();
        }
        self
    }
}

/// A grant, as the store must recognise it again.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Lease {
    /// Kind and name.
    pub resource: Resource,
    /// The lock id of the claim.
    pub lock_id: LockId,
    /// The token of the grant. A renewal carries it, and the store keeps the larger of it and its own, so that
    /// a quorum can write back the highest token of its nodes.
    pub token: FencingToken,
    /// This very store granted the token, so its record has it, or a higher one: a renewal need not write it. False if the token may
    /// come from elsewhere, as that of a quorum does, which its nodes keep; a store that passes leases on to others sets it to false.
    pub token_is_known: bool,
    /// How long a renewal lasts.
    pub expiry: Duration,
    /// The weight of the claim.
    pub weight: u32,
    /// The capacity of the claim.
    pub capacity: u32,
}

impl Lease {
    /// A lease on the whole of a resource of capacity 1, such as a mutex.
    #[must_use]
    pub fn new(resource: Resource, lock_id: LockId, token: FencingToken, expiry: Duration) -> Self {
        Lease { resource, lock_id, token, token_is_known: false, expiry, weight: 1, capacity: 1 }
    }

    /// The same about another resource.
    #[must_use]
    pub fn with_resource(mut self, resource: Resource) -> Self {
        self.resource = resource;
        self
    }

    /// The same with another token, which may come from elsewhere.
    #[must_use]
    pub fn with_token(mut self, token: FencingToken) -> Self {
        self.token = token;
        self.token_is_known = false;
        self
    }

    /// Says whether the store that gets this lease granted the token itself: see [`token_is_known`](Lease::token_is_known).
    #[must_use]
    pub fn with_known_token(mut self, known: bool) -> Self {
        self.token_is_known = known;
        self
    }

    /// The same with another expiry.
    #[must_use]
    pub fn with_expiry(mut self, expiry: Duration) -> Self {
        self.expiry = expiry;
        self
    }

    /// The same under another lock id.
    #[must_use]
    pub fn with_lock_id(mut self, lock_id: LockId) -> Self {
        self.lock_id = lock_id;
        self
    }

    /// Says how much of the capacity was granted.
    #[must_use]
    pub fn with_weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    /// Says how much there is.
    #[must_use]
    pub fn with_capacity(mut self, capacity: u32) -> Self {
        self.capacity = capacity;
        self
    }

    /// The lease that a granted claim becomes.
    #[must_use]
    pub fn of(claim: &Claim, token: FencingToken) -> Self {
        Lease {
            resource: claim.resource.clone(),
            lock_id: claim.lock_id.clone(),
            token,
            token_is_known: false,
            expiry: claim.expiry,
            weight: claim.weight,
            capacity: claim.capacity,
        }
    }
}

/// What came of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// Ours for the whole expiry from now.
    Renewed,
    /// The record is not ours any more. A renewal never takes a lock, not even a free one.
    NotYours,
}

/// What came of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// It was ours, holder or waiter, and is not any more.
    Done {
        /// Whether a waiter of another inbox was woken or granted.
        woke: bool,
    },
    /// There was nothing of ours under that lock id.
    NotYours,
}

/// A store of records that expire by the store's own clock.
///
/// Every verb is one atomic step for each item, takes many items, and never waits for a lock. The order of the
/// items says nothing; a store that locks rows does so in one order. The engine calls each verb in a future
/// that is driven to its end whatever the user drops, and puts its own time limit on it: an implementation needs
/// neither, but must not stay busy for ever once its connection is gone. A panic is an error of that one call, of unknown
/// outcome.
#[async_trait]
pub trait LeaseStore: Store {
    /// Grants each claim that can be granted now.
    ///
    /// # Errors
    /// An error marked [`with_unknown_outcome`](crate::Error::with_unknown_outcome) says that the step may have
    /// happened; the engine then asks again with the same lock id, or releases it.
    async fn try_acquire(&self, claims: &[Claim]) -> Batch<Attempt>;

    /// Starts the expiry of each lease anew if the record is still ours, and never otherwise.
    ///
    /// # Errors
    /// As for [`try_acquire`](LeaseStore::try_acquire). A failed renewal changes nothing.
    async fn renew(&self, leases: &[Lease]) -> Batch<Renewal>;

    /// Ends each lease if it is ours: as holder, and as waiter too, so that a withdrawn claim leaves nothing.
    /// Wakes the next waiter. The token of the resource stays remembered.
    ///
    /// # Errors
    /// As for [`try_acquire`](LeaseStore::try_acquire).
    async fn release(&self, leases: &[Lease]) -> Batch<Released>;

    /// Opens the stream of wake-ups for this inbox. Called only while a task waits, and only if
    /// [`Capabilities::push`](super::Capabilities::push) is set. When the stream ends, the engine opens another.
    ///
    /// # Errors
    /// If the stream cannot be opened; waiters then poll, and the engine tries again later.
    async fn subscribe(&self, inbox: &Inbox) -> Result<WakeStream>;
}
