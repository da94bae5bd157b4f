//! The wait queue of a process before a session store, whose server does the waiting: what it has not said about the
//! waiter in front, those behind ask themselves.

use std::future::IntoFuture;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::{MS, SECOND, options};
use async_trait::async_trait;
use distlock_core::store::{
    Backend, Capabilities, Claim, Finding, Holder, Lease, Query, Record, Session, SessionHold, SessionStore,
    Store,
};
use distlock_core::{
    CancellationToken, ErrorKind, FencingToken, LockId, Locks, Resource, Result, VirtualClock,
};
use tokio::sync::Notify;
use tokio::time::Instant;

/// A server of one lock, two milliseconds away, that can be made to hang.
#[derive(Clone, Debug, Default)]
struct Server(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    holder: Mutex<Option<LockId>>,
    freed: Notify,
    hangs: AtomicBool,
    asked: AtomicUsize,
    tokens: AtomicUsize,
}

impl Server {
    fn locks(&self) -> Locks {
        let builder = Locks::builder(Backend::session(self.clone())).clock(Arc::new(VirtualClock::new()));
        builder.options(options()).build().unwrap()
    }

    async fn reach(&self) {
        if self.0.hangs.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(2 * MS).await;
    }

    fn asked(&self) -> usize {
        self.0.asked.load(Ordering::SeqCst)
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
    async fn acquire(&self, claim: &Claim, withdraw: &CancellationToken) -> Result<Option<SessionHold>> {
        self.0.asked.fetch_add(1, Ordering::SeqCst);
        loop {
            self.reach().await;
            let freed = self.0.freed.notified();
            if self.0.holder.lock().unwrap().is_none() {
                *self.0.holder.lock().unwrap() = Some(claim.lock_id.clone());
                let token = self.0.tokens.fetch_add(1, Ordering::SeqCst) as u64 + 1;
                return Ok(Some(SessionHold { token: FencingToken::new(token), session: Session::new() }));
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
        self.reach().await;
        self.0.holder.lock().unwrap().take_if(|holder| *holder == lease.lock_id);
        self.0.freed.notify_waiters();
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_is_unavailable_to_those_behind_the_first_waiter() {
    let server = Server::default();
    let locks = server.locks();
    server.0.hangs.store(true, Ordering::SeqCst);
    let front = tokio::spawn(locks.mutex("a").acquire().into_future());
    tokio::time::sleep(MS).await;
    for limit in [std::time::Duration::ZERO, MS, 300 * MS] {
        let begun = Instant::now();
        let tried = locks.mutex("a").try_acquire().timeout(limit).await;
        assert_eq!(tried.map(|guard| guard.is_some()).unwrap_err().kind(), ErrorKind::Unavailable);
        assert!(begun.elapsed() <= limit + SECOND, "{:?} for {limit:?}", begun.elapsed());
    }
    assert!(!front.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_the_waiter_in_front_waits_for_on_the_server_is_contended() {
    let server = Server::default();
    let (locks, theirs) = (server.locks(), server.locks());
    let held = theirs.mutex("a").acquire().await.unwrap();
    let front = tokio::spawn(locks.mutex("a").acquire().into_future());
    tokio::time::sleep(60 * SECOND).await;
    assert!(locks.mutex("a").try_acquire().await.unwrap().is_none());
    let error = locks.mutex("a").acquire().timeout(SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    held.release().await.unwrap();
    let guard = front.await.unwrap().unwrap();
    let before = server.asked();
    assert!(locks.mutex("a").try_acquire().await.unwrap().is_none());
    assert_eq!(server.asked(), before, "this process holds it");
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn many_time_limits_that_end_at_once_ask_the_server_once() {
    let server = Server::default();
    let (locks, theirs) = (server.locks(), server.locks());
    let _held = theirs.mutex("a").acquire().await.unwrap();
    let _front = tokio::spawn(locks.mutex("a").acquire().into_future());
    tokio::time::sleep(10 * MS).await;
    let before = server.asked();
    let waiters: Vec<_> = (0..200)
        .map(|_| tokio::spawn(locks.mutex("a").acquire().timeout(5 * SECOND).into_future()))
        .collect();
    for waiting in waiters {
        assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::Timeout);
    }
    assert_eq!(server.asked(), before + 1);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_was_dropped_half_way_leaves_the_question_to_the_next() {
    let server = Server::default();
    let (locks, theirs) = (server.locks(), server.locks());
    let _held = theirs.mutex("a").acquire().await.unwrap();
    let _front = tokio::spawn(locks.mutex("a").acquire().into_future());
    tokio::time::sleep(10 * MS).await;
    let mut first = Box::pin(locks.mutex("a").try_acquire().into_future());
    assert!(tokio::time::timeout(MS, &mut first).await.is_err());
    let second = tokio::spawn(locks.mutex("a").try_acquire().into_future());
    tokio::task::yield_now().await;
    drop(first);
    assert!(second.await.unwrap().unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_release_that_hangs_is_unavailable_and_not_contention() {
    let server = Server::default();
    let locks = server.locks();
    let slow = locks.with_options(options().request_timeout(60 * SECOND).unwrap());
    let held = slow.mutex("a").acquire().await.unwrap();
    server.0.hangs.store(true, Ordering::SeqCst);
    let _releasing = tokio::spawn(held.release());
    tokio::time::sleep(MS).await;
    let tried = locks.mutex("a").try_acquire().await;
    assert_eq!(tried.map(|guard| guard.is_some()).unwrap_err().kind(), ErrorKind::Unavailable);
    let error = locks.mutex("a").acquire().timeout(SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}
