//! Pools: one row of the pool table each, for a semaphore, a reader-writer lock or the fair queue of a mutex.

use std::future::Future;

use distlock_core::store::support::batch;
use distlock_core::store::{Attempt, Batch, Claim, Holder, Lease, Released, Renewal};
use distlock_core::{Error, ErrorKind, Resource, Result};
use tokio_postgres::Row;

use super::store::StoreState;
use crate::keys::{Key, channel};
use crate::pool_batch::{self, PoolBatch};
use crate::statement::{Request, RowLockTimeout};
use crate::tables::PoolTable;
use crate::values::item_position;

/// How often a claim is sent again because another session inserted the row first. That happens once in the life of a row.
const MAX_RACES: u32 = 50;
/// How many items go into a statement behind a pooler. The settings of the session are not ours there, and the server compiles
/// a statement that looks expensive: ten seconds and more for one that then runs for four milliseconds.
const POOLER_BATCH: usize = 32;

async fn query(state: &StoreState, batch: &PoolBatch, timeout: RowLockTimeout) -> Result<Vec<Row>> {
    state.shared.query(&Request::new(&state.pool.batch, &batch.parameters()).with_timeout(timeout)).await
}

/// Sends the items in chunks of the size that one statement may have. A chunk that fails as a whole fails for each of its
/// items if there are others.
async fn in_chunks<'a, T, A, F>(
    state: &StoreState,
    items: &'a [&'a T],
    send: impl Fn(&'a [&'a T]) -> F,
) -> Batch<A>
where
    F: Future<Output = Batch<A>>,
{
    if !state.server.pooled || items.len() <= POOLER_BATCH {
        return send(items).await;
    }
    let mut answers = Vec::with_capacity(items.len());
    for chunk in items.chunks(POOLER_BATCH) {
        answers.extend(batch::each(send(chunk).await, chunk.len()));
    }
    Ok(answers)
}

/// No two of the claims may have the same pool and lock id.
pub(super) async fn try_acquire(
    state: &StoreState,
    claims: &[&Claim],
    timeout: RowLockTimeout,
) -> Batch<Attempt> {
    in_chunks(state, claims, |claims| try_acquire_chunk(state, claims, timeout)).await
}

async fn try_acquire_chunk(state: &StoreState, claims: &[&Claim], timeout: RowLockTimeout) -> Batch<Attempt> {
    let mut answers: Vec<Option<Result<Attempt>>> = claims.iter().map(|_| None).collect();
    for _ in 0..MAX_RACES {
        let open: Vec<usize> = (0..claims.len()).filter(|at| answers[*at].is_none()).collect();
        if open.is_empty() {
            break;
        }
        let mut batch = PoolBatch::default();
        for at in &open {
            let claim = claims[*at];
            let inbox =
                claim.waiting.as_ref().filter(|_| state.listens).map(|waiting| channel(&waiting.inbox));
            batch.acquire(Key::new(&claim.resource, state.server.utf8), claim, inbox);
        }
        let rows = match query(state, &batch, timeout).await {
            Ok(rows) => rows,
            // The others were answered in an earlier round, and those answers hold.
            Err(error) if open.len() < claims.len() => {
                for at in open {
                    answers[at] = Some(Err(error.clone()));
                }
                break;
            }
            Err(error) => return Err(error),
        };
        for row in rows {
            if let Some(at) = item_position(&row, open.len())?.and_then(|at| open.get(at)) {
                answers[*at] = pool_batch::attempt(&row, claims[*at]).transpose();
            }
        }
    }
    let beaten = || {
        let detail = "other clients kept inserting and deleting its row";
        Err(Error::new(ErrorKind::Unavailable, detail))
    };
    Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(beaten)).collect())
}

pub(super) async fn renew(state: &StoreState, leases: &[&Lease], timeout: RowLockTimeout) -> Batch<Renewal> {
    in_chunks(state, leases, |leases| async move {
        let mut batch = PoolBatch::default();
        for lease in leases {
            batch.renew(Key::new(&lease.resource, state.server.utf8), lease);
        }
        pool_batch::renewals(&query(state, &batch, timeout).await?, leases.len())
    })
    .await
}

pub(super) async fn release(
    state: &StoreState,
    leases: &[&Lease],
    timeout: RowLockTimeout,
) -> Batch<Released> {
    in_chunks(state, leases, |leases| async move {
        let mut batch = PoolBatch::default();
        for lease in leases {
            batch.release(Key::new(&lease.resource, state.server.utf8), &lease.lock_id);
        }
        pool_batch::releases(&query(state, &batch, timeout).await?, leases.len())
    })
    .await
}

pub(super) async fn break_lock(
    state: &StoreState,
    resource: &Resource,
    timeout: RowLockTimeout,
) -> Result<Vec<Holder>> {
    let mut batch = PoolBatch::default();
    batch.break_lock(Key::new(resource, state.server.utf8));
    let parameters = batch.parameters();
    let request = Request::new(&state.pool.break_lock, &parameters).with_timeout(timeout);
    let rows = state.shared.query(&request).await?;
    pool_batch::broken(&rows, PoolTable::Leases)
}
