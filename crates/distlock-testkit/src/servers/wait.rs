//! Waiting for a condition, never for a time.

use std::time::{Duration, Instant};

/// Calls `probe` until it gives a value, at most for `limit`.
///
/// # Panics
/// If there is no value in time; `what` says what was waited for.
pub fn wait_for<T>(what: &str, limit: Duration, mut probe: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    let mut pause = Duration::from_millis(2);
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(begin.elapsed() < limit, "waited {:.1} s in vain: {what}", begin.elapsed().as_secs_f64());
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(25));
    }
}
