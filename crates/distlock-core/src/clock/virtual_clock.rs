//! The clock of tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{Clock, Moment};

/// A clock that follows the runtime's time, so that `tokio::time::pause` and `advance` drive it, plus an
/// offset that a test may move: a suspended machine, or a server whose clock jumps.
#[derive(Clone, Debug)]
pub struct VirtualClock {
    origin: tokio::time::Instant,
    forward: Arc<AtomicU64>,
    back: Arc<AtomicU64>,
}

impl VirtualClock {
    /// A clock that stands one hour after its origin, so that there is room to move it back.
    #[must_use]
    pub fn new() -> Self {
        let room = Duration::from_secs(3600);
        VirtualClock {
            origin: tokio::time::Instant::now(),
            forward: Arc::new(AtomicU64::new(u64::try_from(room.as_nanos()).unwrap_or(0))),
            back: Arc::new(AtomicU64::new(0)),
        }
    }

    /// Lets the clock jump forward without the runtime's timers noticing: what a suspend does.
    pub fn jump(&self, by: Duration) {
        self.forward.fetch_add(u64::try_from(by.as_nanos()).unwrap_or(0), Ordering::SeqCst);
    }

    /// Lets the clock jump back, as a wall clock does when an operator sets it.
    pub fn jump_back(&self, by: Duration) {
        self.back.fetch_add(u64::try_from(by.as_nanos()).unwrap_or(0), Ordering::SeqCst);
    }
}

impl Default for VirtualClock {
    fn default() -> Self {
        VirtualClock::new()
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Moment {
        let elapsed = tokio::time::Instant::now().saturating_duration_since(self.origin);
        Moment::from_origin(elapsed)
            .after(Duration::from_nanos(self.forward.load(Ordering::SeqCst)))
            .before(Duration::from_nanos(self.back.load(Ordering::SeqCst)))
    }
}
