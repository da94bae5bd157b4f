//! The options of locks in a store's URL: the same on every store.

use super::Options;
use crate::error::{Error, Result};
use crate::store::url::parse_duration;
use crate::store::{StoreUrl, UrlOption};

/// The `distlock.` parameters that every store's URL may have: the [`Options`] that locks begin with. Their names are those
/// of the setters.
pub const LOCK_OPTIONS: &[UrlOption] = &[
    UrlOption {
        name: EXPIRY,
        value: "duration",
        default: "30s",
        meaning: "how long a lock outlives a holder that died",
    },
    UrlOption {
        name: CADENCE,
        value: "duration",
        default: "",
        meaning: "how often a held lock is renewed; a third of the expiry if it is left out",
    },
    UrlOption {
        name: AUTO_EXTEND,
        value: "on|off",
        default: "on",
        meaning: "whether held locks are renewed in the background",
    },
    UrlOption {
        name: REQUEST_TIMEOUT,
        value: "duration",
        default: "5s",
        meaning: "how long one request to the store may take before it counts as failed",
    },
    UrlOption {
        name: BUSY_WAIT,
        value: "range",
        default: "10ms-800ms",
        meaning: "how long a waiter sleeps between two attempts where the store cannot wake it",
    },
    UrlOption {
        name: BACKOFF,
        value: "on|off",
        default: "off",
        meaning: "whether that sleep grows from the smallest to the largest time instead of being random",
    },
    UrlOption {
        name: HOLD_AT_LEAST,
        value: "duration",
        default: "0s",
        meaning: "how long a lock is kept after its grant, also when it is released earlier",
    },
    UrlOption {
        name: MAX_HOLD,
        value: "duration",
        default: "",
        meaning: "after how long a held lock is not renewed any more; without a limit if it is left out",
    },
    UrlOption {
        name: NOTICE_BREAK,
        value: "on|off",
        default: "off",
        meaning: "whether a holder listens for a forced release, to notice it before the next renewal",
    },
];

const EXPIRY: &str = "expiry";
const CADENCE: &str = "extension_cadence";
const AUTO_EXTEND: &str = "auto_extend";
const REQUEST_TIMEOUT: &str = "request_timeout";
const BUSY_WAIT: &str = "busy_wait_sleep";
const BACKOFF: &str = "adaptive_backoff";
const HOLD_AT_LEAST: &str = "hold_at_least";
const MAX_HOLD: &str = "max_hold";
const NOTICE_BREAK: &str = "notice_break";

const RANGE: &str = "two times such as 10ms-800ms";

impl Options {
    /// Takes the options of locks ([`LOCK_OPTIONS`]) out of a store's URL. [`Driver::open`](crate::store::Driver::open) does
    /// it; a program that reads a store's configuration from a URL itself does it first.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distlock_core::{Options, store::StoreUrl};
    ///
    /// # fn main() -> distlock_core::Result<()> {
    /// let mut url = StoreUrl::parse("redis://cache?distlock.expiry=9s&distlock.request_timeout=500ms")?;
    /// let options = Options::from_url(&mut url)?;
    /// assert_eq!(options.get_expiry(), Duration::from_secs(9));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for a value of the wrong grammar, one that its setter
    /// refuses, and for values that do not [fit each other](Options::check).
    pub fn from_url(url: &mut StoreUrl) -> Result<Self> {
        let mut options = Options::new();
        let shown = url.to_string();
        let named = |key: &str, error: Error| {
            let advice = error.advice().unwrap_or_default().to_owned();
            error.doing(format!("use distlock.{key} of the store URL")).on(shown.clone()).advise(advice)
        };
        for (key, set) in [
            (EXPIRY, Options::expiry as fn(Options, std::time::Duration) -> Result<Options>),
            (CADENCE, Options::extension_cadence),
            (REQUEST_TIMEOUT, Options::request_timeout),
            (HOLD_AT_LEAST, Options::hold_at_least),
            (MAX_HOLD, Options::max_hold),
        ] {
            if let Some(duration) = url.take_duration(key)? {
                options = set(options, duration).map_err(|error| named(key, error))?;
            }
        }
        for (key, set) in [
            (AUTO_EXTEND, Options::auto_extend as fn(Options, bool) -> Options),
            (BACKOFF, Options::adaptive_backoff),
            (NOTICE_BREAK, Options::notice_break),
        ] {
            if let Some(on) = url.take_switch(key)? {
                options = set(options, on);
            }
        }
        if let Some(range) = url.take(BUSY_WAIT) {
            let times = range.split_once('-').map(|(min, max)| (parse_duration(min), parse_duration(max)));
            let Some((Some(min), Some(max))) = times else { return Err(url.refuse_value(BUSY_WAIT, RANGE)) };
            options = options.busy_wait_sleep(min, max).map_err(|error| named(BUSY_WAIT, error))?;
        }
        options.check().map_err(|error| named(CADENCE, error))?;
        url.know_lock_options();
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ErrorKind;

    const MS: Duration = Duration::from_millis(1);

    fn read(query: &str) -> Result<Options> {
        let mut url = StoreUrl::parse(&format!("x://h?{query}"))?;
        url.accept(&["x"])?;
        let options = Options::from_url(&mut url)?;
        url.refuse_unknown(&[])?;
        Ok(options)
    }

    #[test]
    fn every_setter_has_a_parameter_of_its_name() {
        let all = "distlock.expiry=9s&distlock.extension_cadence=1s&distlock.auto_extend=off\
                   &distlock.request_timeout=500ms&distlock.busy_wait_sleep=1ms-2ms&distlock.adaptive_backoff=on\
                   &distlock.hold_at_least=3ms&distlock.max_hold=4s&distlock.notice_break=on";
        let options = Options::new()
            .expiry(9000 * MS)
            .and_then(|options| options.extension_cadence(1000 * MS))
            .and_then(|options| options.busy_wait_sleep(MS, 2 * MS))
            .and_then(|options| options.hold_at_least(3 * MS))
            .and_then(|options| options.max_hold(4000 * MS))
            .and_then(|options| options.request_timeout(500 * MS))
            .unwrap();
        assert_eq!(read(all).unwrap(), options.auto_extend(false).adaptive_backoff(true).notice_break(true));
        assert!(LOCK_OPTIONS.iter().all(|option| all.contains(&format!("distlock.{}=", option.name))));
        assert_eq!(read("").unwrap(), Options::new());
    }

    #[test]
    fn a_value_that_the_setter_refuses_is_refused_and_its_parameter_is_named() {
        for (query, key) in [
            ("expiry=1ms", "expiry"),
            ("expiry=10", "expiry"),
            ("extension_cadence=1ms", "extension_cadence"),
            ("extension_cadence=29s", "extension_cadence"),
            ("request_timeout=1h", "request_timeout"),
            ("busy_wait_sleep=10ms", "busy_wait_sleep"),
            ("busy_wait_sleep=10ms-", "busy_wait_sleep"),
            ("busy_wait_sleep=10ms-1ms", "busy_wait_sleep"),
            ("adaptive_backoff=yes", "adaptive_backoff"),
            ("max_hold=0s", "max_hold"),
            ("expire=10s", "expiry"),
        ] {
            let error = read(&format!("distlock.{query}")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{query}: {error}");
            assert!(error.to_string().contains(&format!("distlock.{key}")), "{query}: {error}");
            assert!(error.to_string().contains("x://***"), "{query}: {error}");
        }
    }
}
