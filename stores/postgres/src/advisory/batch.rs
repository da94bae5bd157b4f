//! Mutexes that are granted at once: attempts and releases of many tasks in one statement on the shared session.
//!
//! The server grants a session a lock again that it holds, so each key is reserved before its attempt is sent, and belongs to
//! one claim of this process. Locks outlive a statement that fails: what a failed attempt may have acquired is released, or the
//! session ends.

use std::collections::HashSet;
use std::sync::Arc;

use distlock_core::store::support::errors;
use distlock_core::store::{Batch, Claim, Lease, SessionHold};
use distlock_core::{Error, ErrorKind, FencingToken, Kind, LockId, Result};
use tokio_postgres::types::{ToSql, Type};

use super::key::AdvisoryKey;
use super::lock_session::{CloseOnDrop, LockSession};
use super::shared_session::{Reservation, SharedSession};
use super::store::StoreState;
use crate::error;
use crate::statement::{Request, Slot, Statement};
use crate::tables::Tables;
use crate::values::{column, to_token};

const NO_ANSWER: &str = "the outcome of an attempt is unknown";
const NOT_RELEASED: &str = "a lock could not be released";

static ONE: [Type; 3] = [Type::INT8, Type::BOOL, Type::INT4];
static KEYS: [Type; 3] = [Type::INT8_ARRAY, Type::BOOL_ARRAY, Type::INT4_ARRAY];
static KEYS_AND_ROWS: [Type; 4] = [Type::INT8_ARRAY, Type::BOOL_ARRAY, Type::INT4_ARRAY, Type::TEXT_ARRAY];

#[derive(Debug)]
pub(super) struct BatchStatements {
    try_one: Statement,
    try_batch: Statement,
    unlock_one: Statement,
    unlock_batch: Statement,
    release_batch: Statement,
}

impl BatchStatements {
    pub(super) fn new(tables: &Tables) -> Self {
        let statement = |slot, text, types| Statement::new(slot, text, tables, types);
        let (try_one, try_batch) =
            (include_str!("../sql/advisory_try_one.sql"), include_str!("../sql/advisory_try_batch.sql"));
        let (unlock_one, unlock_batch) = (
            include_str!("../sql/advisory_unlock_one.sql"),
            include_str!("../sql/advisory_unlock_batch.sql"),
        );
        let release_batch = include_str!("../sql/advisory_release_batch.sql");
        BatchStatements {
            try_one: statement(Slot::AdvisoryTryOne, try_one, &ONE),
            try_batch: statement(Slot::AdvisoryTryBatch, try_batch, &KEYS),
            unlock_one: statement(Slot::AdvisoryUnlockOne, unlock_one, &ONE),
            unlock_batch: statement(Slot::AdvisoryUnlockBatch, unlock_batch, &KEYS),
            release_batch: statement(Slot::AdvisoryReleaseBatch, release_batch, &KEYS_AND_ROWS),
        }
    }
}

/// Keys as the columns of the statements.
#[derive(Default)]
struct KeyColumns {
    keys: Vec<i64>,
    pairs: Vec<bool>,
    seconds: Vec<i32>,
}

impl FromIterator<AdvisoryKey> for KeyColumns {
    fn from_iter<I: IntoIterator<Item = AdvisoryKey>>(keys: I) -> Self {
        let mut columns = KeyColumns::default();
        for key in keys {
            let (key, pair, second) = key.parts();
            columns.keys.push(key);
            columns.pairs.push(pair);
            columns.seconds.push(second);
        }
        columns
    }
}

/// Tries each of these mutexes once.
pub(super) async fn try_acquire(state: &StoreState, claims: &[Claim]) -> Batch<Option<SessionHold>> {
    // Not opened here: this may run in a task whose runtime ends before the session.
    let Some(shared) = state.shared.current() else {
        return Err(errors::unavailable("the session has ended"));
    };
    if let [claim] = claims {
        return Ok(vec![try_one(state, &shared, claim).await]);
    }
    let mut answers: Vec<Result<Option<SessionHold>>> = Vec::with_capacity(claims.len());
    let mut parts = vec![claims];
    let mut exhausted: Option<Error> = None;
    while let Some(part) = parts.pop() {
        if let Some(error) = &exhausted {
            answers.extend(part.iter().map(|_| Err(error.clone())));
            continue;
        }
        match try_part(state, &shared, part).await {
            Ok(granted) => answers.extend(granted),
            Err(error) if part.len() == 1 => {
                // What comes after it does not fit into the lock table either.
                exhausted = Some(error.clone()).filter(|error| error.kind() == ErrorKind::Exhausted);
                answers.push(Err(error));
            }
            Err(error) if shared.session.is_alive() && !error.is_outcome_unknown() => {
                // Nothing of it is left. One claim may be the cause, or the last ones do not fit into the lock table.
                let (first, second) = part.split_at(part.len() / 2);
                parts.extend([second, first]);
            }
            Err(error) => answers.extend(part.iter().map(|_| Err(error.clone()))),
        }
    }
    Ok(answers)
}

