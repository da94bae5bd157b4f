//! A batch on pool rows: the parameters of its statement, and what the rows of the reply say. For both stores.

use distlock_core::store::support::errors;
use distlock_core::store::{Attempt, Claim, Holder, Lease, Released, Renewal};
use distlock_core::{LockId, Result};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use crate::keys::Key;
use crate::pool_rows;
use crate::statement::{Slot, Statement};
use crate::tables::{PoolTable, Tables};
use crate::values::{
    GRANT_WINDOW_MICROS, column, from_attempt, from_micros, from_token, from_weight, item_position,
    to_micros, to_time, to_token, to_weight,
};

static BATCH: [Type; 13] = [
    Type::TEXT_ARRAY,
    Type::TEXT_ARRAY,
    Type::TEXT_ARRAY,
    Type::INT4_ARRAY,
    Type::INT4_ARRAY,
    Type::INT8_ARRAY,
    Type::TEXT_ARRAY,
    Type::INT8_ARRAY,
    Type::INT8_ARRAY,
    Type::BYTEA_ARRAY,
    Type::INT8_ARRAY,
    Type::INT8,
    Type::BOOL_ARRAY,
];

/// The statements of one table.
#[derive(Debug)]
pub(crate) struct PoolStatements {
    pub(crate) batch: Statement,
    /// The same for a forced release: it notifies each holder.
    pub(crate) break_lock: Statement,
    pub(crate) inspect: Statement,
}

impl PoolStatements {
    pub(crate) fn new(tables: &Tables, table: PoolTable) -> Self {
        let statement = |slot: Slot, broken: &str| {
            let template = table.template(include_str!("sql/pool_batch.sql")).replace("{broken}", broken);
            match table {
                PoolTable::Leases => Statement::new(slot, &template, tables, &BATCH),
                PoolTable::Sessions => Statement::with_own_limit(slot, &template, tables, &BATCH),
            }
        };
        let notify = match table {
            PoolTable::Leases => include_str!("sql/notify_broken.sql").replace("{id}", "k.id"),
            PoolTable::Sessions => "pg_catalog.pg_notify(k.inbox, 'broken ' || k.id)".to_owned(),
        };
        let broken = format!("UNION ALL SELECT {notify} FROM kept k WHERE k.released");
        PoolStatements {
            batch: statement(Slot::PoolBatch, ""),
            break_lock: statement(Slot::PoolBreak, &broken),
            inspect: pool_rows::inspect_statement(tables, table),
        }
    }
}

/// The items of a batch, column by column.
#[derive(Debug, Default)]
pub(crate) struct PoolBatch {
    keys: Vec<String>,
    verbs: Vec<&'static str>,
    ids: Vec<Option<String>>,
    weights: Vec<i32>,
    capacities: Vec<i32>,
    expiries: Vec<i64>,
    inboxes: Vec<Option<String>>,
    waits: Vec<Option<i64>>,
    tokens: Vec<Option<i64>>,
    names: Vec<Option<Vec<u8>>>,
    attempts: Vec<Option<i64>>,
    resizes: Vec<bool>,
}

impl PoolBatch {
    fn push(&mut self, key: Key, verb: &'static str, id: Option<&LockId>) {
        self.keys.push(key.key);
        self.verbs.push(verb);
        self.ids.push(id.map(|id| id.as_str().to_owned()));
        self.weights.push(0);
        self.capacities.push(0);
        self.expiries.push(0);
        self.inboxes.push(None);
        self.waits.push(None);
        self.tokens.push(None);
        self.names.push(key.name);
        self.attempts.push(None);
        self.resizes.push(false);
    }

    /// Adds a claim. `inbox`: the channel that wakes its waiter, if the process listens.
    pub(crate) fn acquire(&mut self, key: Key, claim: &Claim, inbox: Option<String>) {
        self.push(key, "acquire", Some(&claim.lock_id));
        let last = self.keys.len() - 1;
        self.weights[last] = from_weight(claim.weight);
        self.capacities[last] = from_weight(claim.capacity);
        self.expiries[last] = to_micros(claim.expiry);
        self.inboxes[last] = inbox;
        self.waits[last] = claim.waiting.as_ref().map(|waiting| to_micros(waiting.ttl));
        self.attempts[last] = claim.waiting.as_ref().map(|waiting| from_attempt(waiting.attempt));
        self.resizes[last] = claim.resizes;
    }

