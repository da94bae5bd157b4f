//! Semaphores and fair queues: permits in a row, held as long as the session that has them. A release hands permits to the first
//! waiters and notifies their sessions; waiters do not poll.

use std::sync::{Arc, Weak};
use std::time::Duration;

use distlock_core::store::support::errors;
use distlock_core::store::{Attempt, Claim, Holder, Inbox, Lease, SessionHold, Waiting};
use distlock_core::{CancellationToken, ErrorKind, FencingToken, LockId, Resource, Result};
use tokio::sync::oneshot;

use super::lock_session::LockSession;
use super::locked_row::{self, Queueing};
use super::session_watch;
use super::shared_session::SharedSession;
use super::store::StoreState;
use crate::error;
use crate::keys::Key;
use crate::pool_batch::{self, PoolBatch};
use crate::statement::Request;
use crate::tables::PoolTable;
use crate::values::column;

/// Longer than any session.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// The pause before the release of a permit is sent again, if another session has locked its row.
const RELEASE_INTERVAL: Duration = Duration::from_millis(500);

pub(super) async fn acquire(
    state: &Arc<StoreState>,
    claim: &Claim,
    withdraw: &CancellationToken,
) -> Result<Option<SessionHold>> {
    claim.check_weight()?;
    let shared = state.shared().await?;
    let session = &shared.session;
    let key = Key::new(&claim.resource, session.connection.server.utf8);
    let mut claim = claim.clone();
    claim.expiry = FOREVER;
    if !withdraw.is_cancelled() {
        claim.waiting = Some(Waiting::new(Inbox::new(session.channel.as_str()), FOREVER, 1));
    }
    // Before the claim is sent: a permit can be granted and broken before the waiter learns of either.
    let hold = session.life.add_hold(&claim.lock_id);
    let mut granted = shared.add_waiter(&claim.lock_id);
    let outcome = wait(state, &shared, &key, &claim, withdraw, &mut granted).await;
    shared.remove_waiter(&claim.lock_id);
    let outcome = match outcome {
        Ok(Some(token)) => match session.verify().await {
            Ok(()) => return Ok(Some(SessionHold { token, session: hold })),
            Err(error) => {
                session.close("the server did not reply in time");
                Err(error)
            }
        },
        Ok(None) if claim.waiting.is_none() => Ok(None),
        // Nothing of the claim may be left: neither a waiter nor a holder.
        Ok(None) => release_or_retry(state, session, key, &claim.lock_id).await.map(|()| None),
        Err(error) => {
            if error.kind() != ErrorKind::Mismatch {
                let _ = release_or_retry(state, session, key, &claim.lock_id).await;
            }
            Err(error)
        }
    };
    session.life.remove_hold(&claim.lock_id);
    outcome
}

/// Sends the claim, and waits for the notification.
async fn wait(
    state: &Arc<StoreState>,
    shared: &SharedSession,
    key: &Key,
    claim: &Claim,
    withdraw: &CancellationToken,
    granted: &mut oneshot::Receiver<u64>,
) -> Result<Option<FencingToken>> {
    let life = shared.session.life.session();
    loop {
        let asked = try_acquire(state, &shared.session, key, claim);
        let (attempt, blocking) = tokio::select! {
            biased;
            // What the statement in flight still changes is undone after it, on the same connection.
            () = withdraw.cancelled(), if claim.waiting.is_some() => return Ok(None),
            answer = asked => answer?,
        };
        if let Attempt::Granted { token, .. } = attempt {
            return Ok(Some(token));
        }
        if claim.waiting.is_none() {
            return Ok(None);
        }
        tokio::select! {
            biased;
            token = &mut *granted => return Ok(token.ok().map(FencingToken::new)),
            () = withdraw.cancelled() => return Ok(None),
            () = life.wait_for_end() => {
                // The engine sends the claim again, on the next session.
                return Err(errors::connection_lost("the session ended while the claim waited"));
            }
            () = session_watch::until_session_ends(state, &key.key, &blocking) => {}
        }
    }
}