/// Tries claims in one statement. After an error nothing of them is left.
async fn try_part(
    state: &StoreState,
    shared: &Arc<SharedSession>,
    claims: &[Claim],
) -> Batch<Option<SessionHold>> {
    if let [claim] = claims {
        return try_one(state, shared, claim).await.map(|granted| vec![Ok(granted)]);
    }
    let mut answers: Vec<Result<Option<SessionHold>>> = Vec::with_capacity(claims.len());
    let mut reserved = Vec::with_capacity(claims.len());
    let mut is_unconfirmed = false;
    for (at, claim) in claims.iter().enumerate() {
        answers.push(match AdvisoryKey::of_resource(&claim.resource, &state.config) {
            Ok(key) if shared.reserve(key, false) == Reservation::Excluded => {
                is_unconfirmed |= !shared.is_confirmed(key);
                Ok(None)
            }
            Ok(key) => {
                reserved.push((at, key));
                Ok(None)
            }
            Err(error) => Err(error),
        });
    }
    if !reserved.is_empty() {
        let granted = try_reserved(state, shared, claims, &reserved).await?;
        for ((at, _), granted) in reserved.iter().zip(granted) {
            answers[*at] = Ok(granted);
        }
    } else if is_unconfirmed {
        // As for one claim.
        shared.session.verify().await?;
    }
    Ok(answers)
}

/// Tries claims whose keys are reserved. After an error nothing of them is left.
async fn try_reserved(
    state: &StoreState,
    shared: &Arc<SharedSession>,
    claims: &[Claim],
    reserved: &[(usize, AdvisoryKey)],
) -> Result<Vec<Option<SessionHold>>> {
    let close_guard = CloseOnDrop::new(&shared.session, NO_ANSWER);
    let columns: KeyColumns = reserved.iter().map(|(_, key)| *key).collect();
    let parameters: [&(dyn ToSql + Sync); 3] = [&columns.keys, &columns.pairs, &columns.seconds];
    // Once: a retry after a failure might acquire a lock twice.
    let rows = shared.session.connection.run_once(&Request::new(&state.batch.try_batch, &parameters)).await;
    let outcome = rows.map_err(error::from_statement).and_then(|rows| {
        let row = rows.first().ok_or_else(errors::too_few_answers)?;
        let (granted, token): (Vec<bool>, Option<i64>) = (column(row, "granted")?, column(row, "token")?);
        if granted.len() != reserved.len() || (granted.contains(&true) && token.is_none()) {
            return Err(errors::too_few_answers());
        }
        Ok((granted, to_token(token.unwrap_or(0))))
    });
    let (granted, token) = match outcome {
        Ok(outcome) => outcome,
        Err(error) => {
            undo(state, shared, reserved.iter().map(|(_, key)| *key).collect()).await;
            close_guard.disarm();
            return Err(error);
        }
    };
    close_guard.disarm();
    let is_granted = |(reserved, granted): (&(usize, AdvisoryKey), &bool)| granted.then_some(*reserved);
    let grants: Vec<(usize, AdvisoryKey)> = reserved.iter().zip(&granted).filter_map(is_granted).collect();
    let busy = reserved.iter().zip(&granted).filter(|(_, granted)| !**granted).map(|((_, key), _)| *key);
    shared.unreserve_all(busy);
    hold(shared, grants.iter().map(|(at, key)| (&claims[*at], *key)), token);
    let session = shared.session.life.session();
    let answer = |granted: bool| granted.then(|| SessionHold { token, session: session.clone() });
    Ok(granted.into_iter().map(answer).collect())
}

/// Notes what the shared session holds from now on.
fn hold<'a>(
    shared: &SharedSession,
    grants: impl Iterator<Item = (&'a Claim, AdvisoryKey)> + Clone,
    token: FencingToken,
) {
    shared.granted_in_batch(grants.clone().map(|(claim, key)| (key, &claim.lock_id)));
    shared.rows.granted(grants.map(|(claim, key)| (&claim.lock_id, &claim.resource, key)), token);
}

/// Tries a lone claim.
async fn try_one(
    state: &StoreState,
    shared: &Arc<SharedSession>,
    claim: &Claim,
) -> Result<Option<SessionHold>> {
    let key = AdvisoryKey::of_resource(&claim.resource, &state.config)?;
    if shared.reserve(key, false) == Reservation::Excluded {
        if !shared.is_confirmed(key) {
            // A request of this process for the key is in flight, and the server may be down. The reply to that request comes
            // before the reply to this one.
            shared.session.verify().await?;
        }
        return Ok(None);
    }
    let close_guard = CloseOnDrop::new(&shared.session, NO_ANSWER);
    let (number, pair, second) = key.parts();
    let parameters: [&(dyn ToSql + Sync); 3] = [&number, &pair, &second];
    let rows = shared.session.connection.run_once(&Request::new(&state.batch.try_one, &parameters)).await;
    let outcome = rows.map_err(error::from_statement).and_then(|rows| {
        let row = rows.first().ok_or_else(errors::too_few_answers)?;
        column::<Option<i64>>(row, "token")
    });
    if outcome.is_err() {
        undo(state, shared, vec![key]).await;
    }
    close_guard.disarm();
    match outcome? {
        Some(token) => {
            let token = to_token(token);
            hold(shared, std::iter::once((claim, key)), token);
            Ok(Some(SessionHold { token, session: shared.session.life.session() }))
        }
        None => {
            shared.unreserve(key);
            Ok(None)
        }
    }
}

