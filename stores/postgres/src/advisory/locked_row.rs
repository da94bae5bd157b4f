//! A row of a semaphore that is locked when a statement comes to it. As in the lease store: a row that one transaction keeps locked
//! is an error, with the session named; a row that one transaction after the other locks is one that clients of ours queue for, and
//! the statement queues too. Other guards depend on the session that sends it, so it waits for short times, with checks between.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use distlock_core::Result;
use tokio_postgres::Row;

use super::lock_session::LockSession;
use super::store::StoreState;
use crate::error;
use crate::keys::Key;
use crate::pool_batch::PoolBatch;
use crate::row_locks::{self, Blocker, CHECK_INTERVAL, IDLE_BLOCKER, ONE_BLOCKER, Session};
use crate::statement::{Request, RowLockTimeout, Statement};
use crate::tables::{PoolTable, Tables};

/// A session with a shorter time-out than this must reply sooner than after [`RowLockTimeout::Turn`].
const PATIENT_SESSION: Duration = Duration::from_secs(4);

/// What a request does about a row that clients queue for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queueing {
    /// How long it waits in the queue each time.
    turn: RowLockTimeout,
    /// How long it queues in all.
    patience: Duration,
}

impl Queueing {
    /// For an attempt that does not wait for the permit: then it is contended.
    pub(super) const ATTEMPT: Queueing =
        Queueing { turn: RowLockTimeout::Default, patience: Duration::from_millis(700) };
    /// For a claim that waits: it is sent again.
    pub(super) const WAITER: Queueing =
        Queueing { turn: RowLockTimeout::Default, patience: Duration::from_secs(4) };
    /// For what ends a hold: a user waits for it, and so do others. It gets its turn, because claims leave the queue before it.
    pub(super) const RELEASE: Queueing =
        Queueing { turn: RowLockTimeout::Turn, patience: Duration::from_secs(4) };
}

#[derive(Debug)]
pub(super) struct LockedRow {
    row_locks: Statement,
    blockers: Statement,
    /// The semaphores whose rows stayed locked at the last request, and by which transaction.
    remembered: Mutex<HashMap<String, Blocker>>,
}

impl LockedRow {
    pub(super) fn new(tables: &Tables) -> Self {
        LockedRow {
            row_locks: row_locks::pool_statement(tables, PoolTable::Sessions),
            blockers: row_locks::blockers_statement(tables),
            remembered: Mutex::default(),
        }
    }

    fn remembered(&self) -> MutexGuard<'_, HashMap<String, Blocker>> {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends a batch about one semaphore. A row that one transaction keeps locked is an error soon, and the next time at once.
/// `None`: others queued for the row, and the batch did not get its turn in this time.
///
/// # Cancel safety
/// Dropping the future leaves the outcome unknown.
pub(super) async fn query(
    state: &StoreState,
    session: &LockSession,
    key: &Key,
    batch: &PoolBatch,
    queueing: Queueing,
) -> Result<Option<Vec<Row>>> {
    let parameters = batch.parameters();
    let request = Request::new(&state.pool.batch, &parameters);
    let known = state.locked_row.remembered().get(&key.key).cloned();
    let turn = if session.timeout < PATIENT_SESSION { RowLockTimeout::Default } else { queueing.turn };
    let mut timeout = if known.is_some() { RowLockTimeout::Short } else { RowLockTimeout::Default };
    let started = Instant::now();
    let mut last: Option<(Blocker, Instant)> = None;
    let (mut changed, mut ended) = (false, false);
    loop {
        let rows = session.connection.query(&request.with_timeout(timeout)).await;
        if !rows.as_ref().is_err_and(error::is_row_locked) {
            state.locked_row.remembered().remove(&key.key);
            return rows.map(Some);
        }
        // While one transaction keeps the row locked, another statement would only wait for it too.
        loop {
            let Some(blocker) = row_blocker(state, session, key).await? else {
                // Free: after a blocker that has ended, or one after the other.
                timeout = if changed { turn } else { RowLockTimeout::Default };
                (last, changed) = (None, true);
                break;
            };
            let now = Instant::now();
            let since = match &last {
                Some((before, since)) if *before == blocker => *since,
                before => {
                    let is_other = before.is_some() || changed;
                    last = Some((blocker.clone(), now));
                    if is_other {
                        (timeout, changed, ended) = (turn, true, false);
                        break;
                    }
                    now
                }
            };
            let locked_for = now.duration_since(since);
            let is_known = known.as_ref() == Some(&blocker);
            if is_known || locked_for >= IDLE_BLOCKER {
                let found = owner(state, session, &blocker).await?;
                // If it ended between the check and the look-up, the next check tells. Locks that several transactions share
                // have no session that could be found.
                let has_just_ended =
                    found.is_none() && blocker.is_some() && !std::mem::replace(&mut ended, true);
                let owner = found.unwrap_or_default();
                if !has_just_ended && (is_known || owner.idle || locked_for >= ONE_BLOCKER) {
                    state.locked_row.remembered().insert(key.key.clone(), blocker);
                    return Err(error::row_locked(owner.pid));
                }
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
            if blocker.is_none() {
                // Another session inserts the row. Only a statement can tell whether it still does.
                timeout = RowLockTimeout::Short;
                break;
            }
        }
        if changed && started.elapsed() > queueing.patience {
            return Ok(None);
        }
    }
}

/// The transaction that has locked the row, or `None` if it is free.
async fn row_blocker(state: &StoreState, session: &LockSession, key: &Key) -> Result<Option<Blocker>> {
    let keys = [key.key.as_str()];
    let rows = session.connection.query(&Request::new(&state.locked_row.row_locks, &[&&keys[..]])).await?;
    Ok(match row_locks::row_states(&rows)?.remove(&key.key) {
        Some(None) => None,
        Some(blocker) => Some(blocker),
        None => Some(None),
    })
}

/// The session of a transaction, as far as the server shows it. `None` if it has ended.
async fn owner(state: &StoreState, session: &LockSession, blocker: &Blocker) -> Result<Option<Session>> {
    let Some(blocker) = blocker else { return Ok(None) };
    let blockers = [blocker.as_str()];
    let rows = session.connection.query(&Request::new(&state.locked_row.blockers, &[&&blockers[..]])).await?;
    Ok(row_locks::sessions(&rows)?.remove(blocker))
}
