//! Driver errors as ours: is the server unreachable, does it refuse us, and is the outcome of the request known?

use distlock_core::store::support::errors::{self, IS_IT_REACHABLE, brief};
use distlock_core::{Error, ErrorKind};
use mysql_async::{DriverError, Error as Driver, IoError, ServerError};

/// Lock wait time-out, for a row or for a table.
const LOCK_WAIT_TIMEOUT: u16 = 1205;
/// `NOWAIT` on MySQL; MariaDB answers with a lock wait time-out.
const LOCK_NOWAIT: u16 = 3572;
/// Victim of a deadlock; on Galera also a failed certification.
const DEADLOCK: u16 = 1213;
/// Group Replication's failed certification; a row that changed after the snapshot.
const CONFLICTS: [u16; 3] = [DEADLOCK, 3101, 1020];
const NO_SUCH_TABLE: u16 = 1146;

const ADD_LOGIN: &str = "put user:password into the URL: mysql://user:password@host/database";
const GRANT_RIGHTS: &str = "grant SELECT, INSERT, UPDATE and DELETE on the lock tables, and CREATE, or create them with `distlock schema`";
const END_TRANSACTION: &str = "find the session that keeps the row or the table locked (information_schema.innodb_trx, \
    SHOW PROCESSLIST) and end its transaction";
const USE_PRIMARY: &str = "connect to the server that takes writes";

/// A failed request: our error, and what the store does about it.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    pub(crate) cause: Cause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Another transaction was in the way; the same request succeeds when it is sent again.
    Conflict,
    /// A row or a table stays locked by another session.
    Locked,
    /// A table does not exist.
    NoTable,
    Other,
    /// The connection is of no use any more.
    Broken,
}

impl Failure {
    pub(crate) fn broken(error: Error) -> Self {
        Failure { error, cause: Cause::Broken }
    }

    /// Of a request that was not sent, since its row is known to stay locked.
    pub(crate) fn row_stays_locked() -> Self {
        let error = Error::new(ErrorKind::Unavailable, "its row stays locked by another session");
        Failure { error: error.advise(END_TRANSACTION), cause: Cause::Locked }
    }
}

/// The error of a statement that was sent.
pub(crate) fn of_statement(error: &Driver) -> Failure {
    match error {
        Driver::Server(server) => of_server(server),
        Driver::Driver(DriverError::PacketTooLarge) => Failure {
            error: Error::new(ErrorKind::Exhausted, "the request is larger than max_allowed_packet")
                .advise("raise max_allowed_packet on the server"),
            cause: Cause::Broken,
        },
        Driver::Io(IoError::Io(error)) => Failure::broken(errors::connection_lost(brief(error))),
        Driver::Io(error) => Failure::broken(errors::connection_lost(brief(error))),
        other => Failure::broken(errors::connection_lost(brief(other))),
    }
}

/// The error of a connection that was not made. Nothing was applied.
pub(crate) fn of_connecting(error: &Driver) -> Error {
    match error {
        Driver::Server(server) => {
            let error = of_server(server).error;
            match error.kind() {
                ErrorKind::Internal => errors::unavailable(shown(server)),
                _ => error,
            }
        }
        Driver::Io(IoError::Tls(error)) => Error::new(ErrorKind::Denied, format!("TLS: {}", brief(error)))
            .advise("check ssl-mode and ssl-ca, and the server's certificate"),
        Driver::Driver(DriverError::NoClientSslFlagFromServer) => {
            Error::new(ErrorKind::Denied, "the server does not offer TLS, and ssl-mode asks for it")
                .advise("enable TLS on the server")
        }
        Driver::Driver(DriverError::UnknownAuthPlugin { .. } | DriverError::CleartextPluginDisabled) => {
            Error::new(
                ErrorKind::Denied,
                "the account uses an authentication method that the driver does not have",
            )
            .advise("use mysql_native_password, caching_sha2_password or ed25519")
        }
        // What rustls refuses comes as invalid data.
        Driver::Io(IoError::Io(error)) if error.kind() == std::io::ErrorKind::InvalidData => {
            Error::new(ErrorKind::Denied, format!("TLS: {}", brief(error)))
                .advise("check ssl-mode and ssl-ca, and the server's certificate")
        }
        Driver::Io(IoError::Io(error)) => errors::unavailable(brief(error)),
        other => errors::unavailable(brief(other)),
    }
}

fn of_server(server: &ServerError) -> Failure {
    let (cause, error) = classify(server.code, &server.message, shown(server));
    Failure { error, cause }
}

fn shown(server: &ServerError) -> String {
    format!("{} (error {})", brief(&server.message), server.code)
}

