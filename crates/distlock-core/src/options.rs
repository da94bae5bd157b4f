//! How long a lease lasts, how often it is renewed and how a waiter waits.

mod url;

use std::borrow::Cow;
use std::time::Duration;

pub use self::url::LOCK_OPTIONS;
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

const DEFAULT_BUSY_WAIT: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(800));
const DEFAULT_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// A longest hold without a limit, where it is named.
const UNLIMITED: Duration = Duration::MAX;

/// The longest extension cadence for this expiry: three quarters of it. If a renewal fails or hangs, there is time for a
/// second try before the guard's local deadline.
fn longest_cadence(expiry: Duration) -> Duration {
    expiry / 4 * 3
}

/// The options of a lock.
///
/// # Which option counts
/// An `Options` value names some options and leaves the others open. For each option the nearest value counts:
///
/// 1. what the lock names (`locks.mutex(name).options(…)`),
/// 2. what its [`Locks`](crate::Locks) name (`with_options`, `LocksBuilder::options`),
/// 3. what the store's URL names (`?distlock.expiry=10s`, see [`Options::from_url`]),
/// 4. the default.
///
/// So options that are given later change only what they name, and code wins over the URL.
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    // Each is `None` until it is named.
    expiry: Option<Duration>,
    cadence: Option<Duration>,
    auto_extend: Option<bool>,
    busy_wait: Option<(Duration, Duration)>,
    adaptive_backoff: Option<bool>,
    hold_at_least: Option<Duration>,
    /// [`UNLIMITED`] if it is named as unlimited.
    max_hold: Option<Duration>,
    request_timeout: Option<Duration>,
    notice_break: Option<bool>,
}

fn refuse(what: String, advice: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidInput, what).advise(advice)
}

impl Options {
    /// Names no option. The defaults are: expiry 30 s, renewed every third of it, busy-wait sleep 10–800 ms at random.
    #[must_use]
    pub fn new() -> Self {
        Options::default()
    }

    /// These options, and those of `base` for what these do not name.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distlock_core::Options;
    ///
    /// # fn main() -> distlock_core::Result<()> {
    /// let service = Options::new().expiry(Duration::from_secs(9))?.adaptive_backoff(true);
    /// let job = Options::new().expiry(Duration::from_secs(60))?.over(&service);
    /// assert_eq!(job, Options::new().expiry(Duration::from_secs(60))?.adaptive_backoff(true));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn over(self, base: &Options) -> Self {
        Options {
            expiry: self.expiry.or(base.expiry),
            cadence: self.cadence.or(base.cadence),
            auto_extend: self.auto_extend.or(base.auto_extend),
            busy_wait: self.busy_wait.or(base.busy_wait),
            adaptive_backoff: self.adaptive_backoff.or(base.adaptive_backoff),
            hold_at_least: self.hold_at_least.or(base.hold_at_least),
            max_hold: self.max_hold.or(base.max_hold),
            request_timeout: self.request_timeout.or(base.request_timeout),
            notice_break: self.notice_break.or(base.notice_break),
        }
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
        if !self.extends() {
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
        self.auto_extend = Some(on);
        self
    }

    /// How long a waiter sleeps between two attempts where the store cannot wake it: a random time in this range, or what the
    /// store proposes within it. Default 10–800 ms.
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
        self.busy_wait = Some((min, max));
        Ok(self)
    }

    /// Sleeps min × 1.5ⁿ ± 20 % instead of a random time, never below min nor above max. Default off.
    #[must_use]
    pub fn adaptive_backoff(mut self, on: bool) -> Self {
        self.adaptive_backoff = Some(on);
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
        self.hold_at_least = Some(duration);
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

    /// Renews the lock for as long as it is held, whatever the options below name as the longest hold.
    #[must_use]
    pub fn unlimited_hold(mut self) -> Self {
        self.max_hold = Some(UNLIMITED);
        self
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
        self.request_timeout = Some(timeout);
        Ok(self)
    }

    /// Keeps the subscription for wake-ups open while the lock is held, so that a forced release is noticed within a
    /// round trip instead of at the next renewal. Default off: it costs one subscription for each process. It has no effect
    /// where the store cannot push, and on a lease that is not renewed.
    #[must_use]
    pub fn notice_break(mut self, on: bool) -> Self {
        self.notice_break = Some(on);
        self
    }

    /// Whether a holder listens for a forced release.
    #[must_use]
    pub fn notices_break(&self) -> bool {
        self.notice_break.unwrap_or(false)
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
        self.auto_extend.unwrap_or(true)
    }

    /// The least time a lock is kept.
    #[must_use]
    pub fn get_hold_at_least(&self) -> Duration {
        self.hold_at_least.unwrap_or(Duration::ZERO)
    }

    /// After how long a held lock is not renewed any more; `None` without a limit.
    #[must_use]
    pub fn get_max_hold(&self) -> Option<Duration> {
        self.max_hold.filter(|longest| *longest != UNLIMITED)
    }

    /// The time-out of one request.
    #[must_use]
    pub fn get_request_timeout(&self) -> Duration {
        self.request_timeout.unwrap_or(DEFAULT_REQUEST_TIMEOUT)
    }

    /// The range of the busy-wait sleep.
    #[must_use]
    pub fn get_busy_wait_sleep(&self) -> (Duration, Duration) {
        self.busy_wait.unwrap_or(DEFAULT_BUSY_WAIT)
    }

    /// How long to sleep after the `failures`-th attempt in a row that found the lock busy (from zero). The store may have
    /// proposed a time.
    #[must_use]
    pub(crate) fn sleep_after(&self, failures: u32, proposed: Option<Duration>) -> Duration {
        let (min, max) = self.get_busy_wait_sleep();
        if self.adaptive_backoff.unwrap_or(false) {
            let grown = min.as_secs_f64() * 1.5_f64.powi(failures.min(64).cast_signed());
            let jittered = grown.min(max.as_secs_f64()) * (0.8 + 0.4 * fastrand::f64());
            Duration::from_secs_f64(jittered.min(max.as_secs_f64())).max(min)
        } else if let Some(proposed) = proposed {
            proposed.clamp(min, max)
        } else {
            min + (max - min).mul_f64(fastrand::f64())
        }
    }
}

#[cfg(test)]
mod tests;
