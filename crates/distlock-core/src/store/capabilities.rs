//! What a store can do.

use crate::error::{Error, ErrorKind};
use crate::resource::{Kind, MAX_PERMITS};

/// How a store serves waiters of different processes in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fairness {
    /// Not at all: `fair()` is refused.
    None,
    /// Its pool record has a queue: the engine puts a [`Kind::FairQueue`] in front of a fair mutex.
    Queue,
    /// The server itself queues waiters of a mutex.
    Native,
}

/// What a store can do. Asking for anything else is an [`ErrorKind::Unsupported`] error.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Capabilities {
    /// Reader-writer locks.
    pub rw_lock: bool,
    /// Semaphores.
    pub semaphore: bool,
    /// The largest number of permits that a semaphore may have.
    pub max_permits: u32,
    /// First come, first served across the fleet.
    pub fairness: Fairness,
    /// A waiting writer keeps later readers out.
    pub writer_not_starved: bool,
    /// The store can wake a waiter; otherwise waiters poll.
    pub push: bool,
    /// `break_lock` works.
    pub forced_release: bool,
    /// `inspect` knows who waits.
    pub shows_waiters: bool,
    /// A holder that dies frees the lock at once, not at its expiry.
    pub frees_on_crash: bool,
    /// A minimum hold time ([`Options::hold_at_least`](crate::Options::hold_at_least)) survives the end of the holder.
    pub minimum_hold: bool,
    /// What was granted and counted survives a restart of the store.
    pub durable: bool,
    /// How many items one request may carry.
    pub max_batch: usize,
    /// How many acquisitions, and how many releases, of a process may be in flight at once. As soon as there are more
    /// tasks than that, what arrives while a request is in flight goes out together as the next one. One where a request
    /// costs about as much as a whole batch; more where the way there and back is most of it. A request that was not
    /// answered within half of the request time-out does not count any more.
    pub max_in_flight: usize,
    /// How many small batches of acquisitions, and of releases, may be in flight once there are more tasks than
    /// [`max_in_flight`](Capabilities::max_in_flight). With more than one, a batch takes at most half of the tasks, so that half
    /// of them acquire while the others release, and large batches are sent one at a time. One where half a batch costs about as
    /// much as a whole one.
    pub max_batches_in_flight: usize,
    /// Why something above is missing, for the error: `("semaphores", "two majorities may …")`.
    pub reasons: &'static [(&'static str, &'static str)],
}

impl Capabilities {
    /// Everything, in batches of a thousand, one at a time; change what differs.
    #[must_use]
    pub const fn all() -> Self {
        Capabilities {
            rw_lock: true,
            semaphore: true,
            max_permits: MAX_PERMITS,
            fairness: Fairness::Queue,
            writer_not_starved: true,
            push: true,
            forced_release: true,
            shows_waiters: true,
            frees_on_crash: false,
            minimum_hold: true,
            durable: true,
            max_batch: 1000,
            max_in_flight: 1,
            max_batches_in_flight: 1,
            reasons: &[],
        }
    }

    /// What is known of a store that is not connected yet: nothing but mutexes.
    pub(crate) const fn unknown() -> Self {
        Capabilities {
            rw_lock: false,
            semaphore: false,
            max_permits: MAX_PERMITS,
            fairness: Fairness::None,
            writer_not_starved: false,
            push: false,
            forced_release: false,
            shows_waiters: false,
            frees_on_crash: false,
            minimum_hold: false,
            durable: false,
            max_batch: 1,
            max_in_flight: 1,
            max_batches_in_flight: 1,
            reasons: &[],
        }
    }

    /// Whether the store has this kind at all.
    #[must_use]
    pub fn has(&self, kind: Kind) -> bool {
        match kind {
            Kind::Mutex => true,
            Kind::RwLock => self.rw_lock,
            Kind::Semaphore => self.semaphore,
            Kind::FairQueue => self.fairness == Fairness::Queue,
        }
    }

    /// The error for something the store does not have, with its reason where one is given.
    #[must_use]
    pub fn unsupported(&self, what: &'static str) -> Error {
        let reason = self.reasons.iter().find(|(name, _)| *name == what).map(|(_, reason)| *reason);
        let detail = match reason {
            Some(reason) => format!("{what} are not supported: {reason}"),
            None => format!("{what} are not supported"),
        };
        Error::new(ErrorKind::Unsupported, detail).advise("use another store for them")
    }
}
