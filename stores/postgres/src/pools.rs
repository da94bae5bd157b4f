//! What pool records show. For both stores.

use distlock_core::store::{Holder, Query, Record, Waiter};
use distlock_core::{Kind, LockId, Result};
use serde_json::Value;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::names::Key;
use crate::statement::{Statement, Tables};
use crate::values::{get, left, moment, token, weight};

static LOOK: [Type; 3] = [Type::TEXT, Type::TEXT, Type::BOOL];

/// The statement that looks. With `sessions` its table is the one whose holders last as long as their sessions.
pub(crate) fn look(slot: usize, tables: &Tables, sessions: bool) -> Statement {
    let text = include_str!("sql/pool_inspect.sql");
    match sessions {
        false => Statement::new(slot, text, tables, &LOOK),
        true => Statement::new(slot, &text.replace("{pool}", "{session_pool}"), tables, &LOOK),
    }
}

/// How keys begin that a query asks for. What text cannot hold is hashed, and comes whatever the prefix.
pub(crate) fn prefix(kind: Kind, query: &Query) -> String {
    let prefix = query.prefix.as_deref().unwrap_or_default();
    let prefix = prefix.split('\0').next().unwrap_or_default();
    match kind {
        Kind::Mutex => prefix.to_owned(),
        kind => format!("{kind}:{prefix}"),
    }
}

/// What a row shows; `None` if it is not ours.
pub(crate) fn read(row: &Row, sessions: bool) -> Result<Option<Record>> {
    let Some((kind, name)) = Key::read(get(row, "key")?, get(row, "name")?, true) else { return Ok(None) };
    let capacity = weight(get(row, "capacity")?);
    let now: i64 = get(row, "now")?;
    let holders = entries(row, "holders")?
        .iter()
        .filter_map(|entry| {
            let number = |field: &str| entry.get(field).and_then(Value::as_i64);
            Some(
                Holder::new(
                    LockId::from_stored(entry.get("id")?.as_str()?),
                    u32::try_from(number("weight")?).ok()?,
                )
                .with_token(number("token").map(token))
                .with_acquired_at(number("since").and_then(moment))
                .with_expires_in(if sessions {
                    None
                } else {
                    Some(left(number("until")?.saturating_sub(now)))
                }),
            )
        })
        .collect();
    let waiters = waiters(row, "queue")?;
    Ok(Some(Record::new(kind, capacity).with_name(name).with_holders(holders).with_waiters(waiters)))
}

/// Those who wait, in their order.
pub(crate) fn waiters(row: &Row, column: &str) -> Result<Vec<Waiter>> {
    let read = |entry: &Value| {
        let weight =
            entry.get("weight").and_then(Value::as_u64).and_then(|weight| u32::try_from(weight).ok());
        Some(Waiter::new(LockId::from_stored(entry.get("id")?.as_str()?), weight.unwrap_or(1)))
    };
    Ok(entries(row, column)?.iter().filter_map(read).collect())
}

fn entries(row: &Row, column: &str) -> Result<Vec<Value>> {
    let text: Option<&str> = get(row, column)?;
    Ok(text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default())
}
