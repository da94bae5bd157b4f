//! Mutexes and reader-writer locks: advisory locks in exclusive and in shared mode.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use distlock_core::store::{Claim, Holder, Mode, SessionHold};
use distlock_core::{CancellationToken, Error, ErrorKind, FencingToken, LockId, Resource, Result};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::holder_rows::{LAST_PAUSE, ROW_DELAY};
use super::inspect::{LockEntry, holders_with_others, lock_entries};
use super::key::AdvisoryKey;
use super::lock_session::{CloseOnDrop, LockSession};
use super::shared_session::{Reservation, SharedSession};
use super::store::StoreState;
use crate::error;
use crate::statement::{Request, Slot, Statement};
use crate::tables::Tables;
use crate::values::{column, from_token, from_weight, to_token};

/// How long terminated sessions may take to end.
const TERMINATION_LIMIT: Duration = Duration::from_secs(5);

static TRY: [Type; 10] = [
    Type::INT8,
    Type::BOOL,
    Type::BOOL,
    Type::INT4,
    Type::TEXT,
    Type::INT8,
    Type::TEXT,
    Type::BYTEA,
    Type::INT4,
    Type::INT4,
];
static REGISTER: [Type; 9] = [
    Type::TEXT,
    Type::INT8,
    Type::INT8,
    Type::BOOL,
    Type::BOOL,
    Type::TEXT,
    Type::BYTEA,
    Type::INT4,
    Type::INT4,
];
static LOCK: [Type; 4] = [Type::INT8, Type::BOOL, Type::BOOL, Type::INT4];
static SHOW_HOLDER: [Type; 3] = [Type::TEXT, Type::INT8, Type::FLOAT8];
static ONE_LOCK: [Type; 5] = [Type::INT8, Type::BOOL, Type::BOOL, Type::INT4, Type::TEXT];
static WITHDRAW: [Type; 1] = [Type::TEXT];
static INSPECT: [Type; 2] = [Type::INT8, Type::BOOL];

#[derive(Debug)]
pub(super) struct LockStatements {
    try_lock: Statement,
    /// An attempt that fails if the lock has waiters. It reads all locks of the server, and setting that up costs something
    /// even where it is not evaluated.
    try_unless_waiters: Statement,
    register_waiter: Statement,
    wait: Statement,
    show_holder: Statement,
    release: Statement,
    withdraw_waiter: Statement,
    pub(super) inspect: Statement,
    /// Locks that are held and have no row.
    pub(super) without_row: Statement,
}

impl LockStatements {
    pub(super) fn new(tables: &Tables) -> Self {
        let try_lock =
            |condition| include_str!("../sql/advisory_try.sql").replace("{unless_waiters}", condition);
        let unless_waiters = try_lock(include_str!("../sql/advisory_try_unless_waiters.sql"));
        let register = include_str!("../sql/advisory_register_waiter.sql");
        let withdraw = include_str!("../sql/advisory_withdraw_waiter.sql");
        let inspect = include_str!("../sql/advisory_inspect.sql");
        let without_row = include_str!("../sql/advisory_without_row.sql");
        let (wait, release) =
            (include_str!("../sql/advisory_wait.sql"), include_str!("../sql/advisory_release.sql"));
        let show_holder = include_str!("../sql/advisory_show_holder.sql");
        let statement = |slot, text, types| Statement::new(slot, text, tables, types);
        LockStatements {
            try_lock: statement(Slot::AdvisoryTry, &try_lock(""), &TRY),
            try_unless_waiters: statement(Slot::AdvisoryTryUnlessWaiters, &unless_waiters, &TRY),
            register_waiter: statement(Slot::AdvisoryRegisterWaiter, register, &REGISTER),
            wait: statement(Slot::AdvisoryWait, wait, &LOCK),
            show_holder: statement(Slot::AdvisoryShowHolder, show_holder, &SHOW_HOLDER),
            release: statement(Slot::AdvisoryRelease, release, &ONE_LOCK),
            withdraw_waiter: statement(Slot::AdvisoryWithdrawWaiter, withdraw, &WITHDRAW),
            inspect: statement(Slot::AdvisoryInspect, inspect, &INSPECT),
            without_row: statement(Slot::AdvisoryWithoutRow, without_row, &INSPECT),
        }
    }
}

