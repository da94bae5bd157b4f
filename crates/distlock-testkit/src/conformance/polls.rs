//! Dropping a future after so many polls: how a user cancels it at every await.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// What became of a future that was polled so many times at most.
#[derive(Debug)]
pub enum Polled<T> {
    /// It was done before.
    Done(T),
    /// It was dropped after its last poll.
    Dropped,
    /// It was not woken often enough in the time it had, and was dropped then.
    Idle,
}

/// Polls a future when it asks to be polled, `polls` times at most, and drops it at once after the last one, or
/// after `limit`.
///
/// # Cancel safety
/// Dropping it drops the future.
pub async fn poll_times<T>(future: impl Future<Output = T>, polls: u32, limit: Duration) -> Polled<T> {
    let mut future = pin!(future);
    let mut left = polls;
    let polling = poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(Polled::Dropped);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Polled::Done(output)),
            Poll::Pending if left == 0 => Poll::Ready(Polled::Dropped),
            Poll::Pending => Poll::Pending,
        }
    });
    tokio::time::timeout(limit, polling).await.unwrap_or(Polled::Idle)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn three_awaits() -> u32 {
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        7
    }

    #[tokio::test]
    async fn a_future_is_polled_as_often_as_said_and_not_once_more() {
        for polls in 0..=3 {
            assert!(matches!(poll_times(three_awaits(), polls, Duration::MAX).await, Polled::Dropped));
        }
        assert!(matches!(poll_times(three_awaits(), 4, Duration::MAX).await, Polled::Done(7)));
        let stuck = std::future::pending::<()>();
        assert!(matches!(poll_times(stuck, 9, Duration::from_millis(1)).await, Polled::Idle));
    }
}
