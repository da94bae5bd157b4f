//! After a session of this store has ended: its rows are deleted, and a witness that ended is replaced.
//!
//! The witness is a session without locks. It shows to others that this process lives although another session of it ended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use distlock_core::Result;
use tokio::sync::mpsc::UnboundedReceiver;

use super::LockSession;
use super::name::testable_process;
use crate::lock_name::{process_lock, session_lock};
use crate::rows;
use crate::store::StoreState;

/// How long the server may take to end a session whose connection we closed.
const TERMINATION_LIMIT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(5);
/// How often a witness is opened that could not be.
const RETRY: Duration = Duration::from_secs(1);

/// Whether another session is alive, by the lock that it holds for as long as it lives.
pub(crate) async fn is_alive(state: &StoreState, observer: &LockSession, session: &str) -> Result<bool> {
    // Its own lock is no obstacle to a session.
    if observer.name() == session {
        return Ok(true);
    }
    is_held(state, observer, session_lock(&state.config.names, session)).await
}

/// Whether guards of an ended session may be left: its process lives, or cannot be asked for.
pub(crate) async fn may_have_guards(state: &StoreState, observer: &LockSession, ended: &str) -> Result<bool> {
    match testable_process(ended, observer.name()) {
        Some(process) => is_held(state, observer, process_lock(&state.config.names, &process)).await,
        None => Ok(true),
    }
}

async fn is_held(state: &StoreState, observer: &LockSession, lock: String) -> Result<bool> {
    let params = vec![lock.into(), state.config.principal.as_str().into()];
    let rows = observer.query(&state.statements.alive, params).await?;
    Ok(rows::number::<i64>(rows.first(), "free")? == 0)
}

/// Starts the background task that hears of ended sessions.
pub(crate) fn watch(state: &Arc<StoreState>, mut ended: UnboundedReceiver<String>) {
    if !state.config.tokens {
        return;
    }
    let state = Arc::downgrade(state);
    tokio::spawn(async move {
        loop {
            let has_witness = state.upgrade().is_some_and(|state| state.sessions.has_witness());
            let heard = match has_witness {
                true => ended.recv().await,
                false => match tokio::time::timeout(RETRY, ended.recv()).await {
                    Ok(heard) => heard,
                    Err(_) => Some(String::new()),
                },
            };
            let (Some(session), Some(state)) = (heard, state.upgrade()) else { return };
            if let Err(error) = forget(&state, &session).await {
                tracing::debug!(%error, "the rows of an ended session stay for the sweep");
            }
        }
    });
}

/// Deletes the rows of a session when it has ended. Its guards are lost, so no later holder waits for them.
async fn forget(state: &StoreState, session: &str) -> Result<()> {
    let observer = state.sessions.observer().await?;
    if session.is_empty() {
        return Ok(());
    }
    let begun = Instant::now();
    while is_alive(state, &observer, session).await? && begun.elapsed() < TERMINATION_LIMIT {
        tokio::time::sleep(PAUSE).await;
    }
    observer.query(&state.statements.forget, vec![session.into()]).await?;
    Ok(())
}
