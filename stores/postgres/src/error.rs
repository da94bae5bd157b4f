//! Errors of the driver and the server → ours, with advice.

use std::borrow::Borrow;
use std::error::Error as _;

use distlock_core::store::support::errors;
use distlock_core::{Error, ErrorKind};
use tokio_postgres::error::{DbError, Severity, SqlState};

const ADD_LOGIN: &str = "put user:password into the URL: postgres://user:password@host/database";

/// The error of a statement. If the connection broke, its outcome is unknown.
pub(crate) fn from_statement(error: impl Borrow<tokio_postgres::Error>) -> Error {
    let error = error.borrow();
    match error.as_db_error() {
        Some(reply) => from_server(reply.code(), reply.message()),
        None if error.is_closed() || error.source().is_some_and(|cause| cause.is::<std::io::Error>()) => {
            errors::connection_lost(chain(error))
        }
        None => Error::new(ErrorKind::Internal, chain(error)).with_unknown_outcome(),
    }
}

/// The error of an attempt to connect. Nothing was applied.
pub(crate) fn from_connect(error: impl Borrow<tokio_postgres::Error>) -> Error {
    let error = error.borrow();
    if let Some(reply) = error.as_db_error() {
        return from_server(reply.code(), reply.message());
    }
    let text = chain(error);
    if text.contains("database does not allow writes") {
        return read_only(&text);
    }
    if text.contains("invalid configuration") || text.contains("password missing") {
        return Error::new(ErrorKind::Denied, "the server requires a password").advise(ADD_LOGIN);
    }
    errors::unavailable(text.trim_start_matches("error connecting to server: ").to_owned())
}

/// The error and its causes in one line, without what they repeat.
fn chain(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    errors::brief(text.replace('\n', " "))
}

fn read_only(message: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("this server takes no writes: {message}"))
        .advise("connect to the primary; of several hosts in the URL the one that takes writes is used")
}

pub(crate) fn from_server(code: &SqlState, message: &str) -> Error {
    let message = errors::brief(message.replace('\n', " "));
    let state = code.code();
    match state {
        "25006" => read_only(&message),
        "42501" => Error::new(ErrorKind::Denied, message).advise(
            "let the owner of the database run what `distlock schema` prints, and grant the role its rights",
        ),
        "53100" | "53400" => {
            Error::new(ErrorKind::Exhausted, message).with_retry(true).advise("free space on the server")
        }
        "53200" => Error::new(ErrorKind::Exhausted, message).with_retry(true).advise(
            "raise max_locks_per_transaction on the server if its lock table is full, or give it memory",
        ),
        "53300" => Error::new(ErrorKind::Exhausted, message)
            .with_retry(true)
            .advise("raise max_connections on the server, or put PgBouncer in front of it"),
        "40001" | "40P01" => {
            Error::new(ErrorKind::Unavailable, format!("{message}, after the last retry too"))
        }
        "55P03" => row_locked(None),
        "57014" => Error::new(ErrorKind::Unavailable, message)
            .advise("find out what cancels statements, or raise statement_timeout"),
        "3F000" | "42P01" | "42703" => Error::new(ErrorKind::Corrupt, message)
            .advise("create the tables as `distlock schema` prints them, or name others with distlock.table"),
        "3D000" => {
            Error::new(ErrorKind::Denied, message).advise("create the database, or name another in the URL")
        }
        _ if state.starts_with("28") => {
            Error::new(ErrorKind::Denied, message).advise("check user, password and pg_hba.conf")
        }
        // The session ends or never began. Requests in flight may have been applied.
        _ if state.starts_with("08") || state.starts_with("57P") => {
            let error = errors::unavailable(message);
            if matches!(state, "57P03" | "08001" | "08004") { error } else { error.with_unknown_outcome() }
        }
        _ => Error::new(ErrorKind::Internal, format!("SQLSTATE {state}: {message}"))
            .advise("please report this"),
    }
}

/// Another session has locked the row of a lock. Nothing was changed. `pid`: the process of that session, if known.
pub(crate) fn row_locked(pid: Option<i32>) -> Error {
    let detail = "its row in the lock table is locked by another session";
    let (detail, advice) = match pid {
        Some(pid) => (
            format!("{detail} (pid {pid})"),
            format!(
                "look up pid {pid} in pg_stat_activity, and end its transaction: pg_terminate_backend({pid})"
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

/// The source of an error: `lock_timeout` passed before the row was free.
#[derive(Debug)]
struct RowLocked;

impl std::fmt::Display for RowLocked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SQLSTATE 55P03 (lock_not_available)")
    }
}

impl std::error::Error for RowLocked {}

pub(crate) fn is_row_locked(error: &Error) -> bool {
    std::error::Error::source(error).is_some_and(|cause| cause.is::<RowLocked>())
}

/// Rolled back because of another transaction: a retry helps.
pub(crate) fn is_conflict(error: &tokio_postgres::Error) -> bool {
    has_code(error, &[SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED])
}

/// One of our tables is missing: it was dropped, or this is another database than before.
pub(crate) fn is_missing_table(error: &tokio_postgres::Error) -> bool {
    has_code(error, &[SqlState::UNDEFINED_TABLE, SqlState::INVALID_SCHEMA_NAME])
}

/// The server does not know a prepared statement: a pooler gives us other sessions.
pub(crate) fn is_unknown_statement(error: &tokio_postgres::Error) -> bool {
    has_code(error, &[SqlState::INVALID_SQL_STATEMENT_NAME, SqlState::DUPLICATE_PSTATEMENT])
}

/// The server became a replica, or is about to be replaced.
pub(crate) fn is_read_only(error: &tokio_postgres::Error) -> bool {
    has_code(error, &[SqlState::READ_ONLY_SQL_TRANSACTION])
}

/// The server ended a session that was idle for `idle_session_timeout`.
pub(crate) fn is_idle_timeout(error: &tokio_postgres::Error) -> bool {
    has_code(error, &[SqlState::IDLE_SESSION_TIMEOUT])
}

/// The session has ended, or the server is ending it: nothing that is sent on it will be answered.
pub(crate) fn ends_session(error: &tokio_postgres::Error) -> bool {
    let fatal = |reply: &DbError| matches!(reply.parsed_severity(), Some(Severity::Fatal | Severity::Panic));
    error.is_closed() || error.as_db_error().is_some_and(fatal)
}

/// The statement was cancelled.
pub(crate) fn is_cancelled(error: &tokio_postgres::Error) -> bool {
    has_code(error, &[SqlState::QUERY_CANCELED])
}

pub(crate) fn has_code(error: &tokio_postgres::Error, codes: &[SqlState]) -> bool {
    error.code().is_some_and(|code| codes.contains(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sqlstates_become_kinds_with_the_right_retry_and_outcome() {
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
            let error = from_server(&SqlState::from_code(code), "the server's message");
            assert_eq!(error.kind(), kind, "{code}");
            assert_eq!((error.can_retry(), error.is_outcome_unknown()), (retry, unknown), "{code}");
            assert!(error.to_string().contains("the server's message"), "{error}");
        }
    }

    #[test]
    fn an_error_does_not_repeat_its_source() {
        let error = row_locked(Some(7));
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(!error.to_string().contains(&source), "{error}");
        assert!(is_row_locked(&error));
    }
}