/// Releases what a failed attempt may have acquired: locks outlive the statement. If that fails too, the session ends.
async fn undo(state: &StoreState, shared: &SharedSession, keys: Vec<AdvisoryKey>) {
    match shared.session.is_alive() && unlock(state, &shared.session, &keys).await.is_ok() {
        true => keys.into_iter().for_each(|key| shared.unreserve(key)),
        false => shared.session.close(NO_ANSWER),
    }
}

/// Releases locks without rows.
async fn unlock(state: &StoreState, session: &LockSession, keys: &[AdvisoryKey]) -> Result<()> {
    if let [key] = keys {
        let (number, pair, second) = key.parts();
        let parameters: [&(dyn ToSql + Sync); 3] = [&number, &pair, &second];
        return session.connection.query(&Request::new(&state.batch.unlock_one, &parameters)).await.map(drop);
    }
    let columns: KeyColumns = keys.iter().copied().collect();
    let parameters: [&(dyn ToSql + Sync); 3] = [&columns.keys, &columns.pairs, &columns.seconds];
    session.connection.query(&Request::new(&state.batch.unlock_batch, &parameters)).await.map(drop)
}

/// The key of a mutex. A lease of a name that is no key was never granted.
fn key_of(state: &StoreState, lease: &Lease) -> Option<AdvisoryKey> {
    let is_mutex = lease.resource.kind() == Kind::Mutex;
    is_mutex.then(|| AdvisoryKey::of_resource(&lease.resource, &state.config).ok()).flatten()
}

/// Whether the lock is released by [`release`].
pub(super) fn is_batched(state: &StoreState, lease: &Lease) -> bool {
    let shared = state.shared.last();
    let held = shared.zip(key_of(state, lease));
    held.is_some_and(|(shared, key)| shared.is_batched(key, &lease.lock_id))
}

/// Releases mutexes that the shared session holds. Those that it does not hold any more are released already: an earlier session was
/// closed, or is, before the next one is opened.
///
/// # Cancel safety
/// Dropping the future ends the session: nothing else knows of the locks any more.
pub(super) async fn release(state: &StoreState, leases: &[Lease]) -> Batch<()> {
    let Some(shared) = state.shared.last() else { return Ok(leases.iter().map(|_| Ok(())).collect()) };
    let keyed = leases.iter().filter_map(|lease| Some((key_of(state, lease)?, &lease.lock_id)));
    let held = shared.begin_releases(keyed);
    if held.is_empty() {
        return Ok(leases.iter().map(|_| Ok(())).collect());
    }
    // Before the first await.
    let close_guard = CloseOnDrop::new(&shared.session, NOT_RELEASED);
    let releases = Releases::new(&shared, &held);
    let released = releases.send(state).await;
    close_guard.disarm();
    let ids: HashSet<&LockId> = held.iter().map(|(_, id)| *id).collect();
    let answer = |lease: &Lease| if ids.contains(&lease.lock_id) { released.clone() } else { Ok(()) };
    Ok(leases.iter().map(answer).collect())
}

/// Locks that are released together.
struct Releases<'a> {
    shared: &'a SharedSession,
    keys: Vec<AdvisoryKey>,
    /// Those that have rows.
    rows: Vec<&'a LockId>,
}

impl<'a> Releases<'a> {
    fn new(shared: &'a SharedSession, held: &[(AdvisoryKey, &'a LockId)]) -> Self {
        let rows = held.iter().map(|(_, id)| *id).filter(|id| shared.rows.released(id)).collect();
        Releases { shared, keys: held.iter().map(|(key, _)| *key).collect(), rows }
    }

    async fn send(&self, state: &StoreState) -> Result<()> {
        let Releases { shared, keys, rows } = self;
        let session = &shared.session;
        if !session.is_alive() {
            session.close("a lock was released after its session had ended");
            return Ok(());
        }
        let mut released = match rows.is_empty() {
            true => unlock(state, session, keys).await,
            false => {
                let columns: KeyColumns = keys.iter().copied().collect();
                let ids: Vec<&str> = rows.iter().map(|id| id.as_str()).collect();
                let parameters: [&(dyn ToSql + Sync); 4] =
                    [&columns.keys, &columns.pairs, &columns.seconds, &ids];
                session
                    .connection
                    .query(&Request::new(&state.batch.release_batch, &parameters))
                    .await
                    .map(drop)
            }
        };
        if released.is_err() && !rows.is_empty() && session.is_alive() {
            // The rows may be the cause. The session may hold some of the locks no more: that is no error.
            released = unlock(state, session, keys).await;
            shared.rows.left_behind(rows.iter().copied().cloned());
        }
        match released {
            Ok(()) => shared.unreserve_all(keys.iter().copied()),
            Err(_) => session.close(NOT_RELEASED),
        }
        released
    }
}
