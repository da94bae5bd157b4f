//! Noticing that the machine, or the server on it, stood still.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use distlock_core::Locks;
use tokio::task::JoinSet;

use super::fixture::Fixture;
use super::harness::Harness;

/// How often a disturbed play is begun anew.
const TRIES: u32 = 5;

/// Measures how long a moment takes at the worst: a short sleep of ours, and a lock that nobody else specs. A server
/// may get no time on a machine that has enough for us.
struct Stalls {
    longest: Arc<AtomicU64>,
    _watching: JoinSet<()>,
}

impl Stalls {
    fn watch(store: &Locks) -> Self {
        let longest = Arc::new(AtomicU64::new(0));
        let mut watching = JoinSet::new();
        watching.spawn(note(Arc::clone(&longest), async || {}));
        let store = store.clone();
        watching.spawn(note(Arc::clone(&longest), async move || {
            // A store that refuses is not one that stands still.
            if let Ok(Some(guard)) = store.mutex("wanted by nobody else").try_acquire().await {
                let _ = guard.release().await;
            }
        }));
        Stalls { longest, _watching: watching }
    }

    fn longest(&self) -> Duration {
        Duration::from_millis(self.longest.load(Ordering::SeqCst))
    }
}

/// Writes down, as it goes on, how long the longest of these took. One that is under way counts as well.
async fn note(longest: Arc<AtomicU64>, moment: impl AsyncFn()) {
    loop {
        let before = Instant::now();
        let took = || u64::try_from(before.elapsed().as_millis()).unwrap_or(u64::MAX);
        let mut going = std::pin::pin!(async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            moment().await;
        });
        while tokio::time::timeout(Duration::from_millis(5), &mut going).await.is_err() {
            longest.fetch_max(took(), Ordering::SeqCst);
        }
        longest.fetch_max(took(), Ordering::SeqCst);
    }
}

/// Plays something that needs a machine and a server which never stand still for `longest`. A failure counts only if
/// they did not: otherwise a lease may rightly be lost, and nothing is proved either way.
///
/// # Panics
/// With the failure; or if it is never quiet enough.
pub(super) async fn undisturbed<F: Fixture>(
    harness: &Harness<F>,
    longest: Duration,
    play: impl AsyncFn(u32) -> Result<(), String>,
) {
    let watched = harness.locks().await;
    for attempt in 1..=TRIES {
        let stalls = Stalls::watch(&watched);
        let Err(problem) = play(attempt).await else { return };
        let stood_still = stalls.longest();
        assert!(
            stood_still > longest && attempt < TRIES,
            "{problem} (in try {attempt}, where nothing stood still for more than {stood_still:?})"
        );
    }
}
