//! The lock record: one row of the lease table.

use std::collections::HashMap;
use std::time::SystemTime;

use distlock_core::store::{Attempt, Claim, Holder, Lease, Released, Renewal};
use distlock_core::{LockId, Resource, Result};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::{Inner, unanswered};
use crate::names::{Key, channel};
use crate::statement::{Statement, Tables};
use crate::values::{get, item, left, micros, number, token};

static ACQUIRE: [Type; 7] = [
    Type::TEXT_ARRAY,
    Type::TEXT_ARRAY,
    Type::INT8_ARRAY,
    Type::TEXT_ARRAY,
    Type::INT8_ARRAY,
    Type::BOOL_ARRAY,
    Type::BYTEA_ARRAY,
];
static RENEW: [Type; 4] = [Type::TEXT_ARRAY, Type::TEXT_ARRAY, Type::INT8_ARRAY, Type::INT8_ARRAY];
static RELEASE: [Type; 2] = [Type::TEXT_ARRAY, Type::TEXT_ARRAY];

#[derive(Debug)]
pub(super) struct Statements {
    acquire: Statement,
    renew: Statement,
    release: Statement,
}

impl Statements {
    pub(super) fn new(tables: &Tables) -> Self {
        Statements {
            acquire: Statement::new(0, include_str!("../sql/lock_acquire.sql"), tables, &ACQUIRE),
            renew: Statement::new(1, include_str!("../sql/lock_renew.sql"), tables, &RENEW),
            release: Statement::new(2, include_str!("../sql/lock_release.sql"), tables, &RELEASE),
        }
    }
}

/// No two of the claims may be for one lock.
pub(super) async fn try_acquire(store: &Inner, claims: &[&Claim]) -> Result<Vec<Result<Attempt>>> {
    if claims.is_empty() {
        return Ok(Vec::new());
    }
    let keys: Vec<Key> = claims.iter().map(|claim| Key::of(&claim.resource, store.server.utf8)).collect();
    let names: Vec<&str> = keys.iter().map(|key| key.key.as_str()).collect();
    let ids: Vec<&str> = claims.iter().map(|claim| claim.lock_id.as_str()).collect();
    let expiries: Vec<i64> = claims.iter().map(|claim| micros(claim.expiry)).collect();
    // Where nobody listens a message would reach nobody: such a waiter is never granted to behind its back.
    let waiting = || claims.iter().map(|claim| claim.waiting.as_ref());
    let inboxes: Vec<Option<String>> = waiting()
        .map(|waiting| waiting.filter(|_| store.listens).map(|waiting| channel(&waiting.inbox)))
        .collect();
    let waits: Vec<Option<i64>> =
        waiting().map(|waiting| waiting.map(|waiting| micros(waiting.ttl))).collect();
    let turns: Vec<bool> = claims.iter().map(|claim| claim.in_turn).collect();
    let whole: Vec<Option<&[u8]>> = keys.iter().map(|key| key.name.as_deref()).collect();
    let rows = store
        .link
        .run(&store.lock.acquire, &[&names, &ids, &expiries, &inboxes, &waits, &turns, &whole])
        .await?;
    let mut answers: HashMap<&str, &Row> = HashMap::with_capacity(rows.len());
    for row in &rows {
        answers.insert(get(row, "key")?, row);
    }
    let answer = |(name, id): (&&str, &&str)| {
        let Some(row) = answers.get(name) else { return unanswered() };
        if get::<&str>(row, "value")? == *id {
            return Ok(Attempt::Granted { token: token(get(row, "token")?) });
        }
        let remaining: Option<i64> = get(row, "remaining")?;
        Ok(Attempt::Busy { retry_after: remaining.map(left) })
    };
    Ok(names.iter().zip(&ids).map(answer).collect())
}

pub(super) async fn renew(store: &Inner, leases: &[&Lease]) -> Result<Vec<Result<Renewal>>> {
    if leases.is_empty() {
        return Ok(Vec::new());
    }
    let keys: Vec<Key> = leases.iter().map(|lease| Key::of(&lease.resource, store.server.utf8)).collect();
    let names: Vec<&str> = keys.iter().map(|key| key.key.as_str()).collect();
    let ids: Vec<&str> = leases.iter().map(|lease| lease.lock_id.as_str()).collect();
    let expiries: Vec<i64> = leases.iter().map(|lease| micros(lease.expiry)).collect();
    let tokens: Vec<i64> = leases.iter().map(|lease| number(lease.token)).collect();
    let rows = store.link.run(&store.lock.renew, &[&names, &ids, &expiries, &tokens]).await?;
    let mut holders: HashMap<&str, &str> = HashMap::with_capacity(rows.len());
    for row in &rows {
        holders.insert(get(row, "key")?, get(row, "value")?);
    }
    let extended = |(name, id): (&&str, &&str)| match holders.get(name) == Some(id) {
        true => Ok(Renewal::Extended),
        false => Ok(Renewal::NotYours),
    };
    Ok(names.iter().zip(&ids).map(extended).collect())
}

pub(super) async fn release(store: &Inner, leases: &[&Lease]) -> Result<Vec<Result<Released>>> {
    if leases.is_empty() {
        return Ok(Vec::new());
    }
    let keys: Vec<String> =
        leases.iter().map(|lease| Key::of(&lease.resource, store.server.utf8).key).collect();
    let ids: Vec<&str> = leases.iter().map(|lease| lease.lock_id.as_str()).collect();
    let rows = store.link.run(&store.lock.release, &[&keys, &ids]).await?;
    let mut answers = vec![Released::NotYours; leases.len()];
    for row in &rows {
        let (holder, waiter): (bool, bool) = (get(row, "was_holder")?, get(row, "was_waiter")?);
        if (holder || waiter)
            && let Some(answer) = item(row, leases.len())?.and_then(|at| answers.get_mut(at))
        {
            *answer = Released::Done { woke: get(row, "woke")? };
        }
    }
    Ok(answers.into_iter().map(Ok).collect())
}

pub(super) async fn break_lock(store: &Inner, resource: &Resource) -> Result<Vec<Holder>> {
    let keys = [Key::of(resource, store.server.utf8).key];
    let whoever: [Option<&str>; 1] = [None];
    let rows = store.link.run(&store.lock.release, &[&&keys[..], &&whoever[..]]).await?;
    let mut broken = Vec::new();
    for row in &rows {
        if get(row, "was_holder")? {
            broken.push(holder(row)?);
        }
    }
    Ok(broken)
}

/// The holder that a row shows.
pub(super) fn holder(row: &Row) -> Result<Holder> {
    let remaining: i64 = get(row, "remaining")?;
    let acquired_at: SystemTime = get(row, "acquired_at")?;
    Ok(Holder {
        lock_id: LockId::from_stored(get::<&str>(row, "value")?),
        token: Some(token(get(row, "token")?)),
        acquired_at: Some(acquired_at),
        expires_in: Some(left(remaining)),
        weight: 1,
    })
}