/// The answer to a claim, and the session locks of the sessions that block it.
async fn try_acquire(
    state: &StoreState,
    session: &LockSession,
    key: &Key,
    claim: &Claim,
) -> Result<(Attempt, Vec<i64>)> {
    loop {
        let mut batch = PoolBatch::default();
        batch.acquire(key.clone(), claim, Some(session.channel.clone()));
        let waits = claim.waiting.is_some();
        let queueing = if waits { Queueing::WAITER } else { Queueing::ATTEMPT };
        let Some(rows) = locked_row::query(state, session, key, &batch, queueing).await? else {
            match waits {
                true => continue,
                false => return Ok((Attempt::busy(None), Vec::new())),
            }
        };
        let row = rows.first().ok_or_else(errors::too_few_answers)?;
        let Some(attempt) = pool_batch::attempt(row, claim)? else { continue };
        let blocking: Option<Vec<String>> = column(row, "blocking")?;
        let others = blocking.into_iter().flatten().filter(|channel| *channel != session.channel);
        return Ok((attempt, others.filter_map(|channel| session_lock(&channel)).collect()));
    }
}

/// The session lock of the session with this channel.
pub(super) fn session_lock(channel: &str) -> Option<i64> {
    u64::from_str_radix(channel.strip_prefix("dl_")?, 16).ok().map(u64::cast_signed)
}

/// Removes a lock id, as waiter and as holder.
async fn remove(state: &StoreState, session: &LockSession, key: &Key, id: &LockId) -> Result<()> {
    let mut batch = PoolBatch::default();
    batch.release(key.clone(), id);
    let rows = locked_row::query(state, session, key, &batch, Queueing::RELEASE).await?;
    rows.map(drop).ok_or_else(|| error::row_locked(None))
}

/// Removes the entries of ended sessions.
pub(super) async fn remove_ended(state: &StoreState, session: &LockSession, key: Key) -> Result<()> {
    remove(state, session, &key, &LockId::from_stored("")).await
}

/// Releases permits. If another session has locked the row, the release is retried in the background; after any other failure
/// the session ends.
async fn release_or_retry(
    state: &Arc<StoreState>,
    session: &Arc<LockSession>,
    key: Key,
    id: &LockId,
) -> Result<()> {
    let released = remove(state, session, &key, id).await;
    match &released {
        Ok(()) => {}
        // Other guards depend on the session: it does not end for a row that will be free again.
        Err(error) if error::is_row_locked(error) => {
            tokio::spawn(retry_release(Arc::downgrade(state), Arc::downgrade(session), key, id.clone()));
        }
        Err(_) => session.close("a permit could not be released"),
    }
    released
}

/// Retries until the row is free, or the session has ended and its permits with it.
async fn retry_release(state: Weak<StoreState>, session: Weak<LockSession>, key: Key, id: LockId) {
    loop {
        tokio::time::sleep(RELEASE_INTERVAL).await;
        let (Some(state), Some(session)) = (state.upgrade(), session.upgrade()) else { return };
        if !session.is_alive() {
            return;
        }
        match remove(&state, &session, &key, &id).await {
            Err(error) if error::is_row_locked(&error) => {}
            Ok(()) => return,
            Err(_) => return session.close("a permit could not be released"),
        }
    }
}

/// Releases what the session holds under this lock id. Permits of an older session ended with it.
pub(super) async fn release(state: &Arc<StoreState>, lease: &Lease) -> Result<()> {
    let Some(session) = state.last_shared() else { return Ok(()) };
    if session.life.remove_hold(&lease.lock_id).is_none() {
        return Ok(());
    }
    if !session.is_alive() {
        session.close("a permit was released after its session had ended");
        return Ok(());
    }
    let key = Key::new(&lease.resource, session.connection.server.utf8);
    release_or_retry(state, &session, key, &lease.lock_id).await
}

pub(super) async fn break_lock(state: &StoreState, resource: &Resource) -> Result<Vec<Holder>> {
    let shared = state.shared().await?;
    let connection = &shared.session.connection;
    let mut batch = PoolBatch::default();
    batch.break_lock(Key::new(resource, connection.server.utf8));
    // One step: a session does not renew, so a holder that is not notified would never learn of it.
    let rows = connection.query(&Request::new(&state.pool.break_lock, &batch.parameters())).await?;
    pool_batch::broken(&rows, PoolTable::Sessions)
}