    pub(crate) fn renew(&mut self, key: Key, lease: &Lease) {
        self.push(key, "renew", Some(&lease.lock_id));
        let last = self.keys.len() - 1;
        self.expiries[last] = to_micros(lease.expiry);
        self.tokens[last] = Some(from_token(lease.token));
    }

    pub(crate) fn release(&mut self, key: Key, id: &LockId) {
        self.push(key, "release", Some(id));
    }

    /// Takes the pool from all its holders.
    pub(crate) fn break_lock(&mut self, key: Key) {
        self.push(key, "break", None);
    }

    /// The parameters of the statement.
    pub(crate) fn parameters(&self) -> [&(dyn ToSql + Sync); 13] {
        [
            &self.keys,
            &self.verbs,
            &self.ids,
            &self.weights,
            &self.capacities,
            &self.expiries,
            &self.inboxes,
            &self.waits,
            &self.tokens,
            &self.names,
            &self.attempts,
            &GRANT_WINDOW_MICROS,
            &self.resizes,
        ]
    }
}

/// The answer to a claim; `None` if another session inserted the row first and the claim must be sent again.
pub(crate) fn attempt(row: &Row, claim: &Claim) -> Result<Option<Attempt>> {
    if !column::<bool>(row, "fits")? {
        let theirs: i32 = column(row, "capacity")?;
        return Err(errors::capacity_mismatch(&claim.resource, theirs, claim.capacity));
    }
    if !column::<bool>(row, "written")? {
        return Ok(None);
    }
    if let Some(number) = column::<Option<i64>>(row, "token")? {
        return Ok(Some(Attempt::granted(to_token(number))));
    }
    let remaining: Option<i64> = column(row, "remaining")?;
    Ok(Some(Attempt::busy(remaining.map(from_micros))))
}

/// The answers to renewals.
pub(crate) fn renewals(rows: &[Row], leases: usize) -> Result<Vec<Result<Renewal>>> {
    let mut answers = vec![Renewal::NotYours; leases];
    for row in rows {
        if column(row, "was_holder")?
            && let Some(answer) = item_position(row, leases)?.and_then(|at| answers.get_mut(at))
        {
            *answer = Renewal::Renewed;
        }
    }
    Ok(answers.into_iter().map(Ok).collect())
}

/// The answers to releases.
pub(crate) fn releases(rows: &[Row], leases: usize) -> Result<Vec<Result<Released>>> {
    let mut answers = vec![Released::NotYours; leases];
    for row in rows {
        let (holder, waiter): (bool, bool) = (column(row, "was_holder")?, column(row, "was_waiter")?);
        if (holder || waiter)
            && let Some(answer) = item_position(row, leases)?.and_then(|at| answers.get_mut(at))
        {
            *answer = Released::Done { woke: column(row, "woke")? };
        }
    }
    Ok(answers.into_iter().map(Ok).collect())
}

/// The holders that a forced release took the pool from.
pub(crate) fn broken(rows: &[Row], table: PoolTable) -> Result<Vec<Holder>> {
    let mut broken = Vec::new();
    for row in rows {
        let Some(id) = column::<Option<&str>>(row, "holder_id")? else { continue };
        let expires_in = match table {
            PoolTable::Leases => Some(from_micros(column(row, "holder_remaining")?)),
            PoolTable::Sessions => None,
        };
        broken.push(
            Holder::new(LockId::from_stored(id), to_weight(column(row, "holder_weight")?))
                .with_token(to_token(column(row, "token")?))
                .with_acquired_at(to_time(column(row, "holder_since")?))
                .with_expires_in(expires_in),
        );
    }
    Ok(broken)
}
