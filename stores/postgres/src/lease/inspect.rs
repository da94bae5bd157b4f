//! What is held or waited for now.

use distlock_core::store::{Query, Record};
use distlock_core::{Kind, Resource, Result};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::Inner;
use super::lock::holder;
use crate::names::Key;
use crate::pools;
use crate::statement::{Statement, Tables};
use crate::values::get;

static LOOK: [Type; 2] = [Type::TEXT, Type::TEXT];

#[derive(Debug)]
pub(super) struct Statements {
    locks: Statement,
    pools: Statement,
}

impl Statements {
    pub(super) fn new(tables: &Tables) -> Self {
        Statements {
            locks: Statement::new(4, include_str!("../sql/lock_inspect.sql"), tables, &LOOK),
            pools: pools::look(5, tables, false),
        }
    }
}

/// The server sorts out what it can; the rest is left to [`Query::matches`].
pub(super) async fn find(store: &Inner, query: &Query) -> Result<Vec<Record>> {
    let mut found = Vec::new();
    let wanted = |kind: Kind| query.kind.is_none_or(|wanted| wanted == kind);
    if wanted(Kind::Mutex) {
        for row in ask(store, &store.look.locks, query, Kind::Mutex).await? {
            found.extend(lock(&row)?);
        }
    }
    for kind in [Kind::RwLock, Kind::Semaphore, Kind::FairQueue] {
        if wanted(kind) {
            for row in ask(store, &store.look.pools, query, kind).await? {
                found.extend(pools::read(&row, false)?);
            }
        }
    }
    found.retain(|record| {
        record.name.as_deref().is_some_and(|name| query.matches(record.kind, name))
            && !(record.holders.is_empty() && record.waiters.is_empty())
    });
    found.sort_by(|a, b| (&a.name, a.kind).cmp(&(&b.name, b.kind)));
    Ok(found)
}

async fn ask(store: &Inner, statement: &Statement, query: &Query, kind: Kind) -> Result<Vec<Row>> {
    let key = match &query.name {
        Some(name) => Some(Key::of(&Resource::new(kind, name.as_str())?, store.server.utf8).key),
        None => None,
    };
    let prefix = pools::prefix(kind, query);
    match kind {
        Kind::Mutex => store.link.run(statement, &[&key, &prefix]).await,
        _ => store.link.run(statement, &[&key, &prefix, &false]).await,
    }
}

fn lock(row: &Row) -> Result<Option<Record>> {
    let Some((kind, name)) = Key::read(get(row, "key")?, get(row, "name")?, false) else { return Ok(None) };
    let holders = if get(row, "held")? { vec![holder(row)?] } else { Vec::new() };
    let waiters = pools::waiters(row, "waiters")?;
    Ok(Some(Record::new(kind, 1).with_name(name).with_holders(holders).with_waiters(waiters)))
}
