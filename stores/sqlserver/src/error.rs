//! The driver's errors as ours: what failed, where, what to do.

use distlock_core::store::support::errors::{self, IS_IT_REACHABLE, brief};
use distlock_core::{Error, ErrorKind};
use tiberius::error::Error as Driver;

const GRANT_RIGHTS: &str = "create the table and the sequence with `distlock schema` and grant the login SELECT, INSERT, UPDATE and DELETE \
     on the table and UPDATE on the sequence, or go without fencing tokens (distlock.tokens=off)";
const USE_PRIMARY: &str = "connect to the primary replica: through the listener of the availability group, without \
     ApplicationIntent=ReadOnly; or go without fencing tokens (distlock.tokens=off)";

/// What a failure means for the connection and for the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The connection is of no more use. The session ends, and with it what it holds.
    Broken,
    /// The server refused a statement; the session goes on.
    Server(u32),
}

#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    pub(crate) cause: Cause,
}

impl Failure {
    pub(crate) fn broken(error: Error) -> Self {
        Failure { error, cause: Cause::Broken }
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.cause == Cause::Broken
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        failure.error
    }
}

/// Of connecting or logging in: nothing was applied.
pub(crate) fn of_connecting(error: &Driver) -> Error {
    match error {
        Driver::Server(server) => classify(server.code(), server.message()).1,
        Driver::Tls(what) => Error::new(ErrorKind::Denied, format!("TLS: {}", brief(what))).advise(
            "check the server's certificate, trustservercertificateca, hostnameincertificate and encrypt; a server \
             without TLS is reached with encrypt=danger_plaintext",
        ),
        Driver::Io { kind, message } => {
            let what = brief(message);
            // What rustls refuses comes as invalid data.
            if *kind == std::io::ErrorKind::InvalidData {
                return Error::new(ErrorKind::Denied, format!("TLS: {what}"))
                    .advise("check the server's certificate, trustservercertificateca and hostnameincertificate");
            }
            errors::unavailable(what)
        }
        other => errors::unavailable(brief(other)),
    }
}

/// Of a statement.
pub(crate) fn of_statement(error: &Driver) -> Failure {
    match error {
        Driver::Server(server) => {
            let (is_broken, error) = classify(server.code(), server.message());
            // From severity 20 on the server closes the connection.
            if is_broken || server.class() >= 20 {
                return Failure::broken(error.with_unknown_outcome());
            }
            Failure { error, cause: Cause::Server(server.code()) }
        }
        other => Failure::broken(errors::connection_lost(brief(other))),
    }
}

/// Whether the session ends with it, and our error.
fn classify(code: u32, message: &str) -> (bool, Error) {
    let what = format!("{} (error {code})", brief(message));
    let new = |kind, advice: &'static str| Error::new(kind, what.clone()).advise(advice);
    match code {
        1205 => (
            false,
            new(
                ErrorKind::Unavailable,
                "nothing was applied: the server chose it as the victim of a deadlock",
            ),
        ),
        1222 => (
            false,
            new(
                ErrorKind::Unavailable,
                "find the session that keeps a row of the holders' table locked, and end it",
            ),
        ),
        // Login failed, also for a state, an expired password or a disabled login.
        18456 | 18470 | 18486 | 18487 | 18488 | 18452 | 33147 => {
            (false, new(ErrorKind::Denied, "check the login: user and password, or the access token"))
        }
        4060 | 911 | 40532 => {
            (false, new(ErrorKind::Denied, "name a database that exists and that the login may use"))
        }
        // A client address that the firewall of Azure SQL does not let in.
        40615 | 40914 => {
            (false, new(ErrorKind::Denied, "allow this client's address in the server's firewall"))
        }
        // A readable secondary, a read-only database; a secondary that allows no connections.
        3906 | 3908 | 3961 | 3958 | 976 | 978 | 979 | 982 => {
            (false, new(ErrorKind::Unavailable, USE_PRIMARY))
        }
        229 | 230 | 262 | 297 | 300 | 2760 | 15151 | 15247 | 6102 => {
            (false, new(ErrorKind::Denied, GRANT_RIGHTS))
        }
        208 | 2812 => (
            false,
            new(
                ErrorKind::Corrupt,
                "create the table and the sequence with `distlock schema`, or connect again",
            ),
        ),
        207 | 213 | 245 | 515 | 8152 | 2628 => (
            false,
            new(
                ErrorKind::Corrupt,
                "the table is not as `distlock schema` creates it: use another name (distlock.table)",
            ),
        ),
        11728 => (
            false,
            new(ErrorKind::Exhausted, "the sequence has no more tokens: use another name (distlock.table)"),
        ),
        1105 | 9002 | 701 | 1204 | 17803 | 10928 | 10929 | 49918 | 49919 | 49920 => (
            false,
            new(ErrorKind::Exhausted, "free some space or memory on the server, or use fewer sessions"),
        ),
        // The server shuts down, the database goes away or fails over, the session was killed.
        596 | 6005 | 6006 | 17142 | 924 | 926 | 927 | 945 | 952 | 983 | 40197 | 40501 | 40613 => {
            (true, new(ErrorKind::Unavailable, IS_IT_REACHABLE))
        }
        // A compatible server has no number of its own for it.
        _ if message.starts_with("permission denied") => (false, new(ErrorKind::Denied, GRANT_RIGHTS)),
        _ => (false, new(ErrorKind::Internal, "this is unexpected: report it with the server's version")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_only_replica_and_missing_rights_say_what_to_do() {
        let (broken, error) =
            classify(3906, "Failed to update database \"app\" because the database is read-only.");
        assert!(!broken && error.kind() == ErrorKind::Unavailable);
        assert!(
            error.to_string().contains("primary") && error.to_string().contains("distlock.tokens=off"),
            "{error}"
        );
        for (code, message) in [
            (229, "The UPDATE permission was denied on the object 't_token'"),
            (33_557_097, "permission denied for schema master_dbo"),
        ] {
            let (_, error) = classify(code, message);
            assert_eq!(error.kind(), ErrorKind::Denied);
            let text = error.to_string();
            assert!(text.contains("distlock schema") && text.contains("tokens=off"), "{text}");
        }
    }

    #[test]
    fn the_session_ends_only_where_it_does() {
        for (code, broken, kind) in [
            (18456, false, ErrorKind::Denied),
            (4060, false, ErrorKind::Denied),
            (1205, false, ErrorKind::Unavailable),
            (596, true, ErrorKind::Unavailable),
            (40613, true, ErrorKind::Unavailable),
            (208, false, ErrorKind::Corrupt),
            (9002, false, ErrorKind::Exhausted),
            (99_999, false, ErrorKind::Internal),
        ] {
            let (is_broken, error) = classify(code, "text");
            assert_eq!((is_broken, error.kind()), (broken, kind), "{code}");
        }
    }

    #[test]
    fn a_lost_connection_has_an_unknown_outcome_and_a_failed_login_has_not() {
        let io = Driver::Io { kind: std::io::ErrorKind::ConnectionReset, message: "reset".into() };
        let failure = of_statement(&io);
        assert!(failure.is_broken() && failure.error.is_outcome_unknown());
        assert!(!of_connecting(&io).is_outcome_unknown());
    }
}
