//! Semaphores: one application lock for each slot, and one whose queue the waiters stand in. Only the head of the queue takes
//! slots, so waiters are served in order and two of them never have half of what they need each.

use std::sync::Arc;
use std::time::Duration;

use distlock_core::store::support::errors;
use distlock_core::store::{Claim, SessionHold};
use distlock_core::{CancellationToken, FencingToken, LockId, Result};
use tiberius::Row;

use crate::app_lock::{Drawn, drawn, hold_us, settle};
use crate::capacity::Beyond;
use crate::connection::{Param, Reply};
use crate::inspect::bury;
use crate::lock_name::{LockName, id_key};
use crate::result_code::Outcome;
use crate::rows;
use crate::session::{Reservation, at_least};
use crate::store::{Hold, StoreState};

/// The largest semaphore: each slot is a lock, and they are tried one after the other.
pub(crate) const MOST_PERMITS: u32 = 1000;
/// How long one attempt waits for clients that take a permit at this moment. Beyond that there are waiters.
const PASSING_MS: i32 = 250;
/// How long the head of the queue waits for one slot before it tries all of them again.
const SLOT_WAIT_MS: i32 = 25;
/// How often a claim whose session was lost starts again, on another session.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(50);

/// How a claim stands in the queue.
#[derive(Clone, Copy)]
enum Patience<'a> {
    /// For this many milliseconds, and not shown as a waiter.
    Attempt(i32),
    Until(&'a CancellationToken),
}

pub(crate) async fn acquire(
    state: &Arc<StoreState>,
    claim: &Claim,
    withdraw: &CancellationToken,
) -> Result<Option<SessionHold>> {
    let name = LockName::of(&state.config.names, &claim.resource);
    let once = withdraw.is_cancelled();
    let mut tries = 0;
    loop {
        let reservation = state.sessions.share(&name).await?;
        let session = Arc::clone(&reservation.session);
        match go(state, claim, reservation, Patience::Attempt(0), withdraw).await {
            Err(_) if tries == 0 && !session.is_usable() => tries += 1,
            Err(error) => return Err(error),
            Ok(Went::Granted(hold)) => return Ok(Some(hold)),
            Ok(Went::Withdrawn) => return Ok(None),
            Ok(Went::TooFew) if once => return Ok(None),
            Ok(Went::TooFew | Went::Queued) => break,
        }
    }
    let patience = if once { Patience::Attempt(PASSING_MS) } else { Patience::Until(withdraw) };
    let mut tries = 0;
    loop {
        if !once && withdraw.is_cancelled() {
            return Ok(None);
        }
        let Some(reservation) = state.sessions.own(&name, (!once).then_some(withdraw)).await? else {
            return Ok(None);
        };
        let session = Arc::clone(&reservation.session);
        match go(state, claim, reservation, patience, withdraw).await {
            Err(_) if tries < TRIES && !session.is_usable() => {
                tries += 1;
                tokio::time::sleep(PAUSE * tries).await;
            }
            Err(error) => {
                state.sessions.keep_spare(&session);
                return Err(error);
            }
            Ok(Went::Granted(hold)) => {
                state.sessions.publish(&session);
                return Ok(Some(hold));
            }
            Ok(_) => {
                state.sessions.keep_spare(&session);
                return Ok(None);
            }
        }
    }
}

enum Went {
    Granted(SessionHold),
    Withdrawn,
    /// Others hold too many permits.
    TooFew,
    /// Others wait, or take a permit at this moment.
    Queued,
}

