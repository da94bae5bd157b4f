//! Conversions between our types and the columns of the statements.

use std::time::{Duration, SystemTime};

use distlock_core::store::GRANT_WINDOW;
use distlock_core::{Error, ErrorKind, FencingToken, Result};
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

/// [`GRANT_WINDOW`] as a parameter.
pub(crate) const GRANT_WINDOW_MICROS: i64 = GRANT_WINDOW.as_micros() as i64;

/// A duration in microseconds.
pub(crate) fn to_micros(duration: Duration) -> i64 {
    // A hundred years: far from where the server's arithmetic overflows.
    const LONGEST: u128 = 100 * 365 * 24 * 3600 * 1_000_000;
    i64::try_from(duration.as_micros().min(LONGEST)).unwrap_or(i64::MAX)
}

/// A duration of microseconds; zero for a negative number.
pub(crate) fn from_micros(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// A moment in microseconds since 1970.
pub(crate) fn to_time(micros: i64) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(from_micros(micros))
}

pub(crate) fn to_token(number: i64) -> FencingToken {
    FencingToken::new(u64::try_from(number).unwrap_or(0))
}

/// A token as a column has it. Tokens of ours fit; a larger one from elsewhere becomes one near the largest that fits.
pub(crate) fn from_token(token: FencingToken) -> i64 {
    i64::try_from(token.get()).unwrap_or(i64::MAX - 1_000_000)
}

/// The number of an attempt as a column has it.
pub(crate) fn from_attempt(attempt: u64) -> i64 {
    i64::try_from(attempt).unwrap_or(i64::MAX)
}

/// A weight or a capacity as a column has it.
pub(crate) fn from_weight(weight: u32) -> i32 {
    i32::try_from(weight).unwrap_or(i32::MAX)
}

pub(crate) fn to_weight(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

/// A column of a reply.
pub(crate) fn column<'a, T: FromSql<'a>>(row: &'a Row, name: &str) -> Result<T> {
    row.try_get(name).map_err(|error| {
        Error::new(ErrorKind::Internal, format!("unexpected column in the server's reply: {error}"))
            .with_unknown_outcome()
    })
}

/// The position of the batch item that a row answers.
pub(crate) fn item_position(row: &Row, items: usize) -> Result<Option<usize>> {
    let number: i64 = column(row, "n")?;
    Ok(usize::try_from(number - 1).ok().filter(|at| *at < items))
}
