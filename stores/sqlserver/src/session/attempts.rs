//! Which session a claim is made on, and another one if that is lost meanwhile: a lock ends with its session, so nothing is left
//! of an attempt whose session ended.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::store::SessionHold;
use distlock_core::store::support::ended_session::withdrawn;
use distlock_core::{CancellationToken, Result};

use super::Reservation;
use crate::lock_name::LockName;
use crate::store::StoreState;

/// How often a wait whose session was lost starts again, on another session.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(50);

/// What came of an attempt.
pub(crate) enum Attempt {
    /// Granted, or withdrawn.
    Done(Option<SessionHold>),
    Busy,
}

/// One attempt, on a session that may hold other locks.
pub(crate) async fn on_shared_session<F>(
    state: &StoreState,
    name: &LockName,
    attempt: impl Fn(Reservation) -> F,
) -> Result<Attempt>
where
    F: Future<Output = Result<Attempt>>,
{
    let reservation = state.sessions.share(name).await?;
    let session = Arc::clone(&reservation.session);
    match attempt(reservation).await {
        Err(_) if !session.is_usable() => attempt(state.sessions.share(name).await?).await,
        outcome => outcome,
    }
}

/// A wait, on a session that does nothing else meanwhile. Without a token it is short, and not withdrawn.
pub(crate) async fn on_own_session<F>(
    state: &StoreState,
    name: &LockName,
    withdraw: Option<&CancellationToken>,
    wait: impl Fn(Reservation) -> F,
) -> Result<Option<SessionHold>>
where
    F: Future<Output = Result<Option<SessionHold>>>,
{
    let mut tries = 0;
    loop {
        if withdraw.is_some_and(CancellationToken::is_cancelled) {
            return Ok(None);
        }
        let Some(reservation) = state.sessions.own(name, withdraw).await? else {
            return Ok(None);
        };
        let session = Arc::clone(&reservation.session);
        let outcome = wait(reservation).await;
        match &outcome {
            // The session was killed, or the server restarts.
            Err(_) if tries < TRIES && !session.is_usable() => {
                tries += 1;
                tokio::select! {
                    () = tokio::time::sleep(PAUSE * tries) => {}
                    () = withdrawn(withdraw) => {}
                }
                continue;
            }
            Ok(Some(_)) => state.sessions.publish(&session),
            _ => state.sessions.keep_spare(&session),
        }
        return outcome;
    }
}
