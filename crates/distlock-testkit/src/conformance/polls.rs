//! Drops a future after a number of polls, to cancel it at every await.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// The result of [`poll_at_most`].
#[derive(Debug)]
pub enum Polled<T> {
    /// The future completed.
    Done(T),
    /// It was dropped after the last poll.
    Dropped,
    /// It was not woken often enough within the limit, and was dropped.
    Idle,
}

/// Polls a future whenever it is woken, at most `polls` times, and drops it right after the last poll or after `limit`.
///
/// # Cancel safety
/// Dropping the returned future drops `future`.
pub async fn poll_at_most<T>(future: impl Future<Output = T>, polls: u32, limit: Duration) -> Polled<T> {
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
    async fn a_future_is_polled_exactly_as_often_as_requested() {
        for polls in 0..=3 {
            assert!(matches!(poll_at_most(three_awaits(), polls, Duration::MAX).await, Polled::Dropped));
        }
        assert!(matches!(poll_at_most(three_awaits(), 4, Duration::MAX).await, Polled::Done(7)));
        let stuck = std::future::pending::<()>();
        assert!(matches!(poll_at_most(stuck, 9, Duration::from_millis(1)).await, Polled::Idle));
    }
}
