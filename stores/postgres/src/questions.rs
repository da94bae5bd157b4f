//! Questions about pool records, as the statement has them, and what its answers say. For both stores.

use distlock_core::store::{Attempt, Claim, Holder, Lease, Released, Renewal};
use distlock_core::{Error, ErrorKind, LockId, Result};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use crate::names::Key;
use crate::statement::{Statement, Tables};
use crate::values::{counted, get, item, left, micros, moment, number, small, token, weight};

static STEP: [Type; 12] = [
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
    Type::BOOL,
    Type::INT8_ARRAY,
];

/// The statement that answers. With `sessions` its table is the one whose holders last as long as their sessions.
pub(crate) fn step(slot: usize, tables: &Tables, sessions: bool) -> Statement {
    filled(slot, tables, sessions, "")
}

/// The same for a forced release: each holder is notified, in the same step.
pub(crate) fn break_step(slot: usize, tables: &Tables, sessions: bool) -> Statement {
    let notify = match sessions {
        true => "pg_catalog.pg_notify(k.inbox, 'broken ' || k.id)".to_owned(),
        false => include_str!("sql/broken_notify.sql").replace("{id}", "k.id"),
    };
    let broken = "UNION ALL SELECT {notify} FROM kept k WHERE k.leaves";
    filled(slot, tables, sessions, &broken.replace("{notify}", &notify))
}

fn filled(slot: usize, tables: &Tables, sessions: bool, broken: &str) -> Statement {
    let text = include_str!("sql/pool_step.sql").replace("{broken}", broken);
    match sessions {
        false => Statement::new(slot, &text, tables, &STEP),
        true => Statement::of_session(slot, &text.replace("{pool}", "{session_pool}"), tables, &STEP),
    }
}

/// Questions, column by column.
#[derive(Debug, Default)]
pub(crate) struct Questions {
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
    sessions: bool,
    attempts: Vec<Option<i64>>,
}

impl Questions {
    /// To be asked of the table whose holders last as long as their sessions.
    pub(crate) fn of_sessions() -> Self {
        Questions { sessions: true, ..Questions::default() }
    }

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
    }

    /// May this be granted? The inbox is a channel, if somebody listens there.
    pub(crate) fn acquire(&mut self, key: Key, claim: &Claim, inbox: Option<String>) {
        self.push(key, "acquire", Some(&claim.lock_id));
        let last = self.keys.len() - 1;
        self.weights[last] = small(claim.weight);
        self.capacities[last] = small(claim.capacity);
        self.expiries[last] = micros(claim.expiry);
        self.inboxes[last] = inbox;
        self.waits[last] = claim.waiting.as_ref().map(|waiting| micros(waiting.ttl));
        self.attempts[last] = claim.waiting.as_ref().map(|waiting| counted(waiting.attempt));
    }

    pub(crate) fn renew(&mut self, key: Key, lease: &Lease) {
        self.push(key, "renew", Some(&lease.lock_id));
        let last = self.keys.len() - 1;
        self.expiries[last] = micros(lease.expiry);
        self.tokens[last] = Some(number(lease.token));
    }

    pub(crate) fn release(&mut self, key: Key, id: &LockId) {
        self.push(key, "release", Some(id));
    }

    /// Takes it from all who hold it.
    pub(crate) fn break_lock(&mut self, key: Key) {
        self.push(key, "break", None);
    }

    /// What the statement is given.
    pub(crate) fn parameters(&self) -> [&(dyn ToSql + Sync); 12] {
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
            &self.sessions,
            &self.attempts,
        ]
    }
}

/// What a row says of a claim; `None` if nothing was written and it must be asked again.
pub(crate) fn attempt(row: &Row, claim: &Claim) -> Result<Option<Attempt>> {
    if !get::<bool>(row, "fits")? {
        let (theirs, ours) = (get::<i32>(row, "capacity")?, claim.capacity);
        return Err(Error::new(
            ErrorKind::Mismatch,
            format!("it is in use with a capacity of {theirs}, and {ours} was asked for"),
        )
        .about(&claim.resource)
        .advise("use one capacity everywhere; it can change once nobody holds it or waits for it"));
    }
    if !get::<bool>(row, "written")? {
        return Ok(None);
    }
    if let Some(number) = get::<Option<i64>>(row, "token")? {
        return Ok(Some(Attempt::granted(token(number))));
    }
    let remaining: Option<i64> = get(row, "remaining")?;
    Ok(Some(Attempt::busy(remaining.map(left))))
}

/// What rows say of renewals.
pub(crate) fn renewals(rows: &[Row], leases: usize) -> Result<Vec<Result<Renewal>>> {
    let mut answers = vec![Renewal::NotYours; leases];
    for row in rows {
        if get(row, "was_holder")?
            && let Some(answer) = item(row, leases)?.and_then(|at| answers.get_mut(at))
        {
            *answer = Renewal::Renewed;
        }
    }
    Ok(answers.into_iter().map(Ok).collect())
}

/// What rows say of releases.
pub(crate) fn releases(rows: &[Row], leases: usize) -> Result<Vec<Result<Released>>> {
    let mut answers = vec![Released::NotYours; leases];
    for row in rows {
        let (holder, waiter): (bool, bool) = (get(row, "was_holder")?, get(row, "was_waiter")?);
        if (holder || waiter)
            && let Some(answer) = item(row, leases)?.and_then(|at| answers.get_mut(at))
        {
            *answer = Released::Done { woke: get(row, "woke")? };
        }
    }
    Ok(answers.into_iter().map(Ok).collect())
}

/// From whom it was taken.
pub(crate) fn broken(rows: &[Row], sessions: bool) -> Result<Vec<Holder>> {
    let mut broken = Vec::new();
    for row in rows {
        let Some(id) = get::<Option<&str>>(row, "holder_id")? else { continue };
        let expires_in = if sessions { None } else { Some(left(get(row, "holder_remaining")?)) };
        broken.push(
            Holder::new(LockId::from_stored(id), weight(get(row, "holder_weight")?))
                .with_token(token(get(row, "token")?))
                .with_acquired_at(moment(get(row, "holder_since")?))
                .with_expires_in(expires_in),
        );
    }
    Ok(broken)
}
