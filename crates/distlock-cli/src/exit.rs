//! The exit codes of the command, and the errors that lead to them.

use distlock::{Error, ErrorKind};

/// The lock is free: nothing to show or to break.
pub(crate) const FREE: u8 = 1;
/// Wrong usage: a bad option, name or URL, or a request that the store does not support.
pub(crate) const USAGE: u8 = 64;
/// The store is unavailable, or denied access.
pub(crate) const UNAVAILABLE: u8 = 69;
/// The lock was not acquired: busy, or timed out.
pub(crate) const BUSY: u8 = 75;
/// The lock was lost while the command ran.
pub(crate) const LOST: u8 = 76;
/// The command exists and cannot be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// The command was not found.
pub(crate) const NOT_FOUND: u8 = 127;

/// Why `distlock` fails: the exit code, and a message unless it was written already.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) message: Option<String>,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Failure { code, message: Some(message.into()) }
    }

    /// Wrong usage.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Failure::new(USAGE, message)
    }

    /// The message was written already.
    pub(crate) fn silent(code: u8) -> Self {
        Failure { code, message: None }
    }

    /// A signal ended `distlock`.
    pub(crate) fn signal(number: i32) -> Self {
        Failure::silent(of_signal(number))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::new(of_kind(error.kind()), format!("{error:#}"))
    }
}

/// The exit code for an error of the library. Kinds that are added later count as a failed store.
pub(crate) fn of_kind(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::InvalidInput | ErrorKind::Unsupported | ErrorKind::Mismatch => USAGE,
        ErrorKind::Timeout => BUSY,
        ErrorKind::Lost => LOST,
        _ => UNAVAILABLE,
    }
}

/// The exit code for a process that a signal ended, as shells count.
pub(crate) fn of_signal(number: i32) -> u8 {
    u8::try_from(128_i32.saturating_add(number)).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contention_an_outage_and_wrong_usage_have_different_codes() {
        assert_eq!(of_kind(ErrorKind::Timeout), 75);
        assert_eq!(of_kind(ErrorKind::Lost), 76);
        for kind in [ErrorKind::Unavailable, ErrorKind::Denied, ErrorKind::Exhausted, ErrorKind::Corrupt] {
            assert_eq!(of_kind(kind), 69);
        }
        for kind in [ErrorKind::InvalidInput, ErrorKind::Unsupported, ErrorKind::Mismatch] {
            assert_eq!(of_kind(kind), 64);
        }
        assert_eq!(of_signal(15), 143);
    }
}
