//! How long a lease lasts, how often it is renewed and how a waiter waits.

use std::borrow::Cow;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};

/// The shortest expiry: below it, an ordinary pause of a process loses the lock.
pub const MIN_EXPIRY: Duration = Duration::from_millis(100);

/// The longest expiry: a year. With more, a lock whose holder died is never free again.
pub const MAX_EXPIRY: Duration = Duration::from_secs(365 * 24 * 3600);

/// The expiry where none is set.
const DEFAULT_EXPIRY: Duration = Duration::from_secs(30);

/// The shortest extension cadence: more requests do not keep a lock any better.
const MIN_CADENCE: Duration = Duration::from_millis(10);

const THIRD: u32 = 3;

/// The longest extension cadence for this expiry: three quarters of it. If a renewal fails or hangs, there is time for a
/// second try before the guard's local deadline.
fn longest_cadence(expiry: Duration) -> Duration {
    expiry / 4 * 3
}

/// The options of a lock.
///
/// A setter refuses a value that is wrong by itself, and says why. Whether the values fit each other is
/// [checked](Options::check) when the options are used, before anything is sent: the setters may be called in any order.
///
/// ```
/// use std::time::Duration;
/// use distlock_core::Options;
///
/// # fn main() -> distlock_core::Result<()> {
/// let options = Options::new()
///     .expiry(Duration::from_secs(5))?
///     .extension_cadence(Duration::from_secs(1))?
///     .adaptive_backoff(true);
/// assert!(options.clone().expiry(Duration::from_millis(1)).is_err());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    expiry: Option<Duration>,
    cadence: Option<Duration>,
    auto_extend: bool,
    busy_wait: (Duration, Duration),
    adaptive_backoff: bool,
    hold_at_least: Duration,
    max_hold: Option<Duration>,
    request_timeout: Duration,
    notice_break: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            expiry: None,
            cadence: None,
            auto_extend: true,
            busy_wait: (Duration::from_millis(10), Duration::from_millis(800)),
            adaptive_backoff: false,
            hold_at_least: Duration::ZERO,
            max_hold: None,
            request_timeout: Duration::from_secs(5),
            notice_break: false,
        }
    }
}

fn refuse(what: String, advice: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidInput, what).advise(advice)
}

impl Options {
    /// The defaults: expiry 30 s, renewed every third of it, busy-wait sleep 10–800 ms at random.
    #[must_use]
    pub fn new() -> Self {
        Options::default()
    }

    /// How long the lock outlives a holder that died. Default 30 s. A lock that is renewed can be held far longer.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] below 100 ms or above a year.
    pub fn expiry(mut self, expiry: Duration) -> Result<Self> {
        if expiry < MIN_EXPIRY || expiry > MAX_EXPIRY {
            return Err(refuse(
                format!("an expiry of {expiry:?} is not between 100 ms and a year"),
                "take a few times the longest pause a holder may make, such as 30 s",
            ));
        }
        self.expiry = Some(expiry);
        Ok(self)
    }

    /// How often a held lock is renewed for its full expiry. Default: a third of the expiry. At most three quarters of it
    /// when it is [used](Options::check), so that a failed renewal can be retried in time.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] below 10 ms.
    pub fn extension_cadence(mut self, cadence: Duration) -> Result<Self> {
        if cadence < MIN_CADENCE {
            return Err(refuse(
                format!("an extension cadence of {cadence:?} is below 10 ms"),
                "leave it out: it is then a third of the expiry",
            ));
        }
        self.cadence = Some(cadence);
        Ok(self)
    }

    /// Checks whether the values fit each other. Every acquisition does it before it sends anything.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if locks are renewed and the extension cadence is too long for the expiry.
    pub fn check(&self) -> Result<()> {
        if !self.auto_extend {
            return Ok(());
        }
        let (expiry, longest) = (self.get_expiry(), longest_cadence(self.get_expiry()));
        match self.cadence.filter(|cadence| *cadence > longest) {
            None => Ok(()),
            Some(cadence) => Err(refuse(
                format!(
                    "an extension cadence of {cadence:?} leaves no time for a second try before an expiry of {expiry:?}"
                ),
                format!(
                    "set a cadence of at most {longest:?}, or leave it out: it is then a third of the expiry"
                ),
            )),
        }
    }

    /// Switches renewal on (the default) or off. Off gives a plain lease: the guard is lost at its expiry.
    #[must_use]
    pub fn auto_extend(mut self, on: bool) -> Self {
        self.auto_extend = on;
        self
    }

