//! The engine on a session store: a small one in memory, whose server can be told to end a session.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::collections::HashMap;
use std::future::IntoFuture;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use common::{MS, SECOND, options, until};
use distlock_core::store::{
    Backend, Capabilities, Claim, Fairness, Finding, Holder, Lease, Query, Record, Session, SessionHold,
    SessionStore, Store,
};
use distlock_core::{
    CancellationToken, Clock, Error, ErrorKind, FencingToken, LockId, Locks, LossReason, ReleaseError,
    Resource, Result, VirtualClock,
};
use tokio::sync::Notify;

#[derive(Clone, Debug, Default)]
struct Server(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    held: Mutex<HashMap<Resource, (LockId, Session)>>,
    freed: Notify,
    token: Mutex<u64>,
    /// The deadline that new sessions get, if any.
    deadline: Mutex<Option<distlock_core::Moment>>,
    refuse_release: Mutex<bool>,
    silent: std::sync::atomic::AtomicBool,
}

impl Server {
    async fn silence(&self) {
        if self.0.silent.load(std::sync::atomic::Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
    }

    fn is_free(&self) -> bool {
        self.0.held.lock().unwrap().is_empty()
    }

    fn end_all(&self) {
        for (_, (_, session)) in self.0.held.lock().unwrap().drain() {
            session.end(LossReason::SessionEnded("the server said so".into()));
        }
        self.0.freed.notify_waiters();
    }

    fn locks(&self, clock: &VirtualClock) -> Locks {
        let builder = Locks::builder(Backend::session(self.clone())).clock(Arc::new(clock.clone()));
        builder.options(options()).build().unwrap()
    }

    fn try_take(&self, claim: &Claim) -> Option<SessionHold> {
        let mut held = self.0.held.lock().unwrap();
        if held.contains_key(&claim.resource) {
            return None;
        }
        let session = match *self.0.deadline.lock().unwrap() {
            Some(deadline) => Session::until(deadline),
            None => Session::new(),
        };
        held.insert(claim.resource.clone(), (claim.lock_id.clone(), session.clone()));
        let mut token = self.0.token.lock().unwrap();
        *token += 1;
        Some(SessionHold { token: FencingToken::new(*token), session })
    }
}

#[async_trait]
impl Store for Server {
    fn describe(&self) -> String {
        "test sessions".into()
    }
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::all();
        capabilities.semaphore = false;
        capabilities.rw_lock = false;
        capabilities.fairness = Fairness::None;
        capabilities.reasons = &[("semaphores", "this server counts only to one")];
        capabilities
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
    async fn acquire(&self, claim: &Claim, withdraw: &CancellationToken) -> Result<Option<SessionHold>> {
        self.silence().await;
        loop {
            let freed = self.0.freed.notified();
            // A slow server: the grant is decided before the answer is on its way.
            let taken = self.try_take(claim);
            tokio::time::sleep(2 * MS).await;
            if taken.is_some() {
                return Ok(taken);
            }
            if withdraw.is_cancelled() {
                return Ok(None);
            }
            tokio::select! {
                () = freed => {}
                () = withdraw.cancelled() => {}
            }
        }
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        self.silence().await;
        tokio::time::sleep(2 * MS).await;
        let mut held = self.0.held.lock().unwrap();
        if *self.0.refuse_release.lock().unwrap() {
            return Err(Error::new(ErrorKind::Unavailable, "gone"));
        }
        if held.get(&lease.resource).is_some_and(|(id, _)| *id == lease.lock_id) {
            held.remove(&lease.resource);
        }
        drop(held);
        self.0.freed.notify_waiters();
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_that_ends_turns_its_guards_lost_at_once() {
    let (server, clock) = (Server::default(), VirtualClock::new());
    let locks = server.locks(&clock);
    let guard = locks.mutex("a").acquire().await.unwrap();
    let signal = guard.cancellation_token();
    assert_eq!(guard.time_left(), None);
    server.end_all();
    assert!(guard.is_lost());
    signal.cancelled().await;
    assert!(matches!(
        guard.release().await,
        Err(ReleaseError::Lost { reason: LossReason::SessionEnded(_), .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn a_session_past_its_deadline_is_lost_though_nobody_said_so() {
    let (server, clock) = (Server::default(), VirtualClock::new());
    *server.0.deadline.lock().unwrap() = Some(clock.now().after(10 * SECOND));
    let locks = server.locks(&clock);
    let guard = locks.mutex("a").acquire().await.unwrap();
    let signal = guard.cancellation_token();
    assert!(!guard.is_lost() && guard.time_left().unwrap() <= 10 * SECOND);
    signal.cancelled().await;
    assert!(guard.is_lost());
    drop(guard);
    until(|| async { server.is_free() }).await;
    let guard = locks.mutex("a").acquire().await;
    assert!(guard.is_err() || guard.unwrap().is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_suspend_is_seen_at_the_first_look_on_a_session_with_a_deadline() {
    let (server, clock) = (Server::default(), VirtualClock::new());
    *server.0.deadline.lock().unwrap() = Some(clock.now().after(10 * SECOND));
    let locks = server.locks(&clock);
    let guard = locks.mutex("a").acquire().await.unwrap();
    clock.jump(11 * SECOND);
    assert!(guard.is_lost());
}

#[tokio::test(start_paused = true)]
async fn an_acquire_dropped_at_any_moment_withdraws_and_leaves_nothing_held() {
    for contended in [false, true] {
        for after in 0..8 {
            let (server, clock) = (Server::default(), VirtualClock::new());
            let locks = server.locks(&clock);
            let other = server.locks(&clock);
            let held = if contended { Some(other.mutex("a").acquire().await.unwrap()) } else { None };
            let asking = locks.mutex("a").acquire().into_future();
            let _ = tokio::time::timeout(MS * after, asking).await;
            drop(held);
            until(|| async { server.is_free() }).await;
            // What the server granted to the one who left is given back in a moment.
            assert!(
                locks.mutex("a").try_acquire().timeout(SECOND).await.unwrap().is_some(),
                "after {after} ms"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_time_limit_withdraws_and_contention_is_not_an_error() {
    let (server, clock) = (Server::default(), VirtualClock::new());
    let (ours, theirs) = (server.locks(&clock), server.locks(&clock));
    let held = theirs.mutex("a").acquire().await.unwrap();
    assert!(ours.mutex("a").try_acquire().await.unwrap().is_none());
    let begun = tokio::time::Instant::now();
    let error = ours.mutex("a").acquire().timeout(SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(begun.elapsed() >= SECOND && begun.elapsed() < SECOND + 20 * MS);
    held.release().await.unwrap();
    assert!(ours.mutex("a").acquire().timeout(SECOND).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn what_the_store_cannot_do_is_refused_with_its_reason() {
    let (server, clock) = (Server::default(), VirtualClock::new());
    let locks = server.locks(&clock);
    let error = locks.semaphore("s", 2).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("counts only to one"), "{error}");
    assert_eq!(locks.mutex("m").fair().acquire().await.unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(locks.rw_lock("r").read().await.unwrap_err().kind(), ErrorKind::Unsupported);
    assert!(server.is_free());
}

#[tokio::test(start_paused = true)]
async fn shutdown_gives_session_holds_back() {
    let (server, clock) = (Server::default(), VirtualClock::new());
    let locks = server.locks(&clock);
    let guard = locks.mutex("a").acquire().await.unwrap();
    locks.shutdown().await.unwrap();
    assert!(server.is_free() && guard.loss() == Some(LossReason::ShutDown));
}

#[tokio::test(start_paused = true)]
async fn a_release_that_failed_is_told_and_tried_again() {
    let (server, clock) = (Server::default(), VirtualClock::new());
    let locks = server.locks(&clock);
    let guard = locks.mutex("a").acquire().await.unwrap();
    *server.0.refuse_release.lock().unwrap() = true;
    assert!(matches!(guard.release().await, Err(ReleaseError::Unknown { .. })));
    *server.0.refuse_release.lock().unwrap() = false;
    until(|| async { server.is_free() }).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_answers_ends_as_an_error_at_the_limit() {
    let (server, clock) = (Server::default(), VirtualClock::new());
    server.0.silent.store(true, std::sync::atomic::Ordering::SeqCst);
    let locks = server.locks(&clock);
    for limit in [std::time::Duration::ZERO, 100 * MS] {
        let begun = tokio::time::Instant::now();
        let error = locks.mutex("a").acquire().timeout(limit).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(begun.elapsed() <= limit + SECOND, "{:?}", begun.elapsed());
    }
    server.0.silent.store(false, std::sync::atomic::Ordering::SeqCst);
    let guard = locks.mutex("b").acquire().await.unwrap();
    server.0.silent.store(true, std::sync::atomic::Ordering::SeqCst);
    assert!(matches!(guard.release().await, Err(ReleaseError::Unknown { .. })));
}
