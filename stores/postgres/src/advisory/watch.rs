//! Noticing that somebody died who holds permits: a session waits for the lock that stands for the other's session, and
//! gets it when that is gone.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::future::BoxFuture;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use super::Inner;
use super::seat::Seat;
use crate::failure;

/// Only who waits for longer than this looks after those who hold: most waits are over before.
const SHORT: Duration = Duration::from_millis(500);
/// Where several sessions hold, one is watched; for the others we ask again this often.
const TICK: Duration = Duration::from_secs(1);

/// Resolves when it is worth asking again. One task of this process watches for a pool; the others rely on it.
pub(super) async fn until_somebody_died(store: &Arc<Inner>, pool: &str, sessions: &[i64]) {
    if sessions.is_empty() {
        return std::future::pending().await;
    }
    tokio::time::sleep(SHORT).await;
    let turn = {
        let mut watches = store.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.retain(|_, turn| Arc::strong_count(turn) > 1);
        Arc::clone(watches.entry(pool.to_owned()).or_default())
    };
    let _turn = turn.lock().await;
    let watched = sessions[fastrand::usize(..sessions.len())];
    let tick = async {
        match sessions.len() {
            1 => std::future::pending().await,
            _ => tokio::time::sleep(TICK).await,
        }
    };
    tokio::select! {
        () = watch(store, watched) => {}
        () = tick => {}
    }
}

/// Resolves when a session is gone.
async fn watch(store: &Arc<Inner>, session: i64) {
    let Ok(seat) = store.spare_seat().await else { return tokio::time::sleep(TICK).await };
    let running = Some(wait_for(Arc::clone(&seat), session));
    Watching { store: Arc::clone(store), running, seat, session }.await;
}

fn wait_for(seat: Arc<Seat>, session: i64) -> BoxFuture<'static, Result<(), tokio_postgres::Error>> {
    Box::pin(async move {
        let _waiting = seat.begin_waiting();
        let typed: &[(&(dyn ToSql + Sync), Type)] = &[(&session, Type::INT8)];
        seat.wire
            .client()
            .query_typed("SELECT pg_catalog.pg_advisory_lock_shared($1) IS NULL", typed)
            .await?;
        forget(&seat, session).await
    })
}

async fn forget(seat: &Seat, session: i64) -> Result<(), tokio_postgres::Error> {
    let typed: &[(&(dyn ToSql + Sync), Type)] = &[(&session, Type::INT8)];
    seat.wire.client().query_typed("SELECT pg_catalog.pg_advisory_unlock_shared($1)", typed).await.map(drop)
}

/// A watch under way. Dropped, its statement is cancelled in the background.
struct Watching {
    store: Arc<Inner>,
    running: Option<BoxFuture<'static, Result<(), tokio_postgres::Error>>>,
    seat: Arc<Seat>,
    session: i64,
}

impl Future for Watching {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(running) = &mut self.running else { return Poll::Ready(()) };
        let ended = std::task::ready!(running.as_mut().poll(context));
        self.running = None;
        match ended {
            Ok(()) => self.store.put_back(Arc::clone(&self.seat)),
            Err(_) => self.seat.cut("a watch failed"),
        }
        Poll::Ready(())
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let Some(mut running) = self.running.take() else { return };
        let (store, seat, session) = (Arc::clone(&self.store), Arc::clone(&self.seat), self.session);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return seat.cut("a watch ended") };
        runtime.spawn(async move {
            let ended = match store.end_statement(&seat, running.as_mut()).await {
                // The lock may have been granted before the statement was cancelled: it is the session's, and stays.
                Some(Err(error)) if failure::has_code(&error, &[SqlState::QUERY_CANCELED]) => {
                    forget(&seat, session).await.is_ok()
                }
                Some(ended) => ended.is_ok(),
                None => false,
            };
            match ended && seat.verify().await.is_ok() {
                true => store.put_back(seat),
                false => seat.cut("a watch ended"),
            }
        });
    }
}
