//! Mutexes and reader-writer locks: advisory locks in exclusive and in shared mode.

use std::sync::Arc;

use distlock_core::store::{Claim, Mode, SessionHold};
use distlock_core::{CancellationToken, Error, ErrorKind, FencingToken, LockId, Result};
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use super::Inner;
use super::home::{Home, Place};
use super::key::AdvisoryKey;
use super::seat::Seat;
use crate::failure;
use crate::statement::{Statement, Tables};
use crate::values::{get, small, token};

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
static ONE: [Type; 5] = [Type::INT8, Type::BOOL, Type::BOOL, Type::INT4, Type::TEXT];
static WITHDRAW: [Type; 1] = [Type::TEXT];

#[derive(Debug)]
pub(super) struct Statements {
    attempt: Statement,
    /// An attempt that looks whether others wait. That look goes over all locks of the server, and setting it up costs
    /// something even where it is not taken.
    careful: Statement,
    register: Statement,
    wait: Statement,
    release: Statement,
    withdraw: Statement,
}

impl Statements {
    pub(super) fn new(tables: &Tables) -> Self {
        let attempt = |careful| include_str!("../sql/advisory_try.sql").replace("{careful}", careful);
        let careful = attempt(include_str!("../sql/advisory_careful.sql"));
        Statements {
            attempt: Statement::new(0, &attempt(""), tables, &TRY),
            careful: Statement::new(9, &careful, tables, &TRY),
            register: Statement::new(1, include_str!("../sql/advisory_register.sql"), tables, &REGISTER),
            wait: Statement::new(2, include_str!("../sql/advisory_wait.sql"), tables, &ONE),
            release: Statement::new(3, include_str!("../sql/advisory_release.sql"), tables, &ONE),
            withdraw: Statement::new(4, include_str!("../sql/advisory_withdraw.sql"), tables, &WITHDRAW),
        }
    }
}

/// An advisory lock and the session that has it.
#[derive(Clone, Debug)]
pub(super) struct Held {
    seat: Arc<Seat>,
    /// Set where that is the session which all share.
    home: Option<Arc<Home>>,
    key: AdvisoryKey,
    shared: bool,
}

/// First an attempt on the session that all share, then a wait on one of its own.
pub(super) async fn acquire(
    store: &Inner,
    claim: &Claim,
    withdraw: &CancellationToken,
) -> Result<Option<SessionHold>> {
    let key = AdvisoryKey::of_resource(&claim.resource, &store.config)?;
    let shared = Mode::of(claim.resource.kind(), claim.weight) == Mode::Shared;
    let home = store.home().await?;
    let place = home.reserve(key, shared);
    if place != Place::Taken {
        let ask = attempt(store, &home.seat, claim, key, shared, place == Place::Again);
        match ask.await {
            Ok(Some(token)) => {
                home.granted(key);
                let seat = Arc::clone(&home.seat);
                return Ok(Some(hold(store, claim, token, Held { seat, home: Some(home), key, shared })));
            }
            Ok(None) => home.forget(key),
            Err(error) => {
                // Whether the lock was taken before it failed is not known; and others depend on this session.
                let held = Held { seat: Arc::clone(&home.seat), home: Some(home), key, shared };
                if place != Place::Again {
                    let _ = release(store, held, &claim.lock_id).await;
                } else {
                    held.seat.cut("a statement failed half-way");
                }
                return Err(error);
            }
        }
    }
    if withdraw.is_cancelled() {
        if place == Place::Taken && !home.has(key) {
            // This process asked for it too and has no answer yet, so the server may be down. Its answer to that request
            // comes before the one to this.
            home.seat.verify().await?;
        }
        return Ok(None);
    }
    let seat = store.spare_seat().await?;
    wait(store, seat, claim, key, shared, withdraw).await
}

fn hold(store: &Inner, claim: &Claim, token: FencingToken, held: Held) -> SessionHold {
    let session = held.seat.life.clone();
    store.holds().insert(claim.lock_id.clone(), held);
    SessionHold { token, session }
}

async fn attempt(
    store: &Inner,
    seat: &Seat,
    claim: &Claim,
    key: AdvisoryKey,
    shared: bool,
    careful: bool,
) -> Result<Option<FencingToken>> {
    let (number, pair, second) = key.parts();
    let (id, kind) = (claim.lock_id.as_str(), claim.resource.kind().as_str());
    let name = claim.resource.name().as_bytes();
    let (weight, capacity) = (small(claim.weight), small(claim.capacity));
    let statement = if careful { &store.native.careful } else { &store.native.attempt };
    // Once: what is done again after it failed might take the lock twice.
    let rows = seat
        .wire
        .run_once(
            statement,
            &[&number, &pair, &shared, &second, &id, &seat.alive, &kind, &name, &weight, &capacity],
        )
        .await
        .map_err(|error| failure::of_statement(&error))?;
    read_token(&rows)
}

