//! Semaphores: one application lock for each slot, and one whose queue the waiters stand in. Only the head of the queue takes
//! slots, so waiters are served in order and two of them never have half of what they need each.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::store::support::ended_session::{at_least, wait_until};
use distlock_core::store::support::errors;
use distlock_core::store::{Claim, SessionHold};
use distlock_core::{CancellationToken, FencingToken, LockId, Result};
use tiberius::Row;

use crate::app_lock::{drawn, hold_us};
use crate::capacity::Beyond;
use crate::connection::{Param, Reply};
use crate::lock_name::{LockName, id_key};
use crate::result_code::Outcome;
use crate::rows;
use crate::session::{Attempt, Drawn, Reservation, on_own_session, on_shared_session, settle};
use crate::store::{Hold, StoreState};

/// The largest semaphore: each slot is a lock, and they are tried one after the other.
pub(crate) const MOST_PERMITS: u32 = 1000;
/// How long one attempt waits for clients that take a permit at this moment. Beyond that there are waiters.
const PASSING_MS: i32 = 250;
/// How long the head of the queue waits for one slot before it tries all of them again.
const SLOT_WAIT_MS: i32 = 25;
/// How often the head of the queue looks whether clients with another capacity have released.
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
    let first = |reservation| async move {
        Ok(match go(state, claim, reservation, Patience::Attempt(0), withdraw).await? {
            Went::Granted(hold) => Attempt::Done(Some(hold)),
            Went::Withdrawn => Attempt::Done(None),
            Went::TooFew if once => Attempt::Done(None),
            Went::TooFew | Went::Queued => Attempt::Busy,
        })
    };
    if let Attempt::Done(hold) = on_shared_session(state, &name, first).await? {
        return Ok(hold);
    }
    let patience = if once { Patience::Attempt(PASSING_MS) } else { Patience::Until(withdraw) };
    let wait = |reservation| async move {
        match go(state, claim, reservation, patience, withdraw).await? {
            Went::Granted(hold) => Ok(Some(hold)),
            Went::Withdrawn | Went::TooFew | Went::Queued => Ok(None),
        }
    };
    on_own_session(state, &name, (!once).then_some(withdraw), wait).await
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
                    session.end("its wait was withdrawn");
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
    let clock = state.sessions.clock();
    let mut seen = HashMap::new();
    loop {
        let mut beyond = Beyond::of(state, claim, reservation).await?;
        let now = clock.now();
        // Each was seen to have ended at a moment of its own.
        let lost = beyond.pending().map(|(ended, hold)| {
            let since = *seen.entry(ended.to_owned()).or_insert(now);
            since.after(at_least(hold))
        });
        match lost.max() {
            Some(until) if now < until => {
                let (until, life) = (until.min(now.after(PAUSE)), reservation.session.session());
                let withdraw = if let Patience::Until(withdraw) = patience { Some(withdraw) } else { None };
                if !wait_until(&*clock, until, life, withdraw).await {
                    return Ok(None);
                }
            }
            _ => {
                beyond.bury(state, reservation).await?;
                return Ok(Some(beyond));
            }
        }
    }
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
