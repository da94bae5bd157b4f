//! The time limit of an acquisition.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use super::locks::Locks;
use crate::clock::{Clock, Moment, sleep_until};
use crate::engine::Wait;
use crate::error::{Error, ErrorKind, Result};

/// How long after its limit an acquisition may still hear whether the lock is contended: this share of the limit, within these
/// bounds. An acquisition without an answer by then fails as unavailable.
const SLACK_SHARE: u32 = 2;
const SHORTEST_SLACK: Duration = Duration::from_millis(100);
const LONGEST_SLACK: Duration = Duration::from_millis(250);
/// How long a single attempt with a time limit of zero may take.
const SINGLE_ATTEMPT: Duration = Duration::from_secs(1);

/// How long before its limit a waiter asks who holds the lock: this share of the limit, and this long at most.
const LOOKUP_SHARE: u32 = 10;
const LONGEST_LOOKUP: Duration = Duration::from_millis(100);

/// A time limit, from the moment when waiting began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeLimit {
    pub(crate) wait: Wait,
    /// Zero without a limit.
    pub(crate) duration: Duration,
    /// When the acquisition is given up, whatever the store does. Clean-up continues in the background.
    cut: Option<Moment>,
}

impl TimeLimit {
    /// Waits this long from now; zero is one attempt, `None` is for ever.
    pub(crate) fn starting_now(locks: &Locks, timeout: Option<Duration>) -> Self {
        match timeout {
            None => TimeLimit { wait: Wait::Forever, duration: Duration::ZERO, cut: None },
            Some(Duration::ZERO) => TimeLimit::single_attempt(locks.clock().now(), SINGLE_ATTEMPT),
            Some(limit) => {
                let slack = (limit / SLACK_SHARE).clamp(SHORTEST_SLACK, LONGEST_SLACK);
                let until = locks.clock().now().after(limit);
                TimeLimit { wait: Wait::Until(until), duration: limit, cut: Some(until.after(slack)) }
            }
        }
    }

    /// One attempt, which may take as long as a request.
    pub(crate) fn one_request(locks: &Locks) -> Self {
        TimeLimit::single_attempt(locks.clock().now(), locks.options.get_request_timeout())
    }

    fn single_attempt(now: Moment, longest: Duration) -> Self {
        TimeLimit { wait: Wait::Once, duration: Duration::ZERO, cut: Some(now.after(longest)) }
    }

    /// Awaits the acquisition, and gives it up when the limit and its slack have passed. It is pinned by the caller: an async
    /// function that takes a future by value has room for it twice.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if it is given up: the store answered neither "granted" nor "busy".
    pub(crate) async fn enforce<T>(
        &self,
        clock: &dyn Clock,
        acquiring: Pin<&mut impl Future<Output = Result<T>>>,
    ) -> Result<T> {
        let Some(cut) = self.cut else { return acquiring.await };
        let begun = clock.now();
        tokio::select! {
            biased;
            outcome = acquiring => outcome,
            () = sleep_until(clock, cut) => {
                let what = format!("no answer within {:?}", rounded(clock.now().since(begun)));
                Err(Error::new(ErrorKind::Unavailable, what)
                    .with_unknown_outcome()
                    .advise("check that the store runs and can be reached from here, or set a longer time limit"))
            }
        }
    }

    /// When to look up the holders, for the error; `None` where no limit passes.
    pub(crate) fn lookup_at(&self) -> Option<Moment> {
        match self.wait {
            Wait::Until(limit) => Some(limit.before((self.duration / LOOKUP_SHARE).min(LONGEST_LOOKUP))),
            Wait::Once | Wait::Forever => None,
        }
    }
}

/// Whole milliseconds: more digits of a time limit that passed say nothing.
fn rounded(duration: Duration) -> Duration {
    Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}
