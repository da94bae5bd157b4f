//! The time limit of an acquisition.

use std::time::Duration;

use super::locks::Locks;
use crate::clock::Moment;
use crate::engine::Wait;

/// How long before its limit a waiter asks who holds the lock: this share of the limit, and this long at most.
const LOOKUP_SHARE: u32 = 10;
const LONGEST_LOOKUP: Duration = Duration::from_millis(100);

/// A time limit, from the moment when waiting began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeLimit {
    pub(crate) wait: Wait,
    /// Zero without a limit.
    pub(crate) duration: Duration,
}

impl TimeLimit {
    /// Waits this long from now; zero is one attempt, `None` is for ever.
    pub(crate) fn starting_now(locks: &Locks, timeout: Option<Duration>) -> Self {
        let wait = match timeout {
            None => Wait::Forever,
            Some(Duration::ZERO) => Wait::Once,
            Some(limit) => Wait::Until(locks.engine.shared.clock.now().after(limit)),
        };
        TimeLimit { wait, duration: timeout.unwrap_or_default() }
    }

    /// When to look up the holders, for the error; `None` where no limit passes.
    pub(crate) fn lookup_at(&self) -> Option<Moment> {
        match self.wait {
            Wait::Until(limit) => Some(limit.before((self.duration / LOOKUP_SHARE).min(LONGEST_LOOKUP))),
            Wait::Once | Wait::Forever => None,
        }
    }
}
