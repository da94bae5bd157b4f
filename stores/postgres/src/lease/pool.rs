//! The pool record: one row of the pool table, for a semaphore, a reader-writer lock or the queue of a fair mutex.

use distlock_core::store::{Attempt, Claim, Holder, Lease, Released, Renewal};
use distlock_core::{Error, ErrorKind, LockId, Resource, Result};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::Inner;
use crate::link::Link;
use crate::names::{Key, channel};
use crate::statement::{Statement, Tables};
use crate::values::{get, item, left, micros, moment, number, small, token, weight};

static STEP: [Type; 10] = [
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
];

/// How often a claim is asked again that somebody else's new row kept from being written. It happens once in the life
/// of a row.
const RACES: u32 = 50;

#[derive(Debug)]
pub(super) struct Statements {
    step: Statement,
}

impl Statements {
    pub(super) fn new(tables: &Tables) -> Self {
        Statements { step: Statement::new(3, include_str!("../sql/pool_step.sql"), tables, &STEP) }
    }
}

/// Questions about pools, column by column.
#[derive(Default)]
pub(super) struct Questions {
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
}

impl Questions {
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
    }

    fn acquire(&mut self, key: Key, claim: &Claim, inbox: Option<String>) {
        self.push(key, "acquire", Some(&claim.lock_id));
        let last = self.keys.len() - 1;
        self.weights[last] = small(claim.weight);
        self.capacities[last] = small(claim.capacity);
        self.expiries[last] = micros(claim.expiry);
        self.inboxes[last] = inbox;
        self.waits[last] = claim.waiting.as_ref().map(|waiting| micros(waiting.ttl));
    }

    fn renew(&mut self, key: Key, lease: &Lease) {
        self.push(key, "renew", Some(&lease.lock_id));
        let last = self.keys.len() - 1;
        self.expiries[last] = micros(lease.expiry);
        self.tokens[last] = Some(number(lease.token));
    }

    async fn ask(&self, link: &Link, step: &Statement) -> Result<Vec<Row>> {
        link.run(
            step,
            &[
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
            ],
        )
        .await
    }
}

/// What is wrong with a claim, whatever the state of its pool.
fn check(claim: &Claim) -> Result<()> {
    let (weight, capacity) = (claim.weight, claim.capacity);
    if weight > 0 && weight <= capacity && i32::try_from(capacity).is_ok() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidInput,
        format!("a weight of {weight} is not between 1 and the capacity of {capacity}"),
    )
    .about(&claim.resource)
    .advise("ask for at least one permit and for no more than there are"))
}

/// No two of the claims may have the same pool and lock id.
pub(super) async fn try_acquire(store: &Inner, claims: &[&Claim]) -> Result<Vec<Result<Attempt>>> {
    let mut answers: Vec<Option<Result<Attempt>>> =
        claims.iter().map(|claim| check(claim).err().map(Err)).collect();
    for _ in 0..RACES {
        let open: Vec<usize> = (0..claims.len()).filter(|at| answers[*at].is_none()).collect();
        if open.is_empty() {
            break;
        }
        let mut questions = Questions::default();
        for at in &open {
            let claim = claims[*at];
            let inbox =
                claim.waiting.as_ref().filter(|_| store.listens).map(|waiting| channel(&waiting.inbox));
            questions.acquire(Key::of(&claim.resource, store.server.utf8), claim, inbox);
        }
        for row in questions.ask(&store.link, &store.pool.step).await? {
            if let Some(at) = item(&row, open.len())?.and_then(|at| open.get(at)) {
                answers[*at] = attempt(&row, claims[*at]).transpose();
            }
        }
    }
    let beaten = || Err(Error::new(ErrorKind::Unavailable, "somebody else was faster, again and again"));
    Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(beaten)).collect())
}

/// What a row says of a claim; `None` if nothing was written and it must be asked again.
fn attempt(row: &Row, claim: &Claim) -> Result<Option<Attempt>> {
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
        return Ok(Some(Attempt::Granted { token: token(number) }));
    }
    let remaining: Option<i64> = get(row, "remaining")?;
    Ok(Some(Attempt::Busy { retry_after: remaining.map(left) }))
}

pub(super) async fn renew(store: &Inner, leases: &[&Lease]) -> Result<Vec<Result<Renewal>>> {
    if leases.is_empty() {
        return Ok(Vec::new());
    }
    let mut questions = Questions::default();
    for lease in leases {
        questions.renew(Key::of(&lease.resource, store.server.utf8), lease);
    }
    let mut answers = vec![Renewal::NotYours; leases.len()];
    for row in questions.ask(&store.link, &store.pool.step).await? {
        if get(&row, "was_holder")?
            && let Some(answer) = item(&row, leases.len())?.and_then(|at| answers.get_mut(at))
        {
            *answer = Renewal::Extended;
        }
    }
    Ok(answers.into_iter().map(Ok).collect())
}

pub(super) async fn release(store: &Inner, leases: &[&Lease]) -> Result<Vec<Result<Released>>> {
    if leases.is_empty() {
        return Ok(Vec::new());
    }
    let mut questions = Questions::default();
    for lease in leases {
        questions.push(Key::of(&lease.resource, store.server.utf8), "release", Some(&lease.lock_id));
    }
    let mut answers = vec![Released::NotYours; leases.len()];
    for row in questions.ask(&store.link, &store.pool.step).await? {
        let (holder, waiter): (bool, bool) = (get(&row, "was_holder")?, get(&row, "was_waiter")?);
        if (holder || waiter)
            && let Some(answer) = item(&row, leases.len())?.and_then(|at| answers.get_mut(at))
        {
            *answer = Released::Done { woke: get(&row, "woke")? };
        }
    }
    Ok(answers.into_iter().map(Ok).collect())
}

pub(super) async fn break_lock(store: &Inner, resource: &Resource) -> Result<Vec<Holder>> {
    let mut questions = Questions::default();
    questions.push(Key::of(resource, store.server.utf8), "break", None);
    let mut broken = Vec::new();
    for row in questions.ask(&store.link, &store.pool.step).await? {
        let Some(id) = get::<Option<&str>>(&row, "holder_id")? else { continue };
        broken.push(Holder {
            lock_id: LockId::from_stored(id),
            token: Some(token(get(&row, "token")?)),
            acquired_at: moment(get(&row, "holder_since")?),
            expires_in: Some(left(get(&row, "holder_remaining")?)),
            weight: weight(get(&row, "holder_weight")?),
        });
    }
    Ok(broken)
}
