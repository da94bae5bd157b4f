//! After a holder that did not release: its session ended, and it may not know. The next one has the lock then, and is not granted it
//! before the guard of the holder is lost.
//!
//! The row of a holder says how long after its session its guard lasts (`hold_us`), counted by the holder from the sending of its last
//! answered request. A request is answered by a session that exists, and `sp_getapplock` succeeds after that session has ended.
//! So this long after `sp_getapplock` succeeded, by any clock that runs at a normal speed, no guard is left.

use std::time::Duration;

use distlock_core::store::support::errors;
use distlock_core::{CancellationToken, Clock, Moment, Result};

use super::LockSession;

/// For clocks that run at different speeds: one part in this many.
const DRIFT: u32 = 16;
/// For clocks that are read late.
const SLACK: Duration = Duration::from_millis(10);

/// How long to wait here, so that at least this much passed there.
pub(crate) fn at_least(there: Duration) -> Duration {
    if there.is_zero() { there } else { there + there / DRIFT + SLACK }
}

/// How much passed there, at least, while this much passed here.
fn at_most(here: Duration) -> Duration {
    here - here / DRIFT
}

/// A lock that a session has and that is not granted yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unsettled {
    /// How long earlier holders may believe that they hold it.
    pub(crate) pending: Duration,
    /// The session had the lock by then.
    pub(crate) since: Moment,
}

/// What came of the wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    Granted,
    /// It was withdrawn after this long.
    Withdrawn {
        paid: Duration,
    },
}

impl Unsettled {
    /// Waits until the lock can be granted.
    pub(crate) async fn settle(
        self,
        session: &LockSession,
        clock: &dyn Clock,
        withdraw: Option<&CancellationToken>,
    ) -> Result<Settled> {
        if !self.pending.is_zero() {
            tokio::select! {
                biased;
                () = sleep_until(clock, self.since.after(at_least(self.pending))) => {}
                () = session.session().wait_for_end() => {}
                () = cancelled(withdraw) => {
                    return Ok(Settled::Withdrawn { paid: at_most(clock.now().since(self.since)) });
                }
            }
        }
        if !session.is_usable() || clock.now() >= session.session().deadline() {
            return Err(errors::connection_lost("the session has ended"));
        }
        Ok(Settled::Granted)
    }
}

/// Never without a token.
pub(super) async fn cancelled(withdraw: Option<&CancellationToken>) {
    match withdraw {
        Some(withdraw) => withdraw.cancelled().await,
        None => std::future::pending().await,
    }
}

/// By a clock that counts suspended time, which the runtime's timers do not.
async fn sleep_until(clock: &dyn Clock, until: Moment) {
    loop {
        let left = until.since(clock.now());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_waits_never_count_for_more_than_they_were() {
        for millis in [1, 7, 200, 3000, 20_000] {
            let there = Duration::from_millis(millis);
            assert!(at_least(there) > there);
            assert!(at_most(there) < there);
            // Clocks that differ by five per cent.
            assert!(at_most(there.mul_f64(1.05)) <= there);
            assert!(at_least(there).mul_f64(0.95) >= there);
        }
        assert_eq!(at_least(Duration::ZERO), Duration::ZERO);
    }
}
