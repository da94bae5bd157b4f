//! The local wait queue in front of a session store, whose server does the waiting: without an answer about the head, the
//! waiters behind it ask the server themselves.

use std::future::IntoFuture;

use crate::common::sessions::SessionServer;
use crate::common::{MS, SECOND, options};
use distlock_core::{ErrorKind, Locks, VirtualClock};
use tokio::time::Instant;

fn process(server: &SessionServer) -> Locks {
    server.locks(&VirtualClock::new())
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_is_unavailable_to_the_waiters_behind_the_head() {
    let server = SessionServer::default();
    let locks = process(&server);
    server.set_hanging(true);
    let head = tokio::spawn(locks.mutex("a").acquire().into_future());
    tokio::time::sleep(MS).await;
    for limit in [std::time::Duration::ZERO, MS, 300 * MS] {
        let begun = Instant::now();
        let tried = locks.mutex("a").try_acquire().timeout(limit).await;
        assert_eq!(tried.map(|guard| guard.is_some()).unwrap_err().kind(), ErrorKind::Unavailable);
        assert!(begun.elapsed() <= limit + SECOND, "{:?} for {limit:?}", begun.elapsed());
    }
    assert!(!head.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_the_head_waits_for_on_the_server_is_contended() {
    let server = SessionServer::default();
    let (locks, theirs) = (process(&server), process(&server));
    let held = theirs.mutex("a").acquire().await.unwrap();
    let head = tokio::spawn(locks.mutex("a").acquire().into_future());
    tokio::time::sleep(60 * SECOND).await;
    assert!(locks.mutex("a").try_acquire().await.unwrap().is_none());
    let error = locks.mutex("a").acquire().timeout(SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    held.release().await.unwrap();
    let guard = head.await.unwrap().unwrap();
    let before = server.acquisitions();
    assert!(locks.mutex("a").try_acquire().await.unwrap().is_none());
    assert_eq!(server.acquisitions(), before, "this process holds it");
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn many_time_limits_that_end_at_once_cause_one_request() {
    let server = SessionServer::default();
    let (locks, theirs) = (process(&server), process(&server));
    let _held = theirs.mutex("a").acquire().await.unwrap();
    let _head = tokio::spawn(locks.mutex("a").acquire().into_future());
    tokio::time::sleep(10 * MS).await;
    let before = server.acquisitions();
    let waiters: Vec<_> = (0..200)
        .map(|_| tokio::spawn(locks.mutex("a").acquire().timeout(5 * SECOND).into_future()))
        .collect();
    for waiting in waiters {
        assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::Timeout);
    }
    assert_eq!(server.acquisitions(), before + 1);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_probe_is_repeated_by_the_next_attempt() {
    let server = SessionServer::default();
    let (locks, theirs) = (process(&server), process(&server));
    let _held = theirs.mutex("a").acquire().await.unwrap();
    let _head = tokio::spawn(locks.mutex("a").acquire().into_future());
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
    let server = SessionServer::default();
    let locks = process(&server);
    let slow = locks.with_options(options().request_timeout(60 * SECOND).unwrap());
    let held = slow.mutex("a").acquire().await.unwrap();
    server.set_hanging(true);
    let _releasing = tokio::spawn(held.release());
    tokio::time::sleep(MS).await;
    let tried = locks.mutex("a").try_acquire().await;
    assert_eq!(tried.map(|guard| guard.is_some()).unwrap_err().kind(), ErrorKind::Unavailable);
    let error = locks.mutex("a").acquire().timeout(SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}
