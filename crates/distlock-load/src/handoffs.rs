//! Handoffs between contenders of several processes, from what each of them recorded.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use distlock_core::{BootClock, Clock, FencingToken, Moment};
use serde::{Deserialize, Serialize};

use crate::latencies::Latencies;

/// One hold of the lock, in nanoseconds of the boot clock, which all processes of a machine share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hold {
    pub(crate) token: u64,
    /// When the contender asked for the lock.
    pub(crate) asked: u64,
    pub(crate) granted: u64,
    /// When it called `release`.
    pub(crate) released: u64,
}

/// Where the contenders of a process record their holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct HoldLog(Arc<Mutex<Vec<Hold>>>);

impl HoldLog {
    /// Records a hold that is released now.
    pub(crate) fn record(&self, token: FencingToken, asked: Moment, granted: Moment) {
        let hold = Hold {
            token: token.get(),
            asked: asked.as_nanos(),
            granted: granted.as_nanos(),
            released: BootClock.now().as_nanos(),
        };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(hold);
    }

    pub(crate) fn take(&self) -> Vec<Hold> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// From the call of `release` until the next holder has the lock, where that one was waiting already.
pub(crate) fn latencies(mut holds: Vec<Hold>) -> Latencies {
    holds.sort_by_key(|hold| hold.token);
    let mut latencies = Latencies::new();
    for pair in holds.windows(2) {
        let (holder, next) = (pair[0], pair[1]);
        if next.asked < holder.released && next.granted >= holder.released {
            latencies.record(Duration::from_nanos(next.granted - holder.released));
        }
    }
    latencies
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_contender_that_waited_already_counts() {
        let hold = |token, asked, granted, released| Hold { token, asked, granted, released };
        let holds = vec![
            hold(3, 9_000_000, 10_000_000, 11_000_000),
            hold(1, 0, 1_000_000, 2_000_000),
            // It waited for half a millisecond after the release.
            hold(2, 500_000, 2_500_000, 3_500_000),
        ];
        let latencies = latencies(holds);
        assert_eq!(latencies.count(), 1, "the third asked for a free lock");
        assert!(latencies.max_us().is_some_and(|most| (499.0..=501.0).contains(&most)));
    }
}
