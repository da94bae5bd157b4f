//! The pool record: one row of the pool table, for a semaphore, a reader-writer lock or the queue of a fair mutex.

use distlock_core::store::{Attempt, Batch, Claim, Holder, Lease, Released, Renewal};
use distlock_core::{Error, ErrorKind, RecordKind, Resource, Result};
use tokio_postgres::Row;

use super::locked::Verb;
use super::{Inner, spread};
use crate::names::{Key, channel};
use crate::questions::{self, Questions};
use crate::statement::{Patience, Statement, Tables};
use crate::values::item;

/// How often a claim is asked again that somebody else's new row kept from being written. It happens once in the life
/// of a row.
const RACES: u32 = 50;

#[derive(Debug)]
pub(super) struct Statements {
    step: Statement,
    break_lock: Statement,
}

impl Statements {
    pub(super) fn new(tables: &Tables) -> Self {
        Statements {
            step: questions::step(3, tables, false),
            break_lock: questions::break_step(11, tables, false),
        }
    }
}

/// No two of the claims may have the same pool and lock id.
pub(super) struct Acquire;
/// Renewals of leases.
pub(super) struct Renew;
/// Releases of leases.
pub(super) struct Release;

impl Verb for Acquire {
    type Item = Claim;
    type Answer = Attempt;
    const KIND: RecordKind = RecordKind::Pool;

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
    const KIND: RecordKind = RecordKind::Pool;

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
    const KIND: RecordKind = RecordKind::Pool;

    fn resource(lease: &Lease) -> &Resource {
        &lease.resource
    }

    async fn ask(store: &Inner, leases: &[&Lease], patience: Patience) -> Batch<Released> {
        release(store, leases, patience).await
    }
}

async fn ask(store: &Inner, questions: &Questions, patience: Patience) -> Result<Vec<Row>> {
    store.link.run_with(&store.pool.step, &questions.parameters(), patience).await
}

/// How many questions go into a statement. Behind a pooler the settings of the session are not ours: a statement that
/// looks expensive is compiled first, which takes the server ten seconds and more for one that then runs for four
/// milliseconds.
fn at_once(store: &Inner) -> usize {
    if store.server.pooled { 32 } else { usize::MAX }
}

async fn try_acquire(store: &Inner, claims: &[&Claim], patience: Patience) -> Batch<Attempt> {
    let mut answers = Vec::with_capacity(claims.len());
    for part in claims.chunks(at_once(store)) {
        answers.extend(spread(try_acquire_at_once(store, part, patience).await, part.len(), claims.len())?);
    }
    Ok(answers)
}

async fn try_acquire_at_once(store: &Inner, claims: &[&Claim], patience: Patience) -> Batch<Attempt> {
    let mut answers: Vec<Option<Result<Attempt>>> =
        claims.iter().map(|claim| claim.check_weight().err().map(Err)).collect();
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
        let rows = match ask(store, &questions, patience).await {
            Ok(rows) => rows,
            // What the others got in an earlier round is theirs, and they must hear of it.
            Err(error) if open.len() < claims.len() => {
                for at in open {
                    answers[at] = Some(Err(error.clone()));
                }
                break;
            }
            Err(error) => return Err(error),
        };
        for row in rows {
            if let Some(at) = item(&row, open.len())?.and_then(|at| open.get(at)) {
                answers[*at] = questions::attempt(&row, claims[*at]).transpose();
            }
        }
    }
    let beaten = || Err(Error::new(ErrorKind::Unavailable, "somebody else was faster, again and again"));
    Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(beaten)).collect())
}

async fn renew(store: &Inner, leases: &[&Lease], patience: Patience) -> Batch<Renewal> {
    let mut answers = Vec::with_capacity(leases.len());
    for part in leases.chunks(at_once(store)) {
        answers.extend(spread(renew_at_once(store, part, patience).await, part.len(), leases.len())?);
    }
    Ok(answers)
}

async fn renew_at_once(store: &Inner, leases: &[&Lease], patience: Patience) -> Batch<Renewal> {
    let mut questions = Questions::default();
    for lease in leases {
        questions.renew(Key::of(&lease.resource, store.server.utf8), lease);
    }
    questions::renewals(&ask(store, &questions, patience).await?, leases.len())
}

async fn release(store: &Inner, leases: &[&Lease], patience: Patience) -> Batch<Released> {
    let mut answers = Vec::with_capacity(leases.len());
    for part in leases.chunks(at_once(store)) {
        answers.extend(spread(release_at_once(store, part, patience).await, part.len(), leases.len())?);
    }
    Ok(answers)
}

async fn release_at_once(store: &Inner, leases: &[&Lease], patience: Patience) -> Batch<Released> {
    let mut questions = Questions::default();
    for lease in leases {
        questions.release(Key::of(&lease.resource, store.server.utf8), &lease.lock_id);
    }
    questions::releases(&ask(store, &questions, patience).await?, leases.len())
}

pub(super) async fn break_lock(store: &Inner, resource: &Resource) -> Result<Vec<Holder>> {
    let mut questions = Questions::default();
    questions.break_lock(Key::of(resource, store.server.utf8));
    let rows = store.link.run(&store.pool.break_lock, &questions.parameters()).await?;
    questions::broken(&rows, false)
}
