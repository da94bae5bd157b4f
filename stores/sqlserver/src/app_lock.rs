//! Mutexes and reader-writer locks: application locks in exclusive and in shared mode.

use std::sync::Arc;
use std::time::Duration;

use distlock_core::store::support::errors;
use distlock_core::store::{Claim, Mode, SessionHold};
use distlock_core::{CancellationToken, Error, FencingToken, LockId, Result};
use tiberius::Row;

use crate::connection::{Param, Reply};
use crate::lock_name::{LockName, id_key};
use crate::result_code::Outcome;
use crate::rows;
use crate::session::{Attempt, Drawn, Reservation, on_own_session, on_shared_session, settle};
use crate::store::{Hold, StoreState};

/// How often an attempt is made again that the server refused although the lock is free: it was released in between.
const REFUSALS: u32 = 3;

pub(crate) async fn acquire(
    state: &Arc<StoreState>,
    claim: &Claim,
    withdraw: &CancellationToken,
) -> Result<Option<SessionHold>> {
    let name = LockName::of(&state.config.names, &claim.resource);
    let once = withdraw.is_cancelled();
    let during_wait = (!once).then_some(withdraw);
    let first = |reservation| attempt(state, claim, reservation, during_wait);
    match on_shared_session(state, &name, first).await? {
        Attempt::Done(hold) => Ok(hold),
        Attempt::Busy => {
            let wait = |reservation| wait_on(state, claim, reservation, withdraw);
            on_own_session(state, &name, Some(withdraw), wait).await
        }
    }
}

/// One attempt, on a session that may hold other locks.
async fn attempt(
    state: &Arc<StoreState>,
    claim: &Claim,
    reservation: Reservation,
    withdraw: Option<&CancellationToken>,
) -> Result<Attempt> {
    let session = Arc::clone(&reservation.session);
    for refusals in 0.. {
        let (text, params) = match state.config.tokens {
            true => (&state.statements.lock_try, params(state, claim, &reservation)),
            false => (&state.statements.bare_lock, bare_params(state, claim, &reservation, 0)),
        };
        let answer = match session.query(text, params).await {
            Ok(rows) => read(state, rows.first(), 0),
            Err(failure) if failure.is_broken() => return Err(failure.error),
            Err(failure) => Err(failure.error),
        };
        match answer {
            Ok(Answer::Granted(drawn)) => {
                return grant(state, claim, reservation, drawn, withdraw).await.map(Attempt::Done);
            }
            Ok(Answer::Other(Outcome::Busy)) => return Ok(Attempt::Busy),
            Ok(Answer::Other(Outcome::Refused)) if refusals < REFUSALS => {}
            Ok(Answer::Other(outcome)) => {
                // An undocumented result may be a grant.
                abandon(state, &reservation, &claim.lock_id).await;
                return Err(outcome.error());
            }
            Err(error) => {
                abandon(state, &reservation, &claim.lock_id).await;
                return Err(error);
            }
        }
    }
    Ok(Attempt::Busy)
}

/// Waits in the server's queue.
async fn wait_on(
    state: &Arc<StoreState>,
    claim: &Claim,
    reservation: Reservation,
    withdraw: &CancellationToken,
) -> Result<Option<SessionHold>> {
    let session = Arc::clone(&reservation.session);
    let (text, params) = match state.config.tokens {
        true => (&state.statements.lock_wait, params(state, claim, &reservation)),
        false => (&state.statements.bare_lock, bare_params(state, claim, &reservation, -1)),
    };
    let answer = match session.wait(text, params, withdraw).await {
        Ok(Reply::Rows(rows)) => read(state, rows.first(), -1),
        Ok(Reply::Cancelled) => {
            // The lock may have been granted meanwhile.
            if let Err(error) = release(state, &reservation, &claim.lock_id).await {
                session.end("its wait was withdrawn");
                tracing::debug!(%error, "a withdrawn wait was ended with its session");
            }
            return Ok(None);
        }
        Err(failure) if failure.is_broken() && withdraw.is_cancelled() => {
            session.end("its wait was withdrawn");
            return Ok(None);
        }
        Err(failure) if failure.is_broken() => return Err(failure.error),
        Err(failure) => Err(failure.error),
    };
    match answer {
        Ok(Answer::Granted(drawn)) => {
            // Sent long ago, the wait confirms nothing of now.
            confirm(state, claim, &reservation).await?;
            grant(state, claim, reservation, drawn, Some(withdraw)).await
        }
        Ok(Answer::Other(outcome)) => {
            abandon(state, &reservation, &claim.lock_id).await;
            Err(outcome.error())
        }
        Err(error) => {
            abandon(state, &reservation, &claim.lock_id).await;
            Err(error)
        }
    }
}

