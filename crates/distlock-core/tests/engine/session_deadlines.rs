//! Guards that live with a session: they end with it at once, and live on with every heartbeat, without anyone looking.

use std::future::IntoFuture;
use std::sync::{Arc, Mutex};

use crate::common::{MS, SECOND, options};
use async_trait::async_trait;
use distlock_core::store::{
    Backend, Capabilities, Claim, Finding, Holder, Lease, Query, Record, Session, SessionHold, SessionStore,
    Store,
};
use distlock_core::{
    CancellationToken, Clock, FencingToken, Locks, LossReason, Moment, Resource, Result, VirtualClock,
};
use tokio::time::Instant;

/// A server that grants everything, in one session after the other.
#[derive(Clone, Debug)]
struct Server {
    clock: VirtualClock,
    sessions: Arc<Mutex<Vec<Session>>>,
}

impl Server {
    /// The sessions of it end this many seconds from now unless they are kept; never for zero.
    fn locks(seconds: u32) -> (Server, Locks) {
        let clock = VirtualClock::new();
        let server = Server { clock: clock.clone(), sessions: Arc::default() };
        let first = match seconds {
            0 => Session::new(),
            _ => Session::until(clock.now().after(seconds * SECOND)),
        };
        server.sessions.lock().unwrap().push(first);
        let backend = Backend::session(server.clone());
        (server, Locks::builder(backend).clock(Arc::new(clock)).options(options()).build().unwrap())
    }

    fn session(&self) -> Session {
        self.sessions.lock().unwrap().last().unwrap().clone()
    }

    fn after(&self, seconds: u32) -> Moment {
        self.clock.now().after(seconds * SECOND)
    }
}

#[async_trait]
impl Store for Server {
    fn describe(&self) -> String {
        "test sessions".into()
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities::all()
    }
    async fn inspect(&self, _: &Query) -> Result<Vec<Record>> {
        Ok(Vec::new())
    }
    async fn break_lock(&self, _: &Resource) -> Result<Vec<Holder>> {
        Ok(Vec::new())
    }
    async fn doctor(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }
}

#[async_trait]
impl SessionStore for Server {
    async fn acquire(&self, _: &Claim, _: &CancellationToken) -> Result<Option<SessionHold>> {
        Ok(Some(SessionHold { token: FencingToken::new(1), session: self.session() }))
    }
    async fn release(&self, _: &Lease) -> Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_that_ends_is_told_to_its_guards_though_no_one_looks_at_them() {
    let (server, locks) = Server::locks(0);
    let guards = [locks.mutex("a").acquire().await.unwrap(), locks.mutex("b").acquire().await.unwrap()];
    let signals = guards.each_ref().map(distlock_core::Guard::cancellation_token);
    // A waiter of this process stands behind the guard, and is let in by the loss.
    let next = tokio::spawn(locks.mutex("a").acquire().into_future());
    tokio::time::sleep(MS).await;
    assert!(!next.is_finished() && signals.iter().all(|signal| !signal.is_cancelled()));
    let ended = server.session();
    server.sessions.lock().unwrap().push(Session::new());
    ended.end(LossReason::SessionEnded("the server said so".into()));
    assert!(signals.iter().all(CancellationToken::is_cancelled), "told at once");
    let next = next.await.unwrap().unwrap();
    assert!(
        !next.is_lost() && guards[0].loss() == Some(LossReason::SessionEnded("the server said so".into()))
    );
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_keeps_guards_and_the_last_one_ends_them_on_time() {
    let (server, locks) = Server::locks(10);
    let begun = Instant::now();
    let guard = locks.mutex("a").acquire().await.unwrap();
    let signal = guard.cancellation_token();
    for _ in 0..10 {
        tokio::time::sleep(5 * SECOND).await;
        server.session().keep_until(server.after(10));
        // One that comes late does not take time away.
        server.session().keep_until(server.after(1));
        assert_eq!(guard.time_left(), Some(10 * SECOND));
    }
    assert!(!signal.is_cancelled());
    signal.cancelled().await;
    assert!(
        begun.elapsed() >= 60 * SECOND && begun.elapsed() <= 60 * SECOND + 2 * MS,
        "{:?}",
        begun.elapsed()
    );
    assert!(matches!(guard.loss(), Some(LossReason::SessionEnded(_))));
}
