//! What is held or waited for.

use distlock_core::store::support::inspect::select;
use distlock_core::store::{Query, Record, Waiter};
use distlock_core::{Kind, LockId, Result};
use mysql_async::Row;

use super::LeaseState;
use crate::batch::{Key, literal};
use crate::rows::{holder, required, text};

pub(super) async fn inspect(state: &LeaseState, query: &Query) -> Result<Vec<Record>> {
    let mut records: Vec<Record> = Vec::new();
    let is_wanted = |kind: Kind| query.kind.is_none_or(|wanted| wanted == kind);
    if is_wanted(Kind::Mutex) {
        let rows = read(state, include_str!("../sql/inspect_locks.sql"), query, &[Kind::Mutex]).await?;
        for row in &rows {
            add(&mut records, Record::new(Kind::Mutex, 1), row)?;
        }
    }
    let pools: Vec<Kind> = [Kind::RwLock, Kind::Semaphore, Kind::FairQueue]
        .into_iter()
        .filter(|kind| is_wanted(*kind))
        .collect();
    if !pools.is_empty() {
        for row in &read(state, include_str!("../sql/inspect_pools.sql"), query, &pools).await? {
            let Some(kind) = Kind::parse(&text(row, "kind")?).or_else(|| fair_queue(row)) else { continue };
            add(&mut records, Record::new(kind, required(row, "capacity")?), row)?;
        }
    }
    Ok(select(records, query))
}

/// The queue of a fair mutex has a kind that is no word of the command line.
fn fair_queue(row: &Row) -> Option<Kind> {
    (text(row, "kind").ok()? == Kind::FairQueue.as_str()).then_some(Kind::FairQueue)
}

/// Adds a holder or a waiter to the record of its name.
fn add(records: &mut Vec<Record>, fresh: Record, row: &Row) -> Result<()> {
    let name = text(row, "name")?;
    let at = records
        .iter()
        .rposition(|record| record.kind == fresh.kind && record.name.as_deref() == Some(name.as_str()));
    let at = at.unwrap_or_else(|| {
        records.push(fresh.with_name(name));
        records.len() - 1
    });
    if required::<i64>(row, "held")? == 1 {
        records[at].holders.push(holder(row)?);
    } else {
        let lock_id = LockId::from_stored(text(row, "id")?);
        records[at].waiters.push(Waiter::new(lock_id, required(row, "weight")?));
    }
    Ok(())
}

async fn read(state: &LeaseState, statement: &str, query: &Query, kinds: &[Kind]) -> Result<Vec<Row>> {
    let mut wanted = "TRUE".to_owned();
    if let Some(name) = &query.name {
        let keys: Vec<String> = kinds.iter().map(|kind| Key::hash(*kind, name).literal()).collect();
        wanted = format!("l.k IN ({})", keys.join(", "));
    } else if let Some(prefix) = query.prefix.as_deref().filter(|prefix| !prefix.is_empty()) {
        wanted = format!("LEFT(l.name, {}) = {}", prefix.len(), literal(prefix.as_bytes()));
    }
    let text = state.tables.statement(statement).replace("{wanted}", &wanted);
    state.connections.run(&text).await.map_err(|failure| failure.error)
}