/// One claim on one session. Whatever it took is released unless it is granted.
async fn go(
    state: &Arc<StoreState>,
    claim: &Claim,
    reservation: Reservation,
    patience: Patience<'_>,
    withdraw: &CancellationToken,
) -> Result<Went> {
    let session = Arc::clone(&reservation.session);
    let mut slots = Vec::new();
    let outcome = take(state, claim, &reservation, patience, &mut slots).await;
    let settled = match outcome {
        Ok(Taken::All(drawn)) => {
            // Others may take permits while we wait for guards to be lost.
            match leave_queue(state, &reservation).await {
                Ok(()) => {
                    let during_wait = matches!(patience, Patience::Until(_)).then_some(withdraw);
                    match settle(state, claim, &reservation, 0, drawn, during_wait).await {
                        Ok(true) => Ok(Ok(drawn)),
                        Ok(false) => Ok(Err(Went::Withdrawn)),
                        Err(error) => Err(error),
                    }
                }
                Err(error) => Err(error),
            }
        }
        Ok(Taken::TooFew) => Ok(Err(Went::TooFew)),
        Ok(Taken::Queued) => Ok(Err(Went::Queued)),
        Ok(Taken::Withdrawn) => Ok(Err(Went::Withdrawn)),
        Err(error) => Err(error),
    };
    if let Ok(Ok(drawn)) = settled {
        let token = u64::try_from(drawn.token).map_err(|_| errors::unexpected_reply(drawn.token))?;
        let hold = SessionHold { token: FencingToken::new(token), session: session.session().clone() };
        let held = reservation.hold_permit(claim.lock_id.as_str());
        drop(reservation);
        state.keep(&claim.lock_id, Hold { reservation: held, slots });
        return Ok(Went::Granted(hold));
    }
    if session.is_usable() && !matches!(settled, Ok(Err(Went::Queued))) {
        undo(state, claim, &reservation, &slots).await;
    }
    match settled {
        Ok(Err(went)) => Ok(went),
        Ok(Ok(_)) => Ok(Went::Withdrawn),
        Err(error) => Err(error),
    }
}

enum Taken {
    All(Drawn),
    TooFew,
    Queued,
    Withdrawn,
}

async fn take(
    state: &Arc<StoreState>,
    claim: &Claim,
    reservation: &Reservation,
    patience: Patience<'_>,
    slots: &mut Vec<i32>,
) -> Result<Taken> {
    let session = &reservation.session;
    Beyond::of(state, claim, reservation).await?;
    let row = match patience {
        Patience::Attempt(timeout) => {
            session
                .query(&state.statements.pool_queue, queue_params(state, claim, reservation, timeout, 0))
                .await?
        }
        Patience::Until(withdraw) => {
            let params = queue_params(state, claim, reservation, -1, 1);
            match session.wait(&state.statements.pool_queue, params, withdraw).await {
                Ok(Reply::Rows(rows)) => rows,
                Ok(Reply::Cancelled) => return Ok(Taken::Withdrawn),
                Err(failure) if failure.is_broken() && withdraw.is_cancelled() => {
                    bury(state, reservation, &claim.lock_id);
                    return Ok(Taken::Withdrawn);
                }
                Err(failure) => return Err(failure.error),
            }
        }
    };
    let timeout = if let Patience::Attempt(timeout) = patience { timeout } else { -1 };
    let free = rows::optional(row.first(), "free")?.and_then(|free| i32::try_from(free).ok());
    match Outcome::of(rows::number(row.first(), "got")?, timeout, free) {
        Outcome::Granted => {}
        // It was released in between: so there are others.
        Outcome::Busy | Outcome::Refused if timeout == 0 => return Ok(Taken::Queued),
        Outcome::Busy => return Ok(Taken::Queued),
        outcome => return Err(outcome.error()),
    }
    // Now others only release.
    let Some(mut beyond) = buried(state, claim, reservation, patience).await? else {
        return Ok(Taken::Withdrawn);
    };
    let slot_wait = if timeout >= 0 { 0 } else { SLOT_WAIT_MS };
    loop {
        let missing = claim.weight.saturating_sub(u32::try_from(slots.len()).unwrap_or(u32::MAX));
        if beyond.leaves(state, claim, reservation, missing).await? {
            let rows = take_slots(state, claim, reservation, missing, slot_wait, slots).await?;
            let missing: u32 = rows::number(rows.first(), "missing")?;
            if missing == 0 {
                return Ok(Taken::All(drawn(state, rows.first())?));
            }
        } else if matches!(patience, Patience::Until(_)) {
            tokio::time::sleep(PAUSE).await;
        }
        match patience {
            Patience::Attempt(_) => return Ok(Taken::TooFew),
            Patience::Until(withdraw) if withdraw.is_cancelled() => return Ok(Taken::Withdrawn),
            Patience::Until(_) if beyond.in_use == 0 => {}
            Patience::Until(_) => beyond = Beyond::of(state, claim, reservation).await?,
        }
    }
}

/// What others have beyond our slots, once the guards of ended sessions among them are lost. `None`: it was withdrawn.
async fn buried(
    state: &StoreState,
    claim: &Claim,
    reservation: &Reservation,
    patience: Patience<'_>,
) -> Result<Option<Beyond>> {
    let mut beyond = Beyond::of(state, claim, reservation).await?;
    let lost = tokio::time::sleep(at_least(beyond.pending()));
    match patience {
        Patience::Attempt(_) => lost.await,
        Patience::Until(withdraw) => tokio::select! {
            () = lost => {}
            () = withdraw.cancelled() => return Ok(None),
        },
    }
    beyond.bury(state, reservation).await?;
    Ok(Some(beyond))
}