    /// How long a waiter sleeps between two attempts where the store cannot wake it: a random time in this range. Default
    /// 10–800 ms.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if `min` is zero or above `max`, or `max` above a minute.
    pub fn busy_wait_sleep(mut self, min: Duration, max: Duration) -> Result<Self> {
        if min.is_zero() || min > max || max > Duration::from_secs(60) {
            return Err(refuse(
                format!("a busy-wait sleep of {min:?} to {max:?} is not a range between zero and a minute"),
                "give min above zero, and max at least min, such as 10 ms and 800 ms",
            ));
        }
        self.busy_wait = (min, max);
        Ok(self)
    }

    /// Sleeps min × 1.5ⁿ ± 20 % instead of a random time, never below min nor above max. Default off.
    #[must_use]
    pub fn adaptive_backoff(mut self, on: bool) -> Self {
        self.adaptive_backoff = on;
        self
    }

    /// Keeps the lock at least this long after the grant, also when it is released earlier, so that a job that ends early
    /// does not run twice. Default zero. It survives `shutdown`, the end of the process and its crash: on stores with leases
    /// the first lease lasts as long, and is left in the store; the file store keeps a record. Where a lock ends with its
    /// session ([`Capabilities::minimum_hold`](crate::store::Capabilities::minimum_hold) is false: PostgreSQL advisory locks,
    /// `GET_LOCK`, ZooKeeper, etcd) acquiring is an [`ErrorKind::Unsupported`] error.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] above a year.
    pub fn hold_at_least(mut self, duration: Duration) -> Result<Self> {
        if duration > MAX_EXPIRY {
            return Err(refuse(
                format!("a hold of at least {duration:?} is above a year"),
                "use a shorter time",
            ));
        }
        self.hold_at_least = duration;
        Ok(self)
    }

    /// Stops renewing after the lock was held this long: it is then lost like any other, at the latest one expiry later, and
    /// another client may have it. For work that must not block others for ever when it hangs. Where the lock lives with a
    /// session, the guard is lost and the lock is released at that moment. Default: no limit.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for zero or above a year.
    pub fn max_hold(mut self, duration: Duration) -> Result<Self> {
        if duration.is_zero() || duration > MAX_EXPIRY {
            return Err(refuse(
                format!("a longest hold of {duration:?} is not between zero and a year"),
                "leave it out: the lock is then renewed for as long as it is held",
            ));
        }
        self.max_hold = Some(duration);
        Ok(self)
    }

    /// How long one request to the store may take before it counts as failed. Default 5 s.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] below 10 ms or above ten minutes.
    pub fn request_timeout(mut self, timeout: Duration) -> Result<Self> {
        if timeout < Duration::from_millis(10) || timeout > Duration::from_secs(600) {
            return Err(refuse(
                format!("a request time-out of {timeout:?} is not between 10 ms and ten minutes"),
                "take a few times the slowest round trip, such as 5 s",
            ));
        }
        self.request_timeout = timeout;
        Ok(self)
    }

    /// Keeps the subscription for wake-ups open while the lock is held, so that a forced release is noticed within a
    /// round trip instead of at the next renewal. Default off: it costs one subscription for each process. It has no effect
    /// where the store cannot push, and on a lease that is not renewed.
    #[must_use]
    pub fn notice_break(mut self, on: bool) -> Self {
        self.notice_break = on;
        self
    }

    /// Whether a holder listens for a forced release.
    #[must_use]
    pub fn notices_break(&self) -> bool {
        self.notice_break
    }

    /// The expiry.
    #[must_use]
    pub fn get_expiry(&self) -> Duration {
        self.expiry.unwrap_or(DEFAULT_EXPIRY)
    }

    /// The extension cadence in force.
    #[must_use]
    pub fn get_extension_cadence(&self) -> Duration {
        self.cadence.unwrap_or(self.get_expiry() / THIRD)
    }

    /// Whether held locks are renewed.
    #[must_use]
    pub fn extends(&self) -> bool {
        self.auto_extend
    }

    /// The least time a lock is kept.
    #[must_use]
    pub fn get_hold_at_least(&self) -> Duration {
        self.hold_at_least
    }

    /// After how long a held lock is not renewed any more; `None` without a limit.
    #[must_use]
    pub fn get_max_hold(&self) -> Option<Duration> {
        self.max_hold
    }

    /// The time-out of one request.
    #[must_use]
    pub fn get_request_timeout(&self) -> Duration {
        self.request_timeout
    }

