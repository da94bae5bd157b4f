//! Sessions beside the shared one: for claims that wait, and for watches. They are reused, and their statements are cancelled
//! when a claim withdraws.

use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use distlock_core::store::support::errors;
use distlock_core::{CancellationToken, Result};
use tokio::sync::oneshot;

use super::lock_session::LockSession;
use super::store::{StoreState, TOO_LONG_SILENT};
use crate::statement::Request;

/// How many sessions without locks are kept for claims that have to wait.
const MAX_IDLE: usize = 2;
/// The cancel signal is sent again if the statement has not ended after this long.
const CANCEL_INTERVAL: Duration = Duration::from_millis(100);
/// A session whose statement has not ended after this long is closed.
const CANCEL_LIMIT: Duration = Duration::from_secs(2);

impl StoreState {
    /// A session without locks, opened now if none is idle.
    pub(super) async fn idle_session(&self) -> Result<Arc<LockSession>> {
        match self.take_idle() {
            Some(session) => Ok(session),
            None => LockSession::open(&self.config, self.clock(), None).await,
        }
    }

    /// As [`idle_session`](StoreState::idle_session), or `None` if the claim withdraws first: opening a session takes longer than
    /// many time limits. The session that is being opened is then kept for the next claim.
    pub(super) async fn idle_session_unless(
        self: &Arc<Self>,
        withdraw: &CancellationToken,
    ) -> Option<Result<Arc<LockSession>>> {
        if withdraw.is_cancelled() {
            return None;
        }
        if let Some(session) = self.take_idle() {
            return Some(Ok(session));
        }
        let (state, (sender, opened)) = (Arc::clone(self), oneshot::channel());
        tokio::spawn(async move {
            let session = LockSession::open(&state.config, state.clock(), None).await;
            if let Err(Ok(session)) = sender.send(session) {
                state.keep_idle(session);
            }
        });
        let ended = |_| Err(errors::unavailable("the task that opened a session ended"));
        Some(withdraw.run_until_cancelled(opened).await?.unwrap_or_else(ended))
    }

    fn take_idle(&self) -> Option<Arc<LockSession>> {
        loop {
            let session = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
            if session.is_alive() {
                return Some(session);
            }
            session.close(TOO_LONG_SILENT);
        }
    }

    /// Keeps a session without locks for the next claim that has to wait.
    pub(super) fn keep_idle(&self, session: Arc<LockSession>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if session.is_alive() && idle.len() < MAX_IDLE {
            idle.push(session);
        }
    }

    /// Cancels the statement that a session is executing, and returns its outcome: it may have ended before. `None`: it did not
    /// end, and the session is unusable. Afterwards no cancel signal can hit the next statement of the session.
    pub(super) async fn cancel_statement<T>(
        &self,
        session: &LockSession,
        mut running: Pin<&mut (impl Future<Output = T> + ?Sized)>,
    ) -> Option<T> {
        let cancelling = async {
            loop {
                let shared = self.shared.current()?;
                let connection = &shared.session.connection;
                let rows =
                    connection.run(&Request::new(&self.cancel, &[&session.session_lock])).await.ok()?;
                if !rows.first().is_some_and(|row| row.try_get("signalled").unwrap_or(false)) {
                    return None;
                }
                // If the signal came before the server began the statement it had no effect, and is sent again.
                if let Ok(ended) = tokio::time::timeout(CANCEL_INTERVAL, running.as_mut()).await {
                    return Some(ended);
                }
            }
        };
        tokio::time::timeout(CANCEL_LIMIT, cancelling).await.ok().flatten()
    }
}