/// An advisory lock and the session that holds it.
#[derive(Clone, Debug)]
pub(super) struct HeldLock {
    pub(super) owner: LockOwner,
    pub(super) key: AdvisoryKey,
    pub(super) shared: bool,
}

/// The session that holds a lock.
#[derive(Clone, Debug)]
pub(super) enum LockOwner {
    Shared(Arc<SharedSession>),
    Own(Arc<LockSession>),
}

impl LockOwner {
    fn session(&self) -> &Arc<LockSession> {
        match self {
            LockOwner::Shared(shared) => &shared.session,
            LockOwner::Own(session) => session,
        }
    }
}

/// A claim as the columns of the statements.
struct ClaimColumns<'a> {
    key: i64,
    pair: bool,
    second: i32,
    shared: bool,
    lock_id: &'a str,
    kind: &'a str,
    name: &'a [u8],
    weight: i32,
    capacity: i32,
}

impl<'a> ClaimColumns<'a> {
    fn new(claim: &'a Claim, key: AdvisoryKey, shared: bool) -> Self {
        let (key, pair, second) = key.parts();
        ClaimColumns {
            key,
            pair,
            second,
            shared,
            lock_id: claim.lock_id.as_str(),
            kind: claim.resource.kind().as_str(),
            name: claim.resource.name().as_bytes(),
            weight: from_weight(claim.weight),
            capacity: from_weight(claim.capacity),
        }
    }
}

/// First an attempt on the shared session, then a wait on a session of its own.
pub(super) async fn acquire(
    state: &Arc<StoreState>,
    claim: &Claim,
    withdraw: &CancellationToken,
) -> Result<Option<SessionHold>> {
    let key = AdvisoryKey::of_resource(&claim.resource, &state.config)?;
    let shared = is_shared(claim);
    let shared_session = state.shared().await?;
    let reservation = shared_session.reserve(key, shared);
    if reservation != Reservation::Excluded {
        let again = reservation == Reservation::SharedAgain;
        let columns = ClaimColumns::new(claim, key, shared);
        let close_guard = CloseOnDrop::new(&shared_session.session, "the outcome of an attempt is unknown");
        let outcome = try_lock(state, &shared_session.session, &columns, again).await;
        close_guard.disarm();
        let owner = LockOwner::Shared(Arc::clone(&shared_session));
        let held = HeldLock { owner, key, shared };
        match outcome {
            Ok(Some(token)) => {
                shared_session.confirm(key);
                return Ok(Some(hold(state, claim, token, held)));
            }
            Ok(None) => shared_session.unreserve(key),
            Err(error) => {
                // The lock may have been granted before the statement failed, and other guards depend on this session.
                if again {
                    shared_session.session.close("the outcome of a request is unknown");
                } else {
                    let _ = release(state, held, &claim.lock_id).await;
                }
                return Err(error);
            }
        }
    }
    let Some(session) = state.idle_session_unless(withdraw).await else {
        if reservation == Reservation::Excluded && !shared_session.is_confirmed(key) {
            // A request of this process for the key is in flight, and the server may be down. The reply to that request comes
            // before the reply to this one.
            shared_session.session.verify().await?;
        }
        return Ok(None);
    };
    wait_on(state, session?, claim, key, withdraw).await
}

/// Waits on a session of its own, without an attempt before.
pub(super) async fn wait(
    state: &Arc<StoreState>,
    claim: &Claim,
    withdraw: &CancellationToken,
) -> Result<Option<SessionHold>> {
    let key = AdvisoryKey::of_resource(&claim.resource, &state.config)?;
    match state.idle_session_unless(withdraw).await {
        Some(session) => wait_on(state, session?, claim, key, withdraw).await,
        None => Ok(None),
    }
}

fn is_shared(claim: &Claim) -> bool {
    Mode::of(claim.resource.kind(), claim.weight) == Mode::Shared
}

