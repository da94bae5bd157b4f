//! Which rows a sweep of advisory locks deletes: unused semaphores, and what ended sessions left behind.

use distlock_core::Result;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::pool;
use super::store::StoreState;
use crate::error;
use crate::keys::Key;
use crate::statement::{Request, Slot, Statement};
use crate::sweep::{self, PAGE, Sweep};
use crate::tables::{PoolTable, Tables};
use crate::values::{column, to_micros};

static ENDED_PERMITS: [Type; 2] = [Type::TEXT, Type::INT8];

#[derive(Debug)]
pub(super) struct SweepStatements {
    delete_stale_rows: String,
    ended_permits: Statement,
    sweep: Statement,
}

impl SweepStatements {
    pub(super) fn new(tables: &Tables) -> Self {
        let ended_permits = PoolTable::Sessions.template(include_str!("../sql/advisory_ended_permits.sql"));
        SweepStatements {
            delete_stale_rows: tables.fill(include_str!("../sql/advisory_delete_stale_rows.sql")),
            ended_permits: Statement::new(Slot::AdvisoryEndedPermits, &ended_permits, tables, &ENDED_PERMITS),
            sweep: sweep::pool_statement(tables, PoolTable::Sessions),
        }
    }
}

impl Sweep for StoreState {
    const TABLES: usize = 1;

    async fn sweep_page(&self, _: usize, after: &str) -> Result<Option<Vec<Row>>> {
        let Some(shared) = self.shared.current() else { return Ok(None) };
        let connection = &shared.session.connection;
        if after.is_empty() {
            let delete = &self.sweep.delete_stale_rows;
            connection.client().batch_execute(delete).await.map_err(error::from_statement)?;
        }
        // Any request for a semaphore removes the permits and queue entries of ended sessions.
        for row in connection.query(&Request::new(&self.sweep.ended_permits, &[&after, &PAGE])).await? {
            let key = Key { key: column(&row, "key")?, name: None };
            match pool::remove_ended(self, &shared.session, key).await {
                Err(error) if !error::is_row_locked(&error) => return Err(error),
                _ => {}
            }
        }
        let retention = to_micros(self.config.retention);
        connection.query(&Request::new(&self.sweep.sweep, &[&after, &PAGE, &retention])).await.map(Some)
    }
}
