//! Pool rows as `inspect` shows them. For both stores.

use distlock_core::store::{Holder, Query, Record, Waiter};
use distlock_core::{Kind, LockId, Resource, Result};
use serde_json::Value;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::keys::Key;
use crate::statement::{Slot, Statement};
use crate::tables::{PoolTable, Tables};
use crate::values::{column, from_micros, to_time, to_token, to_weight};

static INSPECT: [Type; 2] = [Type::TEXT, Type::TEXT];

pub(crate) fn inspect_statement(tables: &Tables, table: PoolTable) -> Statement {
    let template = table.template(include_str!("sql/pool_inspect.sql"));
    Statement::new(Slot::PoolInspect, &template, tables, &INSPECT)
}

/// The parameters of an inspection: the key of the name that the query asks for, and the prefix of the keys. A name that text
/// cannot hold is hashed, and is returned for every prefix.
pub(crate) fn key_and_prefix(query: &Query, kind: Kind, utf8: bool) -> Result<(Option<String>, String)> {
    let key = match &query.name {
        Some(name) => Some(Key::new(&Resource::new(kind, name.as_str())?, utf8).key),
        None => None,
    };
    let prefix = query.prefix.as_deref().unwrap_or_default();
    let prefix = prefix.split('\0').next().unwrap_or_default();
    match kind {
        Kind::Mutex => Ok((key, prefix.to_owned())),
        kind => Ok((key, format!("{kind}:{prefix}"))),
    }
}

/// The record of a row; `None` if the row is not ours.
pub(crate) fn record(row: &Row, table: PoolTable) -> Result<Option<Record>> {
    let Some((kind, name)) = Key::parse(column(row, "key")?, column(row, "name")?, true) else {
        return Ok(None);
    };
    let capacity = to_weight(column(row, "capacity")?);
    let now: i64 = column(row, "now")?;
    let holders = entries(row, "holders")?.iter().filter_map(|entry| holder(entry, now, table)).collect();
    let waiters = waiters(row, "queue")?;
    Ok(Some(Record::new(kind, capacity).with_name(name).with_holders(holders).with_waiters(waiters)))
}

/// The channels of the sessions that hold permits of the row.
pub(crate) fn channels(row: &Row) -> Result<Vec<String>> {
    let channel = |entry: &Value| Some(entry.get("inbox")?.as_str()?.to_owned());
    Ok(entries(row, "holders")?.iter().filter_map(channel).collect())
}

fn holder(entry: &Value, now: i64, table: PoolTable) -> Option<Holder> {
    let number = |field: &str| entry.get(field).and_then(Value::as_i64);
    let lock_id = LockId::from_stored(entry.get("id")?.as_str()?);
    let expires_in = match table {
        PoolTable::Leases => Some(from_micros(number("until")?.saturating_sub(now))),
        PoolTable::Sessions => None,
    };
    Some(
        Holder::new(lock_id, u32::try_from(number("weight")?).ok()?)
            .with_token(number("token").map(to_token))
            .with_acquired_at(number("since").and_then(to_time))
            .with_expires_in(expires_in),
    )
}

/// The waiters, in queue order.
pub(crate) fn waiters(row: &Row, column: &str) -> Result<Vec<Waiter>> {
    let read = |entry: &Value| {
        let weight =
            entry.get("weight").and_then(Value::as_u64).and_then(|weight| u32::try_from(weight).ok());
        Some(Waiter::new(LockId::from_stored(entry.get("id")?.as_str()?), weight.unwrap_or(1)))
    };
    Ok(entries(row, column)?.iter().filter_map(read).collect())
}

fn entries(row: &Row, name: &str) -> Result<Vec<Value>> {
    let text: Option<&str> = column(row, name)?;
    Ok(text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default())
}