fn hold(state: &StoreState, claim: &Claim, token: FencingToken, held: HeldLock) -> SessionHold {
    let session = held.owner.session().life.session();
    state.held().insert(claim.lock_id.clone(), held);
    SessionHold { token, session }
}

async fn try_lock(
    state: &StoreState,
    session: &LockSession,
    claim: &ClaimColumns<'_>,
    again: bool,
) -> Result<Option<FencingToken>> {
    let ClaimColumns { key, pair, second, shared, lock_id, kind, name, weight, capacity } = claim;
    let parameters: [&(dyn ToSql + Sync); 10] =
        [key, pair, shared, second, lock_id, &session.session_lock, kind, name, weight, capacity];
    let statement = if again { &state.lock.try_unless_waiters } else { &state.lock.try_lock };
    // Once: a retry after a failure might acquire the lock twice.
    let rows = session.connection.run_once(&Request::new(statement, &parameters)).await;
    first_token(&rows.map_err(error::from_statement)?)
}

fn first_token(rows: &[Row]) -> Result<Option<FencingToken>> {
    match rows.first() {
        Some(row) => Ok(Some(to_token(column(row, "token")?))),
        None => Ok(None),
    }
}

/// Waits in the server's own wait queue, on a session that holds no other lock.
async fn wait_on(
    state: &Arc<StoreState>,
    session: Arc<LockSession>,
    claim: &Claim,
    key: AdvisoryKey,
    withdraw: &CancellationToken,
) -> Result<Option<SessionHold>> {
    let columns = ClaimColumns::new(claim, key, is_shared(claim));
    let ClaimColumns { key: number, pair, second, shared, lock_id, kind, name, weight, capacity } = &columns;
    let registration: [&(dyn ToSql + Sync); 9] =
        [lock_id, &session.session_lock, number, pair, shared, kind, name, weight, capacity];
    session.connection.query(&Request::new(&state.lock.register_waiter, &registration)).await?;

    // If this future is dropped with its runtime, the session ends too.
    let close_guard = CloseOnDrop::new(&session, "its wait was abandoned");
    let waiting = session.mark_waiting();
    let sent = session.life.sent();
    let parameters: [&(dyn ToSql + Sync); 4] = [number, pair, shared, second];
    let request = Request::new(&state.lock.wait, &parameters);
    let mut granted = std::pin::pin!(session.connection.run_once(&request));
    let (outcome, withdrawn) = tokio::select! {
        biased;
        outcome = &mut granted => (Some(outcome), false),
        () = withdraw.cancelled() => (state.cancel_statement(&session, granted).await, true),
    };
    drop(waiting);
    match outcome {
        // Also if it was granted at the moment of the withdrawal: the engine releases it then.
        Some(Ok(rows)) => {
            let token = first_token(&rows)?.ok_or_else(|| {
                Error::new(ErrorKind::Internal, "the server granted the lock and returned no token")
            })?;
            session.answered_wait(&sent).await?;
            close_guard.disarm();
            let (owner, shared) = (LockOwner::Own(Arc::clone(&session)), *shared);
            let held = hold(state, claim, token, HeldLock { owner, key, shared });
            tokio::spawn(show_holder(
                Arc::downgrade(state),
                Arc::downgrade(&session),
                claim.lock_id.clone(),
                token,
            ));
            Ok(Some(held))
        }
        // The lock may have been granted before the statement was cancelled. The session then holds it, although the statement
        // failed.
        Some(Err(error)) if withdrawn && error::is_cancelled(&error) => {
            let parameters: [&(dyn ToSql + Sync); 5] = [number, pair, shared, second, lock_id];
            let released = session.connection.run_once(&Request::new(&state.lock.release, &parameters)).await;
            if released.is_ok() && session.verify().await.is_ok() {
                close_guard.disarm();
                state.keep_idle(Arc::clone(&session));
            }
            Ok(None)
        }
        Some(Err(error)) if !withdrawn => Err(error::from_statement(error)),
        _ => {
            drop(close_guard);
            // The row of the waiter is ignored once its session has ended, but need not stay.
            if let Some(shared) = state.shared.current() {
                let connection = &shared.session.connection;
                let _ = connection.run(&Request::new(&state.lock.withdraw_waiter, &[lock_id])).await;
            }
            Ok(None)
        }
    }
}

