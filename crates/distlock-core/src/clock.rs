//! Time as the engine sees it: a clock that counts suspended time, injected, so that tests can drive it.

#[cfg(any(test, feature = "test-util"))]
mod virtual_clock;

use std::fmt::Debug;
use std::time::Duration;

#[cfg(any(test, feature = "test-util"))]
pub use virtual_clock::VirtualClock;

/// A point in time on a [`Clock`]: nanoseconds since an origin that means nothing outside this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Moment(u64);

impl Moment {
    /// Later than any clock will show.
    pub const NEVER: Moment = Moment(u64::MAX);

    /// This long after the clock's origin.
    #[must_use]
    pub fn from_origin(elapsed: Duration) -> Self {
        Moment(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
    }

    /// The time from `earlier` to this moment, zero if it lies after it. Never wraps.
    #[must_use]
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// This much later; [`Moment::NEVER`] instead of wrapping.
    #[must_use]
    pub fn after(self, duration: Duration) -> Moment {
        Moment(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// This much earlier, or the origin.
    #[must_use]
    pub fn before(self, duration: Duration) -> Moment {
        Moment(self.0.saturating_sub(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Nanoseconds since the origin, for atomics.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The inverse of [`as_nanos`](Moment::as_nanos).
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Moment {
        Moment(nanos)
    }
}

/// A monotonic clock. It must go on while the machine is suspended: leases do.
pub trait Clock: Send + Sync + Debug {
    /// Now.
    fn now(&self) -> Moment;
}

/// The clock of real use: `CLOCK_BOOTTIME` on Linux and Android, the monotonic clock elsewhere (which counts
/// suspended time on macOS and Windows).
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

/// The system's clock behind it.
#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

impl Clock for BootClock {
    #[cfg(unix)]
    fn now(&self) -> Moment {
        let now = rustix::time::clock_gettime(CLOCK);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
        Moment(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
    }

    #[cfg(not(unix))]
    fn now(&self) -> Moment {
        use std::sync::OnceLock;
        use std::time::Instant;
        static ORIGIN: OnceLock<Instant> = OnceLock::new();
        Moment::from_origin(ORIGIN.get_or_init(Instant::now).elapsed())
    }
}

/// Sleeps until the clock shows `moment`. The runtime's timers stand still while the machine is suspended, so
/// no single sleep is longer than a second.
///
/// # Cancel safety
/// Cancel safe: nothing happens but time.
pub(crate) async fn sleep_until(clock: &dyn Clock, moment: Moment) {
    const CHUNK: Duration = Duration::from_secs(1);
    if moment == Moment::NEVER {
        return std::future::pending().await;
    }
    loop {
        let left = moment.since(clock.now());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(CHUNK)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_instead_of_wrapping() {
        let early = Moment::from_nanos(5);
        assert_eq!(early.since(Moment::from_nanos(9)), Duration::ZERO);
        assert_eq!(early.before(Duration::from_secs(1)), Moment::from_nanos(0));
        assert_eq!(early.after(Duration::MAX), Moment::NEVER);
    }

    #[test]
    fn the_boot_clock_goes_forward() {
        let first = BootClock.now();
        assert!(BootClock.now() >= first);
        assert!(first.as_nanos() > 0);
    }

    /// The two differ only on a machine that was suspended, so their readings cannot tell which one it is.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[test]
    fn the_boot_clock_is_the_one_that_counts_suspended_time() {
        use rustix::time::{ClockId, clock_gettime};
        assert_eq!(CLOCK, ClockId::Boottime);
        let read = || {
            let now = clock_gettime(ClockId::Boottime);
            u64::try_from(now.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap()
        };
        let (before, ours, after) = (read(), BootClock.now().as_nanos(), read());
        assert!(before <= ours && ours <= after, "{before} {ours} {after}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_sleeper_notices_a_suspend_within_a_second() {
        let clock = VirtualClock::new();
        let until = clock.now().after(Duration::from_secs(600));
        let sleeper = tokio::spawn({
            let clock = clock.clone();
            async move { sleep_until(&clock, until).await }
        });
        tokio::task::yield_now().await;
        let before = tokio::time::Instant::now();
        clock.jump(Duration::from_secs(900));
        sleeper.await.unwrap();
        assert!(before.elapsed() <= Duration::from_secs(1));
    }
}
