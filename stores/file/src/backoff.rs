//! How long a waiter pauses between two attempts.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::watch::FileWatch;

/// After a wake-up: the kernel reports that a dying holder closed its file just before it frees the lock.
const QUICK: [Duration; 4] =
    [Duration::from_millis(1), Duration::from_millis(2), Duration::from_millis(4), Duration::from_millis(8)];

/// After a wake-up that another client won: one quick retry, in case that client dies at once.
const ONCE_MORE: Duration = Duration::from_millis(3);

/// Shortest and longest pause with notifications: only a safety net.
const NOTIFIED: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(500));

/// Shortest and longest pause without notifications: the only way to learn of a release.
const POLLING: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

/// Quick retries after a wake-up, growing pauses otherwise.
#[derive(Debug)]
pub(crate) struct Backoff {
    quick: usize,
    once_more: bool,
    failures: i32,
}

/// Why a pause ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PauseEnd {
    /// Try again.
    Retry,
    /// The claim was withdrawn.
    Withdrawn,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Backoff { quick: QUICK.len(), once_more: false, failures: 0 }
    }

    /// Retries quickly from now on.
    pub(crate) fn hurry(&mut self) {
        self.quick = 0;
    }

    /// Ends quick retries: another client was faster.
    pub(crate) fn relax(&mut self) {
        self.once_more = self.quick < QUICK.len();
        self.quick = QUICK.len();
    }

    fn next(&mut self, notified: bool) -> Duration {
        if let Some(quick) = QUICK.get(self.quick) {
            self.quick += 1;
            return *quick;
        }
        if std::mem::take(&mut self.once_more) {
            return ONCE_MORE;
        }
        let (shortest, longest) = if notified { NOTIFIED } else { POLLING };
        let grown = shortest.mul_f64(1.5_f64.powi(self.failures)).min(longest);
        self.failures = (self.failures + 1).min(20);
        grown.mul_f64(0.8 + 0.4 * fastrand::f64())
    }

    /// Waits until the next attempt is due.
    ///
    /// # Cancel safety
    /// Cancel safe: an unseen wake-up is seen by the next call.
    pub(crate) async fn pause(
        &mut self,
        watch: Option<&FileWatch>,
        withdraw: &CancellationToken,
    ) -> PauseEnd {
        let sleep = tokio::time::sleep(self.next(watch.is_some()));
        let changed = async {
            match watch {
                Some(watch) => watch.changed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = withdraw.cancelled() => return PauseEnd::Withdrawn,
            () = changed => self.hurry(),
            () = sleep => {}
        }
        PauseEnd::Retry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiter_never_spins() {
        for notified in [true, false] {
            let mut backoff = Backoff::new();
            let slept: Duration = (0..40).map(|_| backoff.next(notified)).sum();
            assert!(slept >= Duration::from_secs(2), "{slept:?}");
            backoff.hurry();
            let quick: Vec<Duration> = (0..5).map(|_| backoff.next(notified)).collect();
            assert_eq!(quick[..4], QUICK);
            assert!(quick[4] >= Duration::from_millis(80), "{quick:?}");
        }
    }
}