    /// The range of the busy-wait sleep.
    #[must_use]
    pub fn get_busy_wait_sleep(&self) -> (Duration, Duration) {
        self.busy_wait
    }

    /// How long to sleep after the `failures`-th attempt in a row that found the lock busy (from zero).
    #[must_use]
    pub(crate) fn sleep_after(&self, failures: u32) -> Duration {
        let (min, max) = self.busy_wait;
        if self.adaptive_backoff {
            let grown = min.as_secs_f64() * 1.5_f64.powi(failures.min(64).cast_signed());
            let jittered = grown.min(max.as_secs_f64()) * (0.8 + 0.4 * fastrand::f64());
            Duration::from_secs_f64(jittered.min(max.as_secs_f64())).max(min)
        } else {
            min + (max - min).mul_f64(fastrand::f64())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_defaults_are_those_of_the_seeds() {
        let options = Options::new();
        assert_eq!(options.get_expiry(), Duration::from_secs(30));
        assert_eq!(options.get_extension_cadence(), Duration::from_secs(10));
        assert_eq!(options.get_busy_wait_sleep(), (10 * MS, 800 * MS));
        assert!(options.extends() && !options.adaptive_backoff);
    }

    #[test]
    fn bad_values_are_refused_when_they_are_set() {
        let o = Options::new;
        for bad in [
            o().expiry(99 * MS),
            o().expiry(Duration::MAX),
            o().extension_cadence(Duration::ZERO),
            o().extension_cadence(MIN_CADENCE - Duration::from_nanos(1)),
            o().busy_wait_sleep(Duration::ZERO, MS),
            o().busy_wait_sleep(2 * MS, MS),
            o().busy_wait_sleep(MS, Duration::from_secs(61)),
            o().hold_at_least(Duration::MAX),
            o().max_hold(Duration::ZERO),
            o().max_hold(Duration::MAX),
            o().request_timeout(Duration::ZERO),
        ] {
            let error = bad.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.advice().is_some(), "{error}");
        }
        assert!(o().expiry(MIN_EXPIRY).is_ok());
    }

    #[test]
    fn values_that_do_not_fit_each_other_are_refused_in_whatever_order_they_were_set() {
        let (expiry, cadence) = (10_000 * MS, 7_501 * MS);
        let first = Options::new().expiry(expiry).unwrap().extension_cadence(cadence).unwrap();
        let last = Options::new().extension_cadence(cadence).unwrap().expiry(expiry).unwrap();
        assert_eq!(first, last);
        let error = first.check().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.advice().is_some(), "{error}");
        let replaced = first.extension_cadence(7_500 * MS).unwrap();
        assert!(replaced.check().is_ok());
        assert!(replaced.expiry(9_999 * MS).unwrap().check().is_err());
    }

    #[test]
    fn a_cadence_may_be_set_before_the_expiry_that_it_fits() {
        let early = Options::new().extension_cadence(40_000 * MS).unwrap();
        assert_eq!(early.check().unwrap_err().kind(), ErrorKind::InvalidInput);
        let error = early.check().unwrap_err().to_string();
        assert!(error.contains("40s") && error.contains("30s") && error.contains("at most 22.5s"), "{error}");
        assert!(early.clone().auto_extend(false).check().is_ok(), "a plain lease is not renewed");
        let fits = early.expiry(120_000 * MS).unwrap();
        assert!(fits.check().is_ok());
        assert_eq!(fits.get_extension_cadence(), 40_000 * MS);
    }

    #[test]
    fn adaptive_backoff_grows_by_half_and_stays_between_min_and_max() {
        let options = Options::new().adaptive_backoff(true);
        for n in 0..200_u32 {
            let sleep = options.sleep_after(n);
            assert!(sleep >= 10 * MS && sleep <= 800 * MS, "attempt {n}: {sleep:?}");
            if n < 10 {
                let ideal = 10.0 * 1.5_f64.powi(n.cast_signed());
                let got = sleep.as_secs_f64() * 1000.0;
                assert!(
                    got >= (0.79 * ideal).max(9.9) && got <= 1.21 * ideal,
                    "attempt {n}: {got} for {ideal}"
                );
            }
        }
    }

    #[test]
    fn the_random_sleep_stays_in_its_range() {
        let options = Options::new().busy_wait_sleep(5 * MS, 7 * MS).unwrap();
        assert!((0..200).all(|n| (5 * MS..=7 * MS).contains(&options.sleep_after(n))));
    }
}
