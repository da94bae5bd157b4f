//! A wait in a transaction of the caller, in parts.
//!
//! A future that is dropped cannot always cancel its statement: sqlx has no cancel request, and one of tokio-postgres can be
//! lost. The statement would wait on, and the connection would be of no use to its pool. So no statement waits for longer than
//! a few seconds. The setting `lock_timeout` of the caller limits the whole wait and is the same afterwards.

use std::time::{Duration, Instant};

use distlock_core::store::support::errors;
use distlock_core::{Error, ErrorKind, Result};

/// How long a statement waits at most, if deadlocks are found within a part of that.
const PART: Duration = Duration::from_secs(2);
/// How much longer than `deadlock_timeout` a statement waits: the server looks for deadlocks after that time.
const AFTER_DEADLOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Two columns: the settings `lock_timeout` and `deadlock_timeout`.
pub(crate) const SETTINGS: &str =
    "SELECT pg_catalog.current_setting('lock_timeout'), pg_catalog.current_setting('deadlock_timeout')";

/// Ends a part that failed. The transaction stays usable, and its settings are those from before.
pub(crate) const ROLL_BACK: &str = "ROLLBACK TO SAVEPOINT distlock_wait; RELEASE SAVEPOINT distlock_wait";

/// The parts of one wait.
#[derive(Debug)]
pub(crate) struct WaitParts {
    /// The caller's `lock_timeout`, as the server writes it.
    setting: String,
    /// The same; `None` if there is no limit.
    limit: Option<Duration>,
    part: Duration,
    begun: Instant,
}

impl WaitParts {
    /// A wait that begins now, with the [`SETTINGS`] of the transaction.
    pub(crate) fn new(lock_timeout: &str, deadlock_timeout: &str) -> Result<Self> {
        let limit = duration(lock_timeout)?;
        let part = PART.max(duration(deadlock_timeout)?.saturating_add(AFTER_DEADLOCK_TIMEOUT));
        Ok(WaitParts {
            setting: lock_timeout.to_owned(),
            limit: (!limit.is_zero()).then_some(limit),
            part,
            begun: Instant::now(),
        })
    }

    /// Before the statement of a part: a savepoint, and the time limit of the statement.
    pub(crate) fn begin(&self) -> String {
        let left = self.limit.map(|limit| limit.saturating_sub(self.begun.elapsed()));
        let part = left.unwrap_or(self.part).min(self.part).as_millis().max(1);
        format!("SAVEPOINT distlock_wait; SET LOCAL lock_timeout = {part}")
    }

    /// After a part that brought the lock.
    pub(crate) fn end(&self) -> String {
        format!("RELEASE SAVEPOINT distlock_wait; SET LOCAL lock_timeout = '{}'", self.setting)
    }

    /// Whether to wait on after a part that ended with this error.
    pub(crate) fn goes_on(&self, error: &Error) -> bool {
        error.kind() == ErrorKind::Timeout && self.limit.is_none_or(|limit| self.begun.elapsed() < limit)
    }
}

/// A setting of the server: a whole number, and a unit unless it is 0.
fn duration(setting: &str) -> Result<Duration> {
    let digits = setting.find(|c: char| !c.is_ascii_digit()).unwrap_or(setting.len());
    let (number, unit) = setting.split_at(digits);
    let milliseconds = match unit {
        "" | "ms" => 1,
        "s" => 1_000,
        "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(unknown(setting)),
    };
    let number: u64 = number.parse().map_err(|_| unknown(setting))?;
    Ok(Duration::from_millis(number.saturating_mul(milliseconds)))
}

fn unknown(setting: &str) -> Error {
    errors::unexpected_reply(format!("the duration {setting:?} as a setting"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_longer_than_the_search_for_deadlocks_and_not_longer_than_the_callers_limit() {
        let part = |lock_timeout, deadlock_timeout| {
            let parts = WaitParts::new(lock_timeout, deadlock_timeout).unwrap();
            let begin = parts.begin();
            let at = begin.rfind(' ').unwrap();
            (begin[at + 1..].parse::<u64>().unwrap(), parts.goes_on(&Error::new(ErrorKind::Timeout, "late")))
        };
        assert_eq!(part("0", "1s"), (2_000, true));
        assert_eq!(part("0", "1min"), (61_000, true));
        let (milliseconds, goes_on) = part("500ms", "1s");
        assert!(milliseconds <= 500 && goes_on);
        let parts = WaitParts::new("1ms", "1s").unwrap();
        std::thread::sleep(Duration::from_millis(2));
        assert!(!parts.goes_on(&Error::new(ErrorKind::Timeout, "late")) && parts.begin().ends_with(" 1"));
        assert_eq!(parts.end(), "RELEASE SAVEPOINT distlock_wait; SET LOCAL lock_timeout = '1ms'");
        assert!(!WaitParts::new("0", "1s").unwrap().goes_on(&Error::new(ErrorKind::Deadlock, "deadlock")));
    }

    #[test]
    fn every_unit_of_the_server_is_understood() {
        for (setting, seconds) in
            [("0", 0), ("3000ms", 3), ("7s", 7), ("2min", 120), ("1h", 3600), ("2d", 172_800)]
        {
            assert_eq!(duration(setting).unwrap(), Duration::from_secs(seconds), "{setting}");
        }
        for setting in ["", "s", "-1", "5 parsecs"] {
            assert!(duration(setting).is_err(), "{setting}");
        }
    }
}
