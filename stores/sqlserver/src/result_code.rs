//! What `sp_getapplock` returns.

use distlock_core::store::support::errors;
use distlock_core::{Error, ErrorKind};

/// What came of asking for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Granted,
    /// Not within the time-out.
    Busy,
    /// The server cancelled the request.
    Cancelled,
    Deadlock,
    /// A parameter was refused, or something else failed. Some servers that are compatible with SQL Server return it also for a
    /// lock that is not free at a time-out of 0.
    Refused,
    Unknown(i32),
}

impl Outcome {
    /// `code` is what `sp_getapplock` returned. `free` is what `APPLOCK_TEST` said afterwards, where it was asked: 0 if the
    /// lock is held.
    pub(crate) fn of(code: i32, timeout_ms: i32, free: Option<i32>) -> Self {
        match code {
            // At once; after a wait.
            0 | 1 => Outcome::Granted,
            -1 => Outcome::Busy,
            -2 => Outcome::Cancelled,
            -3 => Outcome::Deadlock,
            -999 if timeout_ms == 0 && free == Some(0) => Outcome::Busy,
            -999 => Outcome::Refused,
            other => Outcome::Unknown(other),
        }
    }

    /// The error for an outcome that is neither granted nor busy.
    pub(crate) fn error(self) -> Error {
        match self {
            Outcome::Cancelled => errors::unavailable("the server cancelled the wait (result -2)"),
            Outcome::Deadlock => Error::new(
                ErrorKind::Deadlock,
                "the server ended the wait: sessions wait for each other (result -3)",
            )
            .advise("acquire locks in the same order everywhere"),
            Outcome::Refused => Error::new(ErrorKind::Denied, "the server refused the lock (result -999)")
                .advise("check that the database principal exists and that the login is a member of it (distlock.principal)"),
            Outcome::Granted | Outcome::Busy => errors::unexpected_reply(self),
            Outcome::Unknown(code) => {
                Error::new(ErrorKind::Internal, format!("sp_getapplock returned {code}, which is not documented"))
                    .with_unknown_outcome()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_documented_code_is_understood() {
        for (code, timeout, free, outcome) in [
            (0, 0, None, Outcome::Granted),
            (1, -1, None, Outcome::Granted),
            (-1, 0, None, Outcome::Busy),
            (-1, 250, None, Outcome::Busy),
            (-2, -1, None, Outcome::Cancelled),
            (-3, -1, None, Outcome::Deadlock),
            (-999, -1, None, Outcome::Refused),
            (7, 0, None, Outcome::Unknown(7)),
        ] {
            assert_eq!(Outcome::of(code, timeout, free), outcome);
        }
    }

    #[test]
    fn a_refusal_is_contention_only_if_the_lock_is_held_and_nothing_was_waited_for() {
        assert_eq!(Outcome::of(-999, 0, Some(0)), Outcome::Busy);
        assert_eq!(Outcome::of(-999, 0, Some(1)), Outcome::Refused);
        assert_eq!(Outcome::of(-999, 0, None), Outcome::Refused);
        assert_eq!(Outcome::of(-999, 100, Some(0)), Outcome::Refused);
    }

    #[test]
    fn no_failure_looks_like_contention() {
        for outcome in [Outcome::Cancelled, Outcome::Deadlock, Outcome::Refused, Outcome::Unknown(9)] {
            let error = outcome.error();
            assert!(error.to_string().contains("-2") || error.kind() != ErrorKind::Unavailable, "{error}");
        }
        assert_eq!(Outcome::Deadlock.error().kind(), ErrorKind::Deadlock);
        assert_eq!(Outcome::Refused.error().kind(), ErrorKind::Denied);
    }
}
