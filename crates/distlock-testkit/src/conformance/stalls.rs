//! Noticing that the machine stood still.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often a disturbed play is begun anew.
const TRIES: u32 = 5;

/// Measures how late a timer comes at the worst.
struct Stalls {
    longest: Arc<AtomicU64>,
    watching: tokio::task::JoinHandle<()>,
}

impl Stalls {
    fn watch() -> Self {
        let longest = Arc::new(AtomicU64::new(0));
        let noted = Arc::clone(&longest);
        let watching = tokio::spawn(async move {
            loop {
                let before = Instant::now();
                tokio::time::sleep(Duration::from_millis(5)).await;
                let took = u64::try_from(before.elapsed().as_millis()).unwrap_or(u64::MAX);
                noted.fetch_max(took, Ordering::SeqCst);
            }
        });
        Stalls { longest, watching }
    }

    fn longest(&self) -> Duration {
        Duration::from_millis(self.longest.load(Ordering::SeqCst))
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

/// Plays something that needs a machine which never stands still for `longest`. A failure counts only if it did not:
/// on a machine that stood still a lease may rightly be lost, and nothing is proved either way.
///
/// # Panics
/// With the failure; or if the machine is never quiet enough.
pub(super) async fn undisturbed(longest: Duration, play: impl AsyncFn(u32) -> Result<(), String>) {
    for attempt in 0..TRIES {
        let stalls = Stalls::watch();
        match play(attempt).await {
            Ok(()) => return,
            Err(_) if stalls.longest() > longest => {}
            Err(problem) => {
                panic!("{problem} (the machine never stood still for more than {:?})", stalls.longest())
            }
        }
    }
    panic!("this machine stands still for more than {longest:?} each time");
}
