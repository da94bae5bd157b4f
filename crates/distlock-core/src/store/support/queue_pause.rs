//! How long a waiter far behind in a long wait queue sleeps between two attempts.
//!
//! A waiter that the store wakes still asks now and then: in case a message was lost, and to show that it is alive. With a
//! thousand waiters that would be most of what the server does. A waiter far behind will not be woken soon, so it asks less often,
//! and its queue entry lives as much longer. It also lets those before it ask first when the holder's lease ends, and asks a second or
//! two later.
//!
//! Only for a mutex, whose release goes past the entries of dead processes, and only on a store that knows at once whether a message
//! reached a process. Elsewhere an entry that outlives its process blocks others: in a pool a dead writer keeps readers waiting
//! behind it for as long as it does not fit.

use std::time::Duration;

/// How often a waiter asks that is not far behind.
pub const ASKS_EVERY: Duration = Duration::from_secs(1);
/// By how much each waiter before it lengthens the pause of a waiter.
pub const PER_WAITER: Duration = Duration::from_millis(10);
/// The longest pause.
pub const LONGEST: Duration = Duration::from_secs(10);

/// How long a waiter sleeps that has so many before it, if that is longer than usual. Its queue entry has to live as much longer than
/// its [`ttl`](crate::store::Waiting::ttl).
#[must_use]
pub fn pause_behind(waiters: usize) -> Option<Duration> {
    let pause =
        u32::try_from(waiters).map_or(LONGEST, |waiters| PER_WAITER.saturating_mul(waiters).min(LONGEST));
    (pause > ASKS_EVERY).then_some(pause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_waiter_far_behind_sleeps_longer_and_not_for_ever() {
        assert_eq!(pause_behind(0), None);
        assert_eq!(pause_behind(100), None);
        assert_eq!(pause_behind(200), Some(2 * ASKS_EVERY));
        assert_eq!(pause_behind(usize::MAX), Some(LONGEST));
    }
}
