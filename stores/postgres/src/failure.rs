//! What the server's errors mean, and what to do about them.

use std::error::Error as _;

use distlock_core::{Error, ErrorKind};
use tokio_postgres::error::SqlState;

/// The error of a statement. If the connection broke, nobody knows whether it was carried out.
pub(crate) fn of_statement(error: &tokio_postgres::Error) -> Error {
    match error.as_db_error() {
        Some(said) => of_server(said.code(), said.message()),
        None if error.is_closed() || error.source().is_some_and(|cause| cause.is::<std::io::Error>()) => {
            Error::new(ErrorKind::Unavailable, format!("the connection ended: {}", words(error)))
                .with_unknown_outcome()
                .advise("check that the server runs and can be reached from here")
        }
        None => Error::new(ErrorKind::Internal, words(error)).with_unknown_outcome(),
    }
}

/// The error of an attempt to connect: nothing was carried out.
pub(crate) fn of_connecting(error: &tokio_postgres::Error) -> Error {
    if let Some(said) = error.as_db_error() {
        return of_server(said.code(), said.message());
    }
    let text = words(error);
    if text.contains("database does not allow writes") {
        return read_only(&text);
    }
    if text.contains("invalid configuration") || text.contains("password missing") {
        return Error::new(ErrorKind::Denied, text).advise("give a user and a password in the URL");
    }
    Error::new(ErrorKind::Unavailable, text).advise("check that the server runs and can be reached from here")
}

/// The whole chain in one line, without what its parts repeat.
fn words(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let said = cause.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        next = cause.source();
    }
    text.replace('\n', " ")
}

fn read_only(said: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("this server takes no writes: {said}"))
        .advise("connect to the primary; with several hosts in the URL the one that takes writes is found")
}

fn of_server(code: &SqlState, said: &str) -> Error {
    let said = said.replace('\n', " ");
    let number = code.code();
    match number {
        "25006" => read_only(&said),
        "42501" => Error::new(ErrorKind::Denied, said).advise(
            "let the owner of the database run what `distlock schema` prints, and grant the role its rights",
        ),
        "53100" | "53400" => {
            Error::new(ErrorKind::Exhausted, said).with_retry(true).advise("make room on the server")
        }
        "53200" => Error::new(ErrorKind::Exhausted, said).with_retry(true).advise(
            "raise max_locks_per_transaction on the server if its lock table is full, or give it memory",
        ),
        "53300" => Error::new(ErrorKind::Exhausted, said)
            .with_retry(true)
            .advise("raise max_connections on the server, or put PgBouncer in front of it"),
        "40001" | "40P01" => Error::new(ErrorKind::Unavailable, format!("{said}, again and again")),
        "55P03" => row_locked(None),
        "57014" => Error::new(ErrorKind::Unavailable, said)
            .advise("find out who cancels statements, or raise statement_timeout"),
        "3F000" | "42P01" | "42703" => Error::new(ErrorKind::Corrupt, said)
            .advise("create the tables as `distlock schema` prints them, or name others with distlock.table"),
        "3D000" => {
            Error::new(ErrorKind::Denied, said).advise("create the database, or name another in the URL")
        }
        _ if number.starts_with("28") => {
            Error::new(ErrorKind::Denied, said).advise("check user, password and pg_hba.conf")
        }
        // The session ends or never began. What was under way may have been carried out.
        _ if number.starts_with("08") || number.starts_with("57P") => {
            let error =
                Error::new(ErrorKind::Unavailable, said).advise("check that the server runs and stays up");
            if matches!(number, "57P03" | "08001" | "08004") { error } else { error.with_unknown_outcome() }
        }
        _ => Error::new(ErrorKind::Internal, format!("the server said {number}: {said}"))
            .advise("please report this"),
    }
}

/// Another session keeps the row of a lock locked, so that nothing was changed. `pid`: its process, if that is known.
pub(crate) fn row_locked(pid: Option<i32>) -> Error {
    let detail = "its row in the lock table is locked by another session";
    let (detail, advice) = match pid {
        Some(pid) => (
            format!("{detail} (pid {pid})"),
            format!(
                "look what pid {pid} does in pg_stat_activity, and end its transaction: pg_terminate_backend({pid})"
            ),
        ),
        None => (
            detail.to_owned(),
            "look for it in pg_stat_activity, pg_locks and pg_prepared_xacts, and end its transaction"
                .to_owned(),
        ),
    };
    Error::new(ErrorKind::Unavailable, detail).caused_by(RowLocked).advise(advice)
}

/// Below an error: a row was locked by another session.
#[derive(Debug)]
struct RowLocked;

impl std::fmt::Display for RowLocked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A part of the error above it, which does not repeat it then.
        f.write_str("locked by another session")
    }
}

impl std::error::Error for RowLocked {}

pub(crate) fn is_row_locked(error: &Error) -> bool {
    std::error::Error::source(error).is_some_and(|cause| cause.is::<RowLocked>())
}

/// Rolled back because of somebody else: to be done again at once.
pub(crate) fn is_conflict(error: &tokio_postgres::Error) -> bool {
    has_code(error, &[SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED])
}

/// A table of ours is not there: it was dropped, or the database is another one than before.
pub(crate) fn is_missing_table(error: &tokio_postgres::Error) -> bool {
    has_code(error, &[SqlState::UNDEFINED_TABLE, SqlState::INVALID_SCHEMA_NAME])
}

/// The server does not know a prepared statement: something between us and it gives us other sessions.
pub(crate) fn is_lost_statement(error: &tokio_postgres::Error) -> bool {
    has_code(error, &[SqlState::INVALID_SQL_STATEMENT_NAME, SqlState::DUPLICATE_PSTATEMENT])
}

/// The server behind this connection became a replica, or will not be the one for long.
pub(crate) fn is_read_only(error: &tokio_postgres::Error) -> bool {
    has_code(error, &[SqlState::READ_ONLY_SQL_TRANSACTION])
}

/// The server ends a session that has been idle for `idle_session_timeout`.
pub(crate) fn is_idle_too_long(error: &tokio_postgres::Error) -> bool {
    has_code(error, &[SqlState::IDLE_SESSION_TIMEOUT])
}

pub(crate) fn has_code(error: &tokio_postgres::Error, codes: &[SqlState]) -> bool {
    error.code().is_some_and(|code| codes.contains(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_codes_become_kinds_that_say_what_to_do() {
        for (code, kind, retry, unknown) in [
            ("25006", ErrorKind::Unavailable, true, false),
            ("42501", ErrorKind::Denied, false, false),
            ("28P01", ErrorKind::Denied, false, false),
            ("3D000", ErrorKind::Denied, false, false),
            ("53100", ErrorKind::Exhausted, true, false),
            ("53300", ErrorKind::Exhausted, true, false),
            ("57P01", ErrorKind::Unavailable, true, true),
            ("57P03", ErrorKind::Unavailable, true, false),
            ("57014", ErrorKind::Unavailable, true, false),
            ("42703", ErrorKind::Corrupt, false, false),
            ("XX000", ErrorKind::Internal, false, false),
        ] {
            let error = of_server(&SqlState::from_code(code), "it said no");
            assert_eq!(error.kind(), kind, "{code}");
            assert_eq!((error.can_retry(), error.is_outcome_unknown()), (retry, unknown), "{code}");
            assert!(error.to_string().contains("it said no"), "{error}");
        }
    }
}