fn classify(code: u16, message: &str, what: String) -> (Cause, Error) {
    let new = |kind, advice: &'static str| Error::new(kind, what.clone()).advise(advice);
    match code {
        code if CONFLICTS.contains(&code) => (
            Cause::Conflict,
            new(
                ErrorKind::Unavailable,
                "nothing was applied: it was in conflict with another transaction, on Galera perhaps with one on \
                 another node. Let all clients write to one node",
            ),
        ),
        LOCK_WAIT_TIMEOUT | LOCK_NOWAIT => (Cause::Locked, new(ErrorKind::Unavailable, END_TRANSACTION)),
        NO_SUCH_TABLE => (
            Cause::NoTable,
            new(ErrorKind::Corrupt, "create the tables with `distlock schema`, or connect again"),
        ),
        1045 | 1698 if message.contains("using password: NO") => {
            (Cause::Other, new(ErrorKind::Denied, ADD_LOGIN))
        }
        1045 | 1698 => (Cause::Other, new(ErrorKind::Denied, "check the user and the password in the URL")),
        // Access denied, of all other sorts.
        1044 | 1130 | 1142 | 1143 | 1227 | 1251 | 1370 | 1410 | 1862 | 1873 | 3118 | 4151 => {
            (Cause::Other, new(ErrorKind::Denied, GRANT_RIGHTS))
        }
        1049 => (
            Cause::Other,
            new(ErrorKind::InvalidInput, "create the database, or name another one in the URL"),
        ),
        // read_only, super_read_only, innodb_read_only, a read-only transaction.
        1290 | 1792 | 1836 | 3100 => (Cause::Other, new(ErrorKind::Unavailable, USE_PRIMARY)),
        1047 if message.contains("WSREP") => (
            Cause::Other,
            new(
                ErrorKind::Unavailable,
                "this Galera node is not part of a cluster with a quorum: use another node",
            ),
        ),
        1040 | 1203 | 1226 | 1461 => {
            (Cause::Other, new(ErrorKind::Unavailable, "raise max_connections, or use fewer clients"))
        }
        1021 | 1037 | 1038 | 1041 | 1114 | 1118 | 1153 | 1206 => {
            (Cause::Other, new(ErrorKind::Exhausted, "free some disk space or memory on the server"))
        }
        1054 | 1136 | 1264 | 1265 | 1364 | 1366 | 1406 | 1467 | 1690 => (
            Cause::Other,
            new(
                ErrorKind::Corrupt,
                "the tables are not as `distlock schema` creates them: use other names (distlock.table)",
            ),
        ),
        1665 => (
            Cause::Other,
            new(
                ErrorKind::Unsupported,
                "set binlog_format to ROW or MIXED: statements cannot be replicated safely",
            ),
        ),
        1286 | 1030 => (Cause::Other, new(ErrorKind::Unsupported, "enable InnoDB on the server")),
        // The server is shutting down, the connection or the statement was killed, the commit failed half-way.
        1053 | 1077 | 1079 | 1152 | 1158..=1161 | 1180 | 1184 | 1317 | 1927 | 1969 | 3024 | 3169 | 4031 => {
            (Cause::Broken, new(ErrorKind::Unavailable, IS_IT_REACHABLE).with_unknown_outcome())
        }
        _ => (
            Cause::Other,
            new(ErrorKind::Internal, "this is unexpected: report it with the server's version"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: u16, message: &str) -> Failure {
        of_server(&ServerError { code, message: message.to_owned(), state: "HY000".to_owned() })
    }

    #[test]
    fn the_outcome_is_unknown_only_where_it_is() {
        for (code, cause, kind, unknown) in [
            (1213, Cause::Conflict, ErrorKind::Unavailable, false),
            (3101, Cause::Conflict, ErrorKind::Unavailable, false),
            (1205, Cause::Locked, ErrorKind::Unavailable, false),
            (3572, Cause::Locked, ErrorKind::Unavailable, false),
            (1142, Cause::Other, ErrorKind::Denied, false),
            (1290, Cause::Other, ErrorKind::Unavailable, false),
            (1053, Cause::Broken, ErrorKind::Unavailable, true),
            (1927, Cause::Broken, ErrorKind::Unavailable, true),
            (1180, Cause::Broken, ErrorKind::Unavailable, true),
            (1146, Cause::NoTable, ErrorKind::Corrupt, false),
            (9999, Cause::Other, ErrorKind::Internal, false),
        ] {
            let failure = of(code, "text");
            let error = &failure.error;
            assert_eq!(
                (failure.cause, error.kind(), error.is_outcome_unknown()),
                (cause, kind, unknown),
                "{error}"
            );
        }
    }

    #[test]
    fn a_galera_conflict_is_explained() {
        let failure = of(1213, "Deadlock found when trying to get lock; try restarting transaction");
        assert!(failure.error.to_string().contains("Galera"), "{}", failure.error);
        let failure = of(1047, "WSREP has not yet prepared node for application use");
        assert_eq!(failure.error.kind(), ErrorKind::Unavailable);
        assert!(failure.error.to_string().contains("quorum"), "{}", failure.error);
    }
}
