//! What is held or waited for now.

use distlock_core::store::{Holder, Query, Record, Waiter};
use distlock_core::{Kind, LockId, Resource, Result};
use serde_json::Value;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::Inner;
use super::lock::holder;
use crate::names::Key;
use crate::statement::{Statement, Tables};
use crate::values::{get, left, moment, token, weight};

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
            pools: Statement::new(5, include_str!("../sql/pool_inspect.sql"), tables, &LOOK),
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
    for kind in [Kind::RwLock, Kind::Semaphore, Kind::Turn] {
        if wanted(kind) {
            for row in ask(store, &store.look.pools, query, kind).await? {
                found.extend(pool(&row)?);
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
    let prefix = match kind {
        Kind::Mutex => query.prefix.clone().unwrap_or_default(),
        kind => format!("{kind}:{}", query.prefix.as_deref().unwrap_or_default()),
    };
    // What text cannot hold is hashed, and comes with its name whatever the prefix.
    let prefix = prefix.split('\0').next().unwrap_or_default().to_owned();
    store.link.run(statement, &[&key, &prefix]).await
}

fn lock(row: &Row) -> Result<Option<Record>> {
    let Some((kind, name)) = Key::read(get(row, "key")?, get(row, "name")?, false) else { return Ok(None) };
    let holders = if get(row, "held")? { vec![holder(row)?] } else { Vec::new() };
    let waiters = waiters(row, "waiters")?;
    Ok(Some(Record { kind, name: Some(name), key: None, capacity: 1, holders, waiters }))
}

fn pool(row: &Row) -> Result<Option<Record>> {
    let Some((kind, name)) = Key::read(get(row, "key")?, get(row, "name")?, true) else { return Ok(None) };
    let capacity = weight(get(row, "capacity")?);
    let now: i64 = get(row, "now")?;
    let holders = entries(row, "holders")?
        .iter()
        .filter_map(|entry| {
            let number = |field: &str| entry.get(field).and_then(Value::as_i64);
            Some(Holder {
                lock_id: LockId::from_stored(entry.get("id")?.as_str()?),
                token: number("token").map(token),
                acquired_at: number("since").and_then(moment),
                expires_in: Some(left(number("until")?.saturating_sub(now))),
                weight: u32::try_from(number("weight")?).ok()?,
            })
        })
        .collect();
    let waiters = waiters(row, "queue")?;
    Ok(Some(Record { kind, name: Some(name), key: None, capacity, holders, waiters }))
}

fn waiters(row: &Row, column: &str) -> Result<Vec<Waiter>> {
    let read = |entry: &Value| {
        let weight =
            entry.get("weight").and_then(Value::as_u64).and_then(|weight| u32::try_from(weight).ok());
        Some(Waiter { lock_id: LockId::from_stored(entry.get("id")?.as_str()?), weight: weight.unwrap_or(1) })
    };
    Ok(entries(row, column)?.iter().filter_map(read).collect())
}

fn entries(row: &Row, column: &str) -> Result<Vec<Value>> {
    let text: Option<&str> = get(row, column)?;
    Ok(text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default())
}
