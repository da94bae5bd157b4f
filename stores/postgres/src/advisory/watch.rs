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
/// How long the end of a cancelled watch may take to be told.
const TOLD: Duration = Duration::from_secs(2);

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
    Watching { store: Arc::clone(store), running: Some(wait_for(Arc::clone(&seat), session)), seat }.await;
}

fn wait_for(seat: Arc<Seat>, session: i64) -> BoxFuture<'static, Result<(), tokio_postgres::Error>> {
    Box::pin(async move {
        let _waiting = seat.begin_waiting();
        let typed: &[(&(dyn ToSql + Sync), Type)] = &[(&session, Type::INT8)];
        let client = seat.wire.client();
        client.query_typed("SELECT pg_advisory_lock_shared($1) IS NULL", typed).await?;
        client.query_typed("SELECT pg_advisory_unlock_shared($1)", typed).await?;
        Ok(())
    })
}

/// A watch under way. Dropped, its statement is cancelled in the background.
struct Watching {
    store: Arc<Inner>,
    running: Option<BoxFuture<'static, Result<(), tokio_postgres::Error>>>,
    seat: Arc<Seat>,
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
        let Some(running) = self.running.take() else { return };
        let (store, seat) = (Arc::clone(&self.store), Arc::clone(&self.seat));
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return seat.cut("a watch ended") };
        runtime.spawn(async move {
            let asked = seat.cancel().await;
            let ended = tokio::time::timeout(TOLD, running).await;
            let cancelled =
                |error: &tokio_postgres::Error| failure::has_code(error, &[SqlState::QUERY_CANCELED]);
            match (asked, ended) {
                // Told so: the request to cancel has arrived, and cannot hit anything else.
                (Ok(()), Ok(Err(error))) if cancelled(&error) && seat.verify().await.is_ok() => {
                    store.put_back(seat)
                }
                _ => seat.cut("a watch ended"),
            }
        });
    }
}
