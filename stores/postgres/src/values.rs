//! Numbers and times as statements have them.

use std::time::{Duration, SystemTime};

use distlock_core::{Error, ErrorKind, FencingToken, Result};
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

/// A duration in microseconds.
pub(crate) fn micros(duration: Duration) -> i64 {
    // A hundred years: far from where the server's arithmetic ends.
    const LONGEST: u128 = 100 * 365 * 24 * 3600 * 1_000_000;
    i64::try_from(duration.as_micros().min(LONGEST)).unwrap_or(i64::MAX)
}

/// Microseconds that are left, never below zero.
pub(crate) fn left(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// A moment in microseconds since 1970.
pub(crate) fn moment(micros: i64) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(left(micros))
}

pub(crate) fn token(number: i64) -> FencingToken {
    FencingToken::new(u64::try_from(number).unwrap_or(0))
}

/// A token as a table has it. Tokens of ours fit; whoever makes up a larger one gets one near the largest that does.
pub(crate) fn number(token: FencingToken) -> i64 {
    i64::try_from(token.get()).unwrap_or(i64::MAX - 1_000_000)
}

/// The number of an attempt.
pub(crate) fn counted(attempt: u64) -> i64 {
    i64::try_from(attempt).unwrap_or(i64::MAX)
}

/// A weight or a capacity.
pub(crate) fn small(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

pub(crate) fn weight(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

/// A column of an answer.
pub(crate) fn get<'a, T: FromSql<'a>>(row: &'a Row, column: &str) -> Result<T> {
    row.try_get(column).map_err(|error| {
        Error::new(ErrorKind::Internal, format!("an answer of the server cannot be read: {error}"))
            .with_unknown_outcome()
    })
}

/// Which item of a request a row answers.
pub(crate) fn item(row: &Row, items: usize) -> Result<Option<usize>> {
    let n: i64 = get(row, "n")?;
    Ok(usize::try_from(n - 1).ok().filter(|at| *at < items))
}