/// Takes free slots, and notes all that we have then.
async fn take_slots(
    state: &StoreState,
    claim: &Claim,
    reservation: &Reservation,
    missing: u32,
    slot_wait: i32,
    slots: &mut Vec<i32>,
) -> Result<Vec<Row>> {
    let session = &reservation.session;
    let params = take_params(state, claim, reservation, missing, slot_wait);
    let taken = match session.query(&state.statements.pool_take, params).await {
        Ok(rows) => rows
            .iter()
            .skip(1)
            .map(|row| rows::number(Some(row), "slot"))
            .collect::<Result<_>>()
            .map(|taken| (taken, rows)),
        Err(failure) => Err(failure.error),
    };
    match taken {
        Ok((taken, rows)) => {
            *slots = taken;
            Ok(rows)
        }
        Err(error) => {
            // Locks of slots may be ours whose rows were not written.
            if reservation.has_other_permits() {
                session.end("it may have permits that are not known");
            } else {
                *slots = (0..number(claim.capacity)).collect();
            }
            Err(error)
        }
    }
}

async fn leave_queue(state: &StoreState, reservation: &Reservation) -> Result<()> {
    let params: Vec<Param> = vec![reservation.name.queue().into(), state.config.principal.as_str().into()];
    let rows = reservation.session.query(&state.statements.bare_release, params).await?;
    released(&rows)
}

/// Releases what an ungranted claim may have, and its row as a waiter; ends the session if that fails.
async fn undo(state: &StoreState, claim: &Claim, reservation: &Reservation, slots: &[i32]) {
    let undone = async {
        release_slots(state, reservation, slots, &claim.lock_id).await?;
        leave_queue(state, reservation).await
    };
    if let Err(error) = undone.await {
        reservation.session.end("a permit could not be released");
        tracing::debug!(%error, "permits were released with their session");
    }
}

pub(crate) async fn release(state: &StoreState, hold: &Hold, lock_id: &LockId) -> Result<()> {
    release_slots(state, &hold.reservation, &hold.slots, lock_id).await
}

async fn release_slots(
    state: &StoreState,
    reservation: &Reservation,
    slots: &[i32],
    lock_id: &LockId,
) -> Result<()> {
    let params: Vec<Param> = vec![
        reservation.name.slots().into(),
        state.config.principal.as_str().into(),
        reservation.name.key().into(),
        (&id_key(lock_id.as_str())).into(),
        slots.iter().map(|slot| format!("{slot:04}")).collect::<String>().into(),
    ];
    released(&reservation.session.query(&state.statements.slots_release, params).await?)
}

fn released(rows: &[Row]) -> Result<()> {
    let got: i32 = rows::number(rows.first(), "got")?;
    if got < 0 { Err(errors::unexpected_reply(got)) } else { Ok(()) }
}

fn number(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn queue_params(
    state: &StoreState,
    claim: &Claim,
    reservation: &Reservation,
    timeout_ms: i32,
    is_waiter: i32,
) -> Vec<Param> {
    vec![
        reservation.name.queue().into(),
        state.config.principal.as_str().into(),
        timeout_ms.into(),
        reservation.name.key().into(),
        (&id_key(claim.lock_id.as_str())).into(),
        claim.resource.kind().as_str().into(),
        claim.resource.name().as_bytes().into(),
        claim.lock_id.as_str().as_bytes().into(),
        number(claim.weight).into(),
        number(claim.capacity).into(),
        reservation.session.name().into(),
        is_waiter.into(),
    ]
}

fn take_params(
    state: &StoreState,
    claim: &Claim,
    reservation: &Reservation,
    missing: u32,
    slot_wait_ms: i32,
) -> Vec<Param> {
    vec![
        reservation.name.slots().into(),
        state.config.principal.as_str().into(),
        number(claim.capacity).into(),
        number(missing).into(),
        number(fastrand::u32(..claim.capacity.max(1))).into(),
        slot_wait_ms.into(),
        reservation.name.key().into(),
        (&id_key(claim.lock_id.as_str())).into(),
        claim.resource.kind().as_str().into(),
        claim.resource.name().as_bytes().into(),
        claim.lock_id.as_str().as_bytes().into(),
        number(claim.weight).into(),
        reservation.session.name().into(),
        hold_us(state).into(),
    ]
}