/// Makes the row of a waiter that of a holder, once the lock was held for as long as other holders are held before their rows are
/// written. No decision depends on the row.
async fn show_holder(state: Weak<StoreState>, session: Weak<LockSession>, id: LockId, token: FencingToken) {
    let mut pause = ROW_DELAY;
    let granted = Instant::now();
    loop {
        tokio::time::sleep(pause).await;
        let Some((state, session)) = state.upgrade().zip(session.upgrade()) else { return };
        if !session.is_alive() || !state.held().contains_key(&id) {
            return;
        }
        // A release that is sent meanwhile comes after this, and deletes the row.
        let (lock_id, token, age) = (id.as_str(), from_token(token), granted.elapsed().as_secs_f64());
        let parameters: [&(dyn ToSql + Sync); 3] = [&lock_id, &token, &age];
        match session.connection.query(&Request::new(&state.lock.show_holder, &parameters)).await {
            Ok(rows) if !rows.is_empty() => return,
            Ok(_) => {} // Another session has locked the row.
            Err(error) => tracing::debug!(%error, "the holder of a lock is not shown yet"),
        }
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// Releases the lock. If the server cannot be reached, or the future is dropped, the session ends instead.
pub(super) async fn release(state: &StoreState, held: HeldLock, id: &LockId) -> Result<()> {
    let HeldLock { owner, key, shared, .. } = held;
    let session = Arc::clone(owner.session());
    if !session.is_alive() {
        session.close("a lock was released after its session had ended");
        return Ok(());
    }
    let ((number, pair, second), id) = (key.parts(), id.as_str());
    let parameters: [&(dyn ToSql + Sync); 5] = [&number, &pair, &shared, &second, &id];
    let close_guard = CloseOnDrop::new(&session, "a lock could not be released");
    let released = session.connection.query(&Request::new(&state.lock.release, &parameters)).await;
    close_guard.disarm();
    match released {
        Ok(rows) => {
            let released = rows.first().is_some_and(|row| column(row, "released").unwrap_or(false));
            match owner {
                LockOwner::Shared(shared_session) => shared_session.unreserve(key),
                LockOwner::Own(_) if released => state.keep_idle(session),
                LockOwner::Own(_) => session.close("it did not hold the lock that it was to release"),
            }
            Ok(())
        }
        Err(error) => {
            session.close("a lock could not be released");
            Err(error)
        }
    }
}

/// Terminates the sessions that hold the lock, and waits until they are gone.
pub(super) async fn break_lock(state: &StoreState, resource: &Resource) -> Result<Vec<Holder>> {
    let key = AdvisoryKey::of_resource(resource, &state.config)?;
    let mut holders = lock_entries(state, Some(key)).await?;
    holders.retain(|entry| entry.granted);
    let broken = holders_with_others(state, resource, &holders).await?;
    let shared = state.shared().await?;
    for holder in &holders {
        let typed: &[(&(dyn ToSql + Sync), Type)] = &[(&holder.pid, Type::INT4)];
        let client = shared.session.connection.client();
        let terminated = client.query_typed("SELECT pg_catalog.pg_terminate_backend($1)", typed).await;
        // Our own session may be among them: then there is no reply.
        if let Err(error) = terminated
            && error.code().is_some()
        {
            return Err(error::from_statement(error).doing("end the session of a holder"));
        }
    }
    let started = Instant::now();
    let is_gone = |left: &[LockEntry]| {
        !left.iter().any(|left| left.granted && holders.iter().any(|holder| holder.pid == left.pid))
    };
    loop {
        match lock_entries(state, Some(key)).await {
            Ok(left) if is_gone(&left) => return Ok(broken),
            Err(error) if !error.can_retry() => return Err(error),
            _ if started.elapsed() > TERMINATION_LIMIT => {
                return Err(Error::new(ErrorKind::Unavailable, "a terminated session has not ended"));
            }
            _ => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}
