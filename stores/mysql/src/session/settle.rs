//! After a holder that did not release: its session ended, and it may not know. The next one has the lock then, and is not
//! granted it before the guard of the holder is lost.
//!
//! The row of a lock says how long after its session the guard of its holder lasts (`hold_us`), counted by the holder from the
//! sending of its last confirmed heartbeat. A heartbeat is confirmed by a session that exists, and `GET_LOCK` succeeds after
//! that session has ended. So this long after `GET_LOCK` succeeded, by any clock that runs at a normal speed, no guard is left.
//! A client that gives up before writes what it has waited into the row, so that short waits add up.

use std::sync::Arc;
use std::time::Duration;

use distlock_core::store::support::errors;
use distlock_core::{CancellationToken, Clock, Moment, Result};

use super::actor::{Drawn, SessionActor};
use super::statements::{Grant, Mark, Release};

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

/// A lock that a session has and that is not granted yet. Dropped, it is released.
pub(super) struct Unsettled {
    session: Arc<SessionActor>,
    grant: Grant,
    drawn: Drawn,
    clock: Arc<dyn Clock>,
    is_released: bool,
}

impl Unsettled {
    pub(super) fn new(
        session: &Arc<SessionActor>,
        grant: &Grant,
        drawn: Drawn,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Unsettled { session: Arc::clone(session), grant: grant.clone(), drawn, clock, is_released: false }
    }

    /// Returns true when the lock can be granted, and false if it was withdrawn and released.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock.
    pub(super) async fn settle(mut self, withdraw: Option<&CancellationToken>) -> Result<bool> {
        if !self.drawn.pending.is_zero() {
            let until = self.drawn.since.after(at_least(self.drawn.pending));
            tokio::select! {
                biased;
                () = sleep_until(&*self.clock, until) => {}
                () = self.session.session().wait_for_end() => {}
                () = cancelled(withdraw) => {
                    self.is_released = true;
                    self.session.release(self.release()).await?;
                    return Ok(false);
                }
            }
        }
        if !self.session.is_usable() || self.clock.now() >= self.session.session().deadline() {
            return Err(errors::connection_lost("the session has ended"));
        }
        self.is_released = true;
        Ok(true)
    }

    fn release(&self) -> Release {
        let paid = at_most(self.clock.now().since(self.drawn.since));
        Release {
            name: self.grant.name,
            lock_id: self.grant.lock_id.clone(),
            mark: Mark::NotGranted { paid },
        }
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        if !self.is_released {
            self.session.release_later(self.release());
        }
    }
}

async fn cancelled(withdraw: Option<&CancellationToken>) {
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
        for millis in [1, 7, 200, 3000, 60_000] {
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
