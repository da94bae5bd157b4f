//! How a waiter passes the time between two attempts.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::watch::Watch;

/// After a wake-up: a holder that dies is seen to close its file just before the kernel drops its lock.
const QUICK: [Duration; 4] =
    [Duration::from_millis(1), Duration::from_millis(2), Duration::from_millis(4), Duration::from_millis(8)];

/// After a wake-up by which somebody else got the lock: once, in case that he died at once.
const ONCE_MORE: Duration = Duration::from_millis(3);

/// Where the kernel tells, only a safety net.
const TOLD: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(500));

/// Where it does not, the only way.
const ALONE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

/// How often a waiter looks again: quickly after a wake-up, more and more slowly otherwise.
#[derive(Debug)]
pub(crate) struct Pace {
    quick: usize,
    once_more: bool,
    failures: i32,
}

/// Why a pause ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// Look again.
    Over,
    /// The claim was withdrawn.
    Withdrawn,
}

impl Pace {
    pub(crate) fn new() -> Self {
        Pace { quick: QUICK.len(), once_more: false, failures: 0 }
    }

    /// There is a reason to look again soon.
    pub(crate) fn hurry(&mut self) {
        self.quick = 0;
    }

    /// Somebody else was faster.
    pub(crate) fn relax(&mut self) {
        self.once_more = self.quick < QUICK.len();
        self.quick = QUICK.len();
    }

    fn next(&mut self, is_told: bool) -> Duration {
        if let Some(quick) = QUICK.get(self.quick) {
            self.quick += 1;
            return *quick;
        }
        if std::mem::take(&mut self.once_more) {
            return ONCE_MORE;
        }
        let (least, most) = if is_told { TOLD } else { ALONE };
        let grown = least.mul_f64(1.5_f64.powi(self.failures)).min(most);
        self.failures = (self.failures + 1).min(20);
        grown.mul_f64(0.8 + 0.4 * fastrand::f64())
    }

    /// Waits until it is worth looking again.
    ///
    /// # Cancel safety
    /// Cancel safe: a wake-up that was not seen stays to be seen.
    pub(crate) async fn pause(&mut self, watch: Option<&Watch>, withdraw: &CancellationToken) -> Pause {
        let sleep = tokio::time::sleep(self.next(watch.is_some()));
        let changed = async {
            match watch {
                Some(watch) => watch.changed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = withdraw.cancelled() => return Pause::Withdrawn,
            () = changed => self.hurry(),
            () = sleep => {}
        }
        Pause::Over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiter_never_spins() {
        for is_told in [true, false] {
            let mut pace = Pace::new();
            let slept: Duration = (0..40).map(|_| pace.next(is_told)).sum();
            assert!(slept >= Duration::from_secs(2), "{slept:?}");
            pace.hurry();
            let quick: Vec<Duration> = (0..5).map(|_| pace.next(is_told)).collect();
            assert_eq!(quick[..4], QUICK);
            assert!(quick[4] >= Duration::from_millis(80), "{quick:?}");
        }
    }
}
