//! After a holder whose session ended without a release: it may not know yet. The next holder has the lock then, and is not granted
//! it before the guard of the holder is lost.
//!
//! A holder records how long after its session its guard lasts, counted from the sending of its last answered request. A session that
//! ended answers no request. So this long after the server gave the lock to the next session, by any clock that runs at a normal
//! speed, no guard is left.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, Moment, sleep_until};
use crate::store::Session;

/// For clocks that run at different speeds: one part in this many.
const DRIFT: u32 = 16;
/// For clocks that are read late.
const SLACK: Duration = Duration::from_millis(10);

/// How long to wait here, so that at least this much passed there.
#[must_use]
pub fn at_least(there: Duration) -> Duration {
    if there.is_zero() { there } else { there + there / DRIFT + SLACK }
}

/// How much passed there, at least, while this much passed here.
#[must_use]
pub fn at_most(here: Duration) -> Duration {
    here - here / DRIFT
}

/// Resolves when the claim is withdrawn; never without a token, for a claim that makes one attempt.
///
/// # Cancel safety
/// Cancel safe.
pub async fn withdrawn(withdraw: Option<&CancellationToken>) {
    match withdraw {
        Some(withdraw) => withdraw.cancelled().await,
        None => std::future::pending().await,
    }
}

/// Waits until this moment, or until our own session ends. The clock counts suspended time, which the runtime's timers do not.
/// Returns false if the claim was withdrawn before.
///
/// # Cancel safety
/// Cancel safe.
pub async fn wait_until(
    clock: &dyn Clock,
    until: Moment,
    session: &Session,
    withdraw: Option<&CancellationToken>,
) -> bool {
    tokio::select! {
        biased;
        () = sleep_until(clock, until) => true,
        () = session.wait_for_end() => true,
        () = withdrawn(withdraw) => false,
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::clock::BootClock;
    use crate::store::LossReason;

    #[test]
    fn short_waits_never_count_for_more_than_they_were() {
        for millis in [1, 7, 200, 3000, 20_000, 60_000] {
            let there = Duration::from_millis(millis);
            assert!(at_least(there) > there);
            assert!(at_most(there) < there);
            // Clocks that differ by five per cent.
            assert!(at_most(there.mul_f64(1.05)) <= there);
            assert!(at_least(there).mul_f64(0.95) >= there);
        }
        assert_eq!(at_least(Duration::ZERO), Duration::ZERO);
    }

    #[tokio::test]
    async fn a_wait_ends_at_its_moment_with_its_session_or_with_its_claim() {
        let (clock, session, withdraw) = (BootClock, Session::new(), CancellationToken::new());
        let later = || clock.now().after(Duration::from_secs(3600));
        assert!(wait_until(&clock, clock.now(), &session, None).await);
        assert!(wait_until(&clock, later(), &session, Some(&withdraw)).now_or_never().is_none());
        withdraw.cancel();
        assert!(!wait_until(&clock, later(), &session, Some(&withdraw)).await);
        session.end(LossReason::NotYours);
        assert!(wait_until(&clock, later(), &session, None).await);
    }
}
