//! Waits for conditions.

use std::time::{Duration, Instant};

/// Calls `probe` until it returns a value, for at most `limit`.
///
/// # Panics
/// If it returns none in time, with `what` in the message.
pub fn wait_for<T>(what: &str, limit: Duration, mut probe: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    let mut pause = Duration::from_millis(2);
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(
            begin.elapsed() < limit,
            "did not happen within {:.1} s: {what}",
            begin.elapsed().as_secs_f64()
        );
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(25));
    }
}
