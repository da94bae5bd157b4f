//! Learning that a holder of permits died: a session waits for the session lock of the holder's session, and is granted it when
//! that session has ended.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::future::BoxFuture;
use tokio_postgres::types::{ToSql, Type};

use super::lock_session::LockSession;
use super::store::StoreState;
use crate::error;

/// Only a claim that waits for longer than this watches the holders: most waits are shorter.
const WATCH_AFTER: Duration = Duration::from_millis(500);
/// Of several blocking sessions one is watched; because of the others the claim is sent again after this long.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Resolves when it makes sense to send the claim again. One task of this process watches for a pool; the others rely on it.
pub(super) async fn until_session_ends(state: &Arc<StoreState>, pool: &str, sessions: &[i64]) {
    if sessions.is_empty() {
        return std::future::pending().await;
    }
    tokio::time::sleep(WATCH_AFTER).await;
    let right_to_watch = {
        let mut watches = state.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.retain(|_, watch| Arc::strong_count(watch) > 1);
        Arc::clone(watches.entry(pool.to_owned()).or_default())
    };
    let _watching = right_to_watch.lock().await;
    let watched = sessions[fastrand::usize(..sessions.len())];
    let retry = async {
        match sessions.len() {
            1 => std::future::pending().await,
            _ => tokio::time::sleep(RETRY_INTERVAL).await,
        }
    };
    tokio::select! {
        () = watch(state, watched) => {}
        () = retry => {}
    }
}

/// Resolves when a session has ended.
async fn watch(state: &Arc<StoreState>, session_lock: i64) {
    let Ok(session) = state.idle_session().await else { return tokio::time::sleep(RETRY_INTERVAL).await };
    let running = Some(wait_for(Arc::clone(&session), session_lock));
    Watch { state: Arc::clone(state), running, session, session_lock }.await;
}

type Waiting = BoxFuture<'static, Result<(), tokio_postgres::Error>>;

fn wait_for(session: Arc<LockSession>, session_lock: i64) -> Waiting {
    Box::pin(async move {
        let _waiting = session.mark_waiting();
        let typed: &[(&(dyn ToSql + Sync), Type)] = &[(&session_lock, Type::INT8)];
        let client = session.connection.client();
        client.query_typed("SELECT pg_catalog.pg_advisory_lock_shared($1) IS NULL", typed).await?;
        unlock(&session, session_lock).await
    })
}

async fn unlock(session: &LockSession, session_lock: i64) -> Result<(), tokio_postgres::Error> {
    let typed: &[(&(dyn ToSql + Sync), Type)] = &[(&session_lock, Type::INT8)];
    let client = session.connection.client();
    client.query_typed("SELECT pg_catalog.pg_advisory_unlock_shared($1)", typed).await.map(drop)
}

/// A watch in flight. If it is dropped, its statement is cancelled in the background.
struct Watch {
    state: Arc<StoreState>,
    running: Option<Waiting>,
    session: Arc<LockSession>,
    session_lock: i64,
}

impl Future for Watch {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(running) = &mut self.running else { return Poll::Ready(()) };
        let outcome = std::task::ready!(running.as_mut().poll(context));
        self.running = None;
        match outcome {
            Ok(()) => self.state.keep_idle(Arc::clone(&self.session)),
            Err(_) => self.session.close("a watch failed"),
        }
        Poll::Ready(())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let Some(mut running) = self.running.take() else { return };
        let (state, session, session_lock) =
            (Arc::clone(&self.state), Arc::clone(&self.session), self.session_lock);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return session.close("a watch ended");
        };
        runtime.spawn(async move {
            let is_unlocked = match state.cancel_statement(&session, running.as_mut()).await {
                // The lock may have been granted before the statement was cancelled. The session then holds it.
                Some(Err(error)) if error::is_cancelled(&error) => {
                    unlock(&session, session_lock).await.is_ok()
                }
                Some(outcome) => outcome.is_ok(),
                None => false,
            };
            match is_unlocked && session.verify().await.is_ok() {
                true => state.keep_idle(session),
                false => session.close("a watch ended"),
            }
        });
    }
}