fn read_token(rows: &[Row]) -> Result<Option<FencingToken>> {
    match rows.first() {
        Some(row) => Ok(Some(token(get(row, "token")?))),
        None => Ok(None),
    }
}

/// Waits in the server's own line, on a session that holds nothing else.
async fn wait(
    store: &Inner,
    seat: Arc<Seat>,
    claim: &Claim,
    key: AdvisoryKey,
    shared: bool,
    withdraw: &CancellationToken,
) -> Result<Option<SessionHold>> {
    let (number, pair, second) = key.parts();
    let (id, kind) = (claim.lock_id.as_str(), claim.resource.kind().as_str());
    let name = claim.resource.name().as_bytes();
    let (weight, capacity) = (small(claim.weight), small(claim.capacity));
    let told = failure::of_statement;
    let registered = seat
        .wire
        .run(
            &store.native.register,
            &[&id, &seat.alive, &number, &pair, &shared, &kind, &name, &weight, &capacity],
        )
        .await;
    registered.map_err(|error| told(&error))?;

    // Dropped half-way, with its runtime, the session goes too.
    let abandoned = CutOnDrop(Some(&seat));
    let waiting = seat.begin_waiting();
    let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 5] = [&number, &pair, &shared, &second, &id];
    let mut granted = std::pin::pin!(seat.wire.run_once(&store.native.wait, &parameters));
    let (outcome, withdrawn) = tokio::select! {
        biased;
        outcome = &mut granted => (Some(outcome), false),
        () = withdraw.cancelled() => (store.end_statement(&seat, granted).await, true),
    };
    drop(waiting);
    match outcome {
        // Also what came in the moment in which it was withdrawn: whoever has no use for it gives it back.
        Some(Ok(rows)) => {
            let token = read_token(&rows)?.ok_or_else(|| {
                Error::new(ErrorKind::Internal, "somebody deleted what this session wrote about its wait")
            })?;
            seat.verify().await?;
            abandoned.disarm();
            Ok(Some(hold(store, claim, token, Held { seat: Arc::clone(&seat), home: None, key, shared })))
        }
        // The lock may have been granted before the statement was cancelled: it is the session's and stays, although the
        // statement failed.
        Some(Err(error)) if withdrawn && failure::has_code(&error, &[SqlState::QUERY_CANCELED]) => {
            let left = seat.wire.run_once(&store.native.release, &parameters).await;
            if left.is_ok() && seat.verify().await.is_ok() {
                abandoned.disarm();
                store.put_back(Arc::clone(&seat));
            }
            Ok(None)
        }
        Some(Err(error)) if !withdrawn => Err(told(&error)),
        _ => {
            drop(abandoned);
            // Its row says that it waits, to nobody who looks closely; but it need not stay.
            if let Some(home) = store.current_home().filter(|home| home.seat.is_alive()) {
                let _ = home.seat.wire.run(&store.native.withdraw, &[&id]).await;
            }
            Ok(None)
        }
    }
}

/// Ends a session that was left in the middle of something.
struct CutOnDrop<'a>(Option<&'a Arc<Seat>>);

impl CutOnDrop<'_> {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for CutOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(seat) = self.0 {
            seat.cut("it was left while it waited");
        }
    }
}

/// Gives back; if the server cannot be told, the session ends instead.
pub(super) async fn release(store: &Inner, held: Held, id: &LockId) -> Result<()> {
    let Held { seat, home, key, shared } = held;
    if !seat.is_alive() {
        seat.cut("a lock was given back with it");
        return Ok(());
    }
    let (number, pair, second) = key.parts();
    let (id, told) = (id.as_str(), failure::of_statement);
    let answer = seat.wire.run(&store.native.release, &[&number, &pair, &shared, &second, &id]).await;
    match answer {
        Ok(rows) => {
            let given_back = rows.first().is_some_and(|row| get(row, "given_back").unwrap_or(false));
            match home {
                Some(home) => home.forget(key),
                None if given_back => store.put_back(seat),
                None => seat.cut("it did not have the lock that it was to give back"),
            }
            Ok(())
        }
        Err(error) => {
            seat.cut("a lock could not be given back");
            Err(told(&error))
        }
    }
}
