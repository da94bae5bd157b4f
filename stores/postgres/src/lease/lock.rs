//! The lock record: one row of the lease table.

use std::collections::HashMap;
use std::time::SystemTime;

use distlock_core::store::{Attempt, Batch, Claim, Holder, Lease, Released, Renewal};
use distlock_core::{Error, ErrorKind, LockId, RecordKind, Resource, Result};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::locked::Verb;
use super::{Inner, unanswered};
use crate::names::{Key, channel};
use crate::statement::{Patience, Statement, Tables};
use crate::values::{counted, get, item, left, micros, number, token};

static ACQUIRE_ONE: [Type; 8] =
    [Type::TEXT, Type::TEXT, Type::INT8, Type::TEXT, Type::INT8, Type::BOOL, Type::BYTEA, Type::INT8];
static ACQUIRE_BATCH: [Type; 8] = [
    Type::TEXT_ARRAY,
    Type::TEXT_ARRAY,
    Type::INT8_ARRAY,
    Type::TEXT_ARRAY,
    Type::INT8_ARRAY,
    Type::BOOL_ARRAY,
    Type::BYTEA_ARRAY,
    Type::INT8_ARRAY,
];
static RENEW: [Type; 4] = [Type::TEXT_ARRAY, Type::TEXT_ARRAY, Type::INT8_ARRAY, Type::INT8_ARRAY];
static RELEASE_ONE: [Type; 2] = [Type::TEXT, Type::TEXT];
static RELEASE_BATCH: [Type; 2] = [Type::TEXT_ARRAY, Type::TEXT_ARRAY];

/// One item needs no lists, and reading them is a good part of what a statement for one lock costs the server.
#[derive(Debug)]
struct BySize {
    one: Statement,
    batch: Statement,
}

#[derive(Debug)]
pub(super) struct Statements {
    acquire: BySize,
    renew: Statement,
    release: BySize,
    break_lock: Statement,
}

impl Statements {
    pub(super) fn new(tables: &Tables) -> Self {
        let acquire = |claims, waits, attempt| {
            let text = include_str!("../sql/lock_acquire.sql").replace("{claims}", claims);
            text.replace("{waits}", waits).replace("{attempt}", attempt)
        };
        // `granted`: how many locks the statement granted.
        let release = |leases, granted, broken| {
            let text = include_str!("../sql/lock_release.sql").replace("{leases}", leases);
            text.replace("{granted}", granted).replace("{broken}", broken)
        };
        let acquire_one = acquire(include_str!("../sql/lock_acquire_one.sql"), "$5", "$8");
        let acquire_batch = acquire(
            include_str!("../sql/lock_acquire_batch.sql"),
            "($5)[EXCLUDED.waits]",
            "($8)[EXCLUDED.waits]",
        );
        let (one, one_granted) =
            (include_str!("../sql/lock_release_one.sql"), "pg_catalog.num_nonnulls(n.next)");
        let release_one = release(one, one_granted, "");
        let release_batch =
            release(include_str!("../sql/lock_release_batch.sql"), "pg_catalog.count(n.next) OVER ()", "");
        let notify = include_str!("../sql/broken_notify.sql").replace("{id}", "d.value");
        let broken = format!("CASE WHEN d.let_go THEN {notify} END AS holder_told,");
        let break_lock = release(one, one_granted, &broken);
        Statements {
            acquire: BySize {
                one: Statement::new(8, &acquire_one, tables, &ACQUIRE_ONE),
                batch: Statement::new(0, &acquire_batch, tables, &ACQUIRE_BATCH),
            },
            renew: Statement::new(1, include_str!("../sql/lock_renew.sql"), tables, &RENEW),
            release: BySize {
                one: Statement::new(9, &release_one, tables, &RELEASE_ONE),
                batch: Statement::new(2, &release_batch, tables, &RELEASE_BATCH),
            },
            break_lock: Statement::new(10, &break_lock, tables, &RELEASE_ONE),
        }
    }
}

/// No two of the claims may be for one lock.
pub(super) struct Acquire;
/// Renewals of leases.
pub(super) struct Renew;
/// Releases of leases.
pub(super) struct Release;

impl Verb for Acquire {
    type Item = Claim;
    type Answer = Attempt;
    const KIND: RecordKind = RecordKind::Lock;

    fn resource(claim: &Claim) -> &Resource {
        &claim.resource
    }

    async fn ask(store: &Inner, claims: &[&Claim], patience: Patience) -> Batch<Attempt> {
        try_acquire(store, claims, patience).await
    }
}

impl Verb for Renew {
    type Item = Lease;
    type Answer = Renewal;
    const KIND: RecordKind = RecordKind::Lock;

    fn resource(lease: &Lease) -> &Resource {
        &lease.resource
    }

    async fn ask(store: &Inner, leases: &[&Lease], patience: Patience) -> Batch<Renewal> {
        renew(store, leases, patience).await
    }
}

impl Verb for Release {
    type Item = Lease;
    type Answer = Released;
    const KIND: RecordKind = RecordKind::Lock;

    fn resource(lease: &Lease) -> &Resource {
        &lease.resource
    }

    async fn ask(store: &Inner, leases: &[&Lease], patience: Patience) -> Batch<Released> {
        release(store, leases, patience).await
    }
}

