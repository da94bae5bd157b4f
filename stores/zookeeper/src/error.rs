//! What an error of the driver says about a request, and the error of ours for it.

use distlock_core::store::support::errors::{connection_lost, unavailable};
use distlock_core::{Error, ErrorKind};
use zookeeper_client::Error as DriverError;

/// What is known about a request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The server refused it: nothing was applied.
    Refused,
    /// The connection broke: it may have been applied.
    Unknown,
    /// The session ended: its nodes are gone or about to go.
    SessionEnded,
}

impl Failure {
    pub(crate) fn of(error: &DriverError) -> Self {
        match error {
            DriverError::SessionExpired
            | DriverError::SessionMoved
            | DriverError::AuthFailed
            | DriverError::ClientClosed => Failure::SessionEnded,
            DriverError::NoNode
            | DriverError::NoAuth
            | DriverError::BadVersion
            | DriverError::NoChildrenForEphemerals
            | DriverError::NodeExists
            | DriverError::NotEmpty
            | DriverError::InvalidAcl
            | DriverError::NotReadOnly
            | DriverError::NoWatcher
            | DriverError::QuotaExceeded
            | DriverError::Throttled
            | DriverError::MarshallingError
            | DriverError::Unimplemented
            | DriverError::BadArguments(_)
            | DriverError::UnexpectedErrorCode(_) => Failure::Refused,
            // A broken connection is any error of the operating system in the driver's words.
            _ => Failure::Unknown,
        }
    }
}

/// The error for a driver's error.
pub(crate) fn driver_error(error: &DriverError) -> Error {
    let refused = |kind: ErrorKind, advice: &'static str| Error::new(kind, error.to_string()).advise(advice);
    match error {
        DriverError::NoAuth | DriverError::InvalidAcl => refused(
            ErrorKind::Denied,
            "log in as the user that may write there (zookeeper://user:password@…), or choose another chroot",
        ),
        DriverError::AuthFailed => refused(ErrorKind::Denied, "check the user and the password"),
        DriverError::QuotaExceeded => refused(ErrorKind::Exhausted, "raise the quota of the chroot"),
        DriverError::Unimplemented => {
            refused(ErrorKind::Unsupported, "use ZooKeeper 3.5 or later on all servers")
        }
        DriverError::Throttled | DriverError::NotReadOnly => unavailable(error.to_string()),
        DriverError::NoHosts | DriverError::Timeout => unavailable("no server accepted a session"),
        DriverError::SessionExpired | DriverError::SessionMoved | DriverError::ClientClosed => {
            session_ended()
        }
        _ if Failure::of(error) == Failure::Refused => Error::new(ErrorKind::Internal, error.to_string()),
        _ => connection_lost(error),
    }
}

/// The session ended before the request was answered. Its nodes go with it.
pub(crate) fn session_ended() -> Error {
    unavailable("the session ended before the server answered")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_connection_leaves_the_outcome_unknown_and_a_refusal_does_not() {
        assert_eq!(Failure::of(&DriverError::ConnectionLoss), Failure::Unknown);
        assert_eq!(Failure::of(&DriverError::Timeout), Failure::Unknown);
        assert_eq!(Failure::of(&DriverError::NoNode), Failure::Refused);
        assert_eq!(Failure::of(&DriverError::SessionExpired), Failure::SessionEnded);
        assert!(driver_error(&DriverError::ConnectionLoss).is_outcome_unknown());
        assert!(!driver_error(&DriverError::NoAuth).is_outcome_unknown());
    }

    #[test]
    fn every_refusal_that_a_user_can_cause_says_what_to_do() {
        for (error, kind) in [
            (DriverError::NoAuth, ErrorKind::Denied),
            (DriverError::AuthFailed, ErrorKind::Denied),
            (DriverError::QuotaExceeded, ErrorKind::Exhausted),
            (DriverError::Unimplemented, ErrorKind::Unsupported),
            (DriverError::NoHosts, ErrorKind::Unavailable),
            (DriverError::SessionExpired, ErrorKind::Unavailable),
        ] {
            let ours = driver_error(&error);
            assert_eq!(ours.kind(), kind, "{ours}");
            assert!(ours.advice().is_some(), "{ours}");
        }
    }
}