/// A request that a live session answers now. From here on a later holder waits for the guard.
async fn confirm(state: &StoreState, claim: &Claim, reservation: &Reservation) -> Result<()> {
    let (text, params): (_, Vec<Param>) = if state.config.tokens {
        let id = id_key(claim.lock_id.as_str());
        (
            &state.statements.lock_confirm,
            vec![reservation.name.key().into(), (&id).into(), hold_us(state).into()],
        )
    } else {
        let lock = crate::lock_name::session_lock(&state.config.names, reservation.session.name());
        (&state.statements.alive, vec![lock.into(), state.config.principal.as_str().into()])
    };
    reservation.session.query(text, params).await.map(drop).map_err(Error::from)
}

/// Grants a lock that a session has, as soon as no earlier holder can believe that it holds it. `None`: it was withdrawn.
async fn grant(
    state: &Arc<StoreState>,
    claim: &Claim,
    reservation: Reservation,
    drawn: Drawn,
    withdraw: Option<&CancellationToken>,
) -> Result<Option<SessionHold>> {
    let session = Arc::clone(&reservation.session);
    let shared = i32::from(mode(claim) == Mode::Shared);
    match settle(state, claim, &reservation, shared, drawn, withdraw).await {
        Ok(true) => {}
        Ok(false) => {
            if let Err(error) = release(state, &reservation, &claim.lock_id).await {
                session.end("a lock could not be released");
                tracing::debug!(%error, "a withdrawn lock was released with its session");
            }
            return Ok(None);
        }
        Err(error) => {
            abandon(state, &reservation, &claim.lock_id).await;
            return Err(error);
        }
    }
    let token = u64::try_from(drawn.token).map_err(|_| errors::unexpected_reply(drawn.token))?;
    let hold = SessionHold { token: FencingToken::new(token), session: session.session().clone() };
    state.keep(&claim.lock_id, Hold { reservation: reservation.grant(), slots: Vec::new() });
    Ok(Some(hold))
}

/// Releases a lock, or withdraws a wait for it. What is not held is no error.
pub(crate) async fn release(state: &StoreState, reservation: &Reservation, lock_id: &LockId) -> Result<()> {
    let lock = reservation.name.lock();
    let mut params: Vec<Param> = vec![lock.into(), state.config.principal.as_str().into()];
    let text = if state.config.tokens {
        params.push(reservation.name.key().into());
        params.push((&id_key(lock_id.as_str())).into());
        &state.statements.lock_release
    } else {
        &state.statements.bare_release
    };
    let rows = reservation.session.query(text, params).await?;
    let got: i32 = rows::number(rows.first(), "got")?;
    if got < 0 { Err(errors::unexpected_reply(got)) } else { Ok(()) }
}

/// Releases what a failed claim may have; ends the session if that fails too.
async fn abandon(state: &StoreState, reservation: &Reservation, lock_id: &LockId) {
    if reservation.session.is_usable() && release(state, reservation, lock_id).await.is_err() {
        reservation.session.end("a lock could not be released");
    }
}

enum Answer {
    Granted(Drawn),
    Other(Outcome),
}

fn read(state: &StoreState, row: Option<&Row>, timeout_ms: i32) -> Result<Answer> {
    let free = rows::optional(row, "free")?.and_then(|free| i32::try_from(free).ok());
    match Outcome::of(rows::number(row, "got")?, timeout_ms, free) {
        Outcome::Granted => Ok(Answer::Granted(drawn(state, row)?)),
        outcome => Ok(Answer::Other(outcome)),
    }
}

pub(crate) fn drawn(state: &StoreState, row: Option<&Row>) -> Result<Drawn> {
    let pending: u64 = rows::number(row, "pending")?;
    let since = state.sessions.clock().now();
    Ok(Drawn { token: rows::number(row, "token")?, pending: Duration::from_micros(pending), since })
}

fn mode(claim: &Claim) -> Mode {
    Mode::of(claim.resource.kind(), claim.weight)
}

fn mode_text(claim: &Claim) -> &'static str {
    if mode(claim) == Mode::Shared { "Shared" } else { "Exclusive" }
}

fn bare_params(state: &StoreState, claim: &Claim, reservation: &Reservation, timeout_ms: i32) -> Vec<Param> {
    vec![
        reservation.name.lock().into(),
        mode_text(claim).into(),
        state.config.principal.as_str().into(),
        timeout_ms.into(),
    ]
}

fn params(state: &StoreState, claim: &Claim, reservation: &Reservation) -> Vec<Param> {
    let number = |number: u32| Param::Int(i32::try_from(number).unwrap_or(i32::MAX));
    vec![
        reservation.name.lock().into(),
        mode_text(claim).into(),
        state.config.principal.as_str().into(),
        reservation.name.key().into(),
        (&id_key(claim.lock_id.as_str())).into(),
        claim.resource.kind().as_str().into(),
        claim.resource.name().as_bytes().into(),
        claim.lock_id.as_str().as_bytes().into(),
        number(claim.weight),
        number(claim.capacity),
        i32::from(mode(claim) == Mode::Shared).into(),
        reservation.session.name().into(),
        hold_us(state).into(),
    ]
}

/// How long after its session a guard of this store lasts.
pub(crate) fn hold_us(state: &StoreState) -> i64 {
    i64::try_from(state.config.heartbeat_timeout.as_micros()).unwrap_or(i64::MAX)
}
