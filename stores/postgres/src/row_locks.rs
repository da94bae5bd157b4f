//! Who has locked a row that a statement could not lock in time: the transaction, and whether its session waits for its client.

use std::collections::HashMap;
use std::time::Duration;

use distlock_core::Result;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::statement::{Slot, Statement};
use crate::tables::{PoolTable, Tables};
use crate::values::column;

/// How long one transaction may lock a row before that is an error, beyond the time for which the statement waited, if its session
/// waits for its client: it is not one of ours. The engine may send the next request of a verb after this one is answered.
pub(crate) const IDLE_BLOCKER: Duration = Duration::from_millis(250);
/// The same for a session that works, or that the server does not show: a client of ours on a slow disk, or of a busy server.
pub(crate) const ONE_BLOCKER: Duration = Duration::from_secs(2);
/// The pause between two checks.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_millis(25);

static KEYS: [Type; 1] = [Type::TEXT_ARRAY];

/// The transaction that has locked a row; `None` for a row that is not visible yet.
pub(crate) type Blocker = Option<String>;

/// A session that has locked a row.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Session {
    pub(crate) pid: Option<i32>,
    /// It waits for its client.
    pub(crate) idle: bool,
}

/// The statement that checks rows of the lock table.
pub(crate) fn lock_statement(tables: &Tables) -> Statement {
    let template = include_str!("sql/row_locks.sql").replace("{rows}", "{table}");
    Statement::new(Slot::LockRowLocks, &template, tables, &KEYS)
}

/// The statement that checks rows of a table of pools.
pub(crate) fn pool_statement(tables: &Tables, table: PoolTable) -> Statement {
    let template = table.template(&include_str!("sql/row_locks.sql").replace("{rows}", "{pool}"));
    Statement::new(Slot::PoolRowLocks, &template, tables, &KEYS)
}

/// The statement that looks up sessions.
pub(crate) fn blockers_statement(tables: &Tables) -> Statement {
    Statement::new(Slot::RowBlockers, include_str!("sql/row_blockers.sql"), tables, &KEYS)
}

/// For each row that is visible, the transaction that has locked it, or `None` if it is free.
pub(crate) fn row_states(rows: &[Row]) -> Result<HashMap<String, Option<String>>> {
    let read = |row: &Row| {
        let blocker = if column(row, "free")? { None } else { Some(column(row, "blocker")?) };
        Ok((column(row, "key")?, blocker))
    };
    rows.iter().map(read).collect()
}

/// The sessions of transactions, without those that have ended.
pub(crate) fn sessions(rows: &[Row]) -> Result<HashMap<String, Session>> {
    let read = |row: &Row| {
        Ok((column(row, "blocker")?, Session { pid: column(row, "pid")?, idle: column(row, "idle")? }))
    };
    rows.iter().map(read).collect()
}
