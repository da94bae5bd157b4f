//! Which locks are held or waited for.

use distlock_core::store::support::inspect::select;
use distlock_core::store::{Query, Record};
use distlock_core::{Kind, Result};
use tokio_postgres::Row;

use super::mutex::holder;
use super::store::StoreState;
use crate::keys::Key;
use crate::pool_rows;
use crate::statement::Request;
use crate::tables::PoolTable;
use crate::values::column;

/// The records that the query asks for. The server filters what it can.
pub(super) async fn records(state: &StoreState, query: &Query) -> Result<Vec<Record>> {
    let mut records = Vec::new();
    for kind in [Kind::Mutex, Kind::RwLock, Kind::Semaphore, Kind::FairQueue] {
        if query.kind.is_some_and(|wanted| wanted != kind) {
            continue;
        }
        let statement = if kind == Kind::Mutex { &state.mutex.inspect } else { &state.pool.inspect };
        let (key, prefix) = pool_rows::key_and_prefix(query, kind, state.server.utf8)?;
        for row in state.shared.query(&Request::new(statement, &[&key, &prefix])).await? {
            records.extend(match kind {
                Kind::Mutex => mutex_record(&row)?,
                _ => pool_rows::record(&row, PoolTable::Leases)?,
            });
        }
    }
    Ok(select(records, query))
}

fn mutex_record(row: &Row) -> Result<Option<Record>> {
    let Some((kind, name)) = Key::parse(column(row, "key")?, column(row, "name")?, false) else {
        return Ok(None);
    };
    let holders = if column(row, "held")? { vec![holder(row)?] } else { Vec::new() };
    let waiters = pool_rows::waiters(row, "waiters")?;
    Ok(Some(Record::new(kind, 1).with_name(name).with_holders(holders).with_waiters(waiters)))
}
