//! Detects stalls of the machine or the server, so that a case can tell them from a defect.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use distlock_core::Locks;
use tokio::task::JoinSet;

use super::fixture::Fixture;
use super::harness::Harness;

/// How often a disturbed case is repeated.
const TRIES: u32 = 5;

/// Measures the longest stall of this process (a short sleep) and of the server (an uncontended acquisition). A busy machine
/// may starve the server and not us.
struct StallMonitor {
    longest: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

impl StallMonitor {
    fn start(store: &Locks) -> Self {
        let longest = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        tasks.spawn(measure(Arc::clone(&longest), async || {}));
        let store = store.clone();
        tasks.spawn(measure(Arc::clone(&longest), async move || {
            // An error is not a stall.
            if let Ok(Some(guard)) = store.mutex("stall monitor").try_acquire().await {
                let _ = guard.release().await;
            }
        }));
        StallMonitor { longest, _tasks: tasks }
    }

    fn longest(&self) -> Duration {
        Duration::from_millis(self.longest.load(Ordering::SeqCst))
    }
}

/// Repeats `step` and records the longest duration, including that of the one in progress.
async fn measure(longest: Arc<AtomicU64>, step: impl AsyncFn()) {
    loop {
        let before = Instant::now();
        let took = || u64::try_from(before.elapsed().as_millis()).unwrap_or(u64::MAX);
        let mut running = std::pin::pin!(async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            step().await;
        });
        while tokio::time::timeout(Duration::from_millis(5), &mut running).await.is_err() {
            longest.fetch_max(took(), Ordering::SeqCst);
        }
        longest.fetch_max(took(), Ordering::SeqCst);
    }
}

/// Runs a case that is only meaningful if neither the machine nor the server stalls for longer than `limit`. After such a
/// stall a lease may rightly be lost, so a failure does not count and the case is repeated.
///
/// # Panics
/// With the failure of an attempt without a stall, or of the last attempt.
pub(super) async fn retry_if_stalled<F: Fixture>(
    harness: &Harness<F>,
    limit: Duration,
    case: impl AsyncFn(u32) -> Result<(), String>,
) {
    let locks = harness.locks().await;
    for attempt in 1..=TRIES {
        let monitor = StallMonitor::start(&locks);
        let Err(problem) = case(attempt).await else { return };
        let stalled = monitor.longest();
        assert!(
            stalled > limit && attempt < TRIES,
            "{problem} (attempt {attempt}; the longest stall was {stalled:?})"
        );
    }
}