async fn try_acquire(store: &Inner, claims: &[&Claim], patience: Patience) -> Batch<Attempt> {
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
    let attempts: Vec<Option<i64>> =
        waiting().map(|waiting| waiting.map(|waiting| counted(waiting.attempt))).collect();
    let turns: Vec<bool> = claims.iter().map(|claim| claim.no_overtaking).collect();
    let whole: Vec<Option<&[u8]>> = keys.iter().map(|key| key.name.as_deref()).collect();
    let acquire = &store.lock.acquire;
    let rows = match claims.len() {
        1 => {
            let one: [&(dyn ToSql + Sync); 8] = [
                &names[0],
                &ids[0],
                &expiries[0],
                &inboxes[0],
                &waits[0],
                &turns[0],
                &whole[0],
                &attempts[0],
            ];
            store.link.run_with(&acquire.one, &one, patience).await?
        }
        _ => {
            let batch: [&(dyn ToSql + Sync); 8] =
                [&names, &ids, &expiries, &inboxes, &waits, &turns, &whole, &attempts];
            store.link.run_with(&acquire.batch, &batch, patience).await?
        }
    };
    let answers = by_key(&rows)?;
    let answer = |(name, id): (&&str, &&str)| {
        let Some(row) = answers.get(name) else { return unanswered() };
        if get::<&str>(row, "value")? == *id {
            return Ok(Attempt::granted(token(get(row, "token")?)));
        }
        let remaining: Option<i64> = get(row, "remaining")?;
        Ok(Attempt::busy(remaining.map(left)))
    };
    Ok(names.iter().zip(&ids).map(answer).collect())
}

fn by_key(rows: &[Row]) -> Result<HashMap<&str, &Row>> {
    rows.iter().map(|row| Ok((get(row, "key")?, row))).collect()
}

async fn renew(store: &Inner, leases: &[&Lease], patience: Patience) -> Batch<Renewal> {
    let keys: Vec<Key> = leases.iter().map(|lease| Key::of(&lease.resource, store.server.utf8)).collect();
    let names: Vec<&str> = keys.iter().map(|key| key.key.as_str()).collect();
    let ids: Vec<&str> = leases.iter().map(|lease| lease.lock_id.as_str()).collect();
    let expiries: Vec<i64> = leases.iter().map(|lease| micros(lease.expiry)).collect();
    let tokens: Vec<i64> = leases.iter().map(|lease| number(lease.token)).collect();
    let rows = store.link.run_with(&store.lock.renew, &[&names, &ids, &expiries, &tokens], patience).await?;
    let mut answers = vec![Renewal::NotYours; leases.len()];
    for row in &rows {
        if let Some(answer) = item(row, leases.len())?.and_then(|at| answers.get_mut(at)) {
            *answer = Renewal::Renewed;
        }
    }
    Ok(answers.into_iter().map(Ok).collect())
}

async fn release(store: &Inner, leases: &[&Lease], patience: Patience) -> Batch<Released> {
    let keys: Vec<String> =
        leases.iter().map(|lease| Key::of(&lease.resource, store.server.utf8).key).collect();
    let ids: Vec<&str> = leases.iter().map(|lease| lease.lock_id.as_str()).collect();
    let release = &store.lock.release;
    let rows = match leases.len() {
        1 => store.link.run_with(&release.one, &[&keys[0], &ids[0]], patience).await?,
        _ => store.link.run_with(&release.batch, &[&keys, &ids], patience).await?,
    };
    let answers = by_key(&rows)?;
    let answer = |(key, id): (&String, &&str)| match answers.get(key.as_str()) {
        Some(row) => released(row, id),
        None => Ok(Released::NotYours),
    };
    Ok(keys.iter().zip(&ids).map(answer).collect())
}

/// What became of one of the leases that a row is about.
fn released(row: &Row, id: &str) -> Result<Released> {
    let held = get(row, "let_go")? && get::<&str>(row, "value")? == id;
    let waited = || -> Result<bool> {
        let Some(waited) = get::<Option<&str>>(row, "waited")? else { return Ok(false) };
        let ids: Vec<String> = serde_json::from_str(waited).map_err(|error| {
            Error::new(ErrorKind::Corrupt, format!("the list of those who wait cannot be read: {error}"))
        })?;
        Ok(ids.iter().any(|waited| waited == id))
    };
    match held || waited()? {
        true => Ok(Released::Done { woke: get(row, "woke")? }),
        false => Ok(Released::NotYours),
    }
}

pub(super) async fn break_lock(store: &Inner, resource: &Resource) -> Result<Vec<Holder>> {
    let key = Key::of(resource, store.server.utf8).key;
    let whoever: Option<&str> = None;
    let rows = store.link.run(&store.lock.break_lock, &[&key, &whoever]).await?;
    let mut broken = Vec::new();
    for row in &rows {
        if get(row, "let_go")? {
            broken.push(holder(row)?);
        }
    }
    Ok(broken)
}

/// The holder that a row shows.
pub(super) fn holder(row: &Row) -> Result<Holder> {
    let remaining: i64 = get(row, "remaining")?;
    let acquired_at: SystemTime = get(row, "acquired_at")?;
    Ok(Holder::new(LockId::from_stored(get::<&str>(row, "value")?), 1)
        .with_token(token(get(row, "token")?))
        .with_acquired_at(acquired_at)
        .with_expires_in(left(remaining)))
}
