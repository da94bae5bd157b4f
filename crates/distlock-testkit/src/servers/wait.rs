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

/// Waits until a condition is true, for at most `limit`.
///
/// # Panics
/// If it does not become true in time, with `what` in the message.
pub async fn until(what: &str, limit: Duration, mut condition: impl AsyncFnMut() -> bool) {
    let begin = Instant::now();
    while !condition().await {
        assert!(begin.elapsed() < limit, "did not become true within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
