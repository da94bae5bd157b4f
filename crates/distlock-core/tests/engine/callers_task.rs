//! Calls of a session store that run in the task of the caller: whatever becomes of the caller, nothing stays held.

use std::future::IntoFuture;

use crate::common::sessions::{Call, SessionServer, When};
use crate::common::{MS, SECOND, until};
use distlock_core::{ErrorKind, VirtualClock};
use futures_util::FutureExt;

#[tokio::test(start_paused = true)]
async fn a_caller_that_is_dropped_at_any_moment_leaves_nothing_held() {
    for contended in [false, true] {
        for after in 0..8 {
            let (server, clock) = (SessionServer::in_callers_task(), VirtualClock::new());
            let (locks, other) = (server.locks(&clock), server.locks(&clock));
            let held = if contended { Some(other.mutex("a").acquire().await.unwrap()) } else { None };
            let asking = locks.mutex("a").acquire().into_future();
            let _ = tokio::time::timeout(MS * after, asking).await;
            drop(held);
            until(|| async { server.is_free() }).await;
            assert!(
                locks.mutex("a").try_acquire().timeout(SECOND).await.unwrap().is_some(),
                "after {after} ms"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_single_attempt_behind_a_dropped_one_waits_for_what_that_leaves() {
    let (server, clock) = (SessionServer::in_callers_task(), VirtualClock::new());
    let locks = server.locks(&clock);
    let mut asking = locks.mutex("a").acquire().into_future().boxed();
    assert!((&mut asking).now_or_never().is_none());
    assert!(!server.is_free(), "the server has granted it and not answered");
    drop(asking);
    assert!(locks.mutex("a").try_acquire().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_dropped_is_completed() {
    let (server, clock) = (SessionServer::in_callers_task(), VirtualClock::new());
    let locks = server.locks(&clock);
    let guard = locks.mutex("a").acquire().await.unwrap();
    let mut releasing = guard.release().into_future().boxed();
    assert!((&mut releasing).now_or_never().is_none());
    drop(releasing);
    until(|| async { server.is_free() }).await;
}

#[tokio::test(start_paused = true)]
async fn shutdown_waits_until_a_caller_it_interrupted_has_left_nothing() {
    let (server, clock) = (SessionServer::in_callers_task(), VirtualClock::new());
    let locks = server.locks(&clock);
    let asking = tokio::spawn({
        let locks = locks.clone();
        async move { locks.mutex("a").acquire().await.map(drop) }
    });
    while server.is_free() {
        tokio::task::yield_now().await;
    }
    locks.shutdown().await.unwrap();
    assert!(server.is_free());
    assert_eq!(asking.await.unwrap().unwrap_err().kind(), ErrorKind::ShutDown);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_is_not_polled_does_not_delay_shutdown_for_long() {
    let (server, clock) = (SessionServer::in_callers_task(), VirtualClock::new());
    let locks = server.locks(&clock);
    let mut asking = locks.mutex("a").acquire().into_future().boxed();
    assert!((&mut asking).now_or_never().is_none());
    let begun = tokio::time::Instant::now();
    locks.shutdown().await.unwrap();
    assert!(begun.elapsed() < 5 * SECOND, "{:?}", begun.elapsed());
    drop(asking);
    until(|| async { server.is_free() }).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_never_answers_ends_as_an_error_at_the_limit() {
    let (server, clock) = (SessionServer::in_callers_task(), VirtualClock::new());
    let locks = server.locks(&clock);
    server.set_hanging(true);
    let error = locks.mutex("a").acquire().timeout(SECOND).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.is_outcome_unknown(), "{error}");
    server.set_hanging(false);
    assert!(locks.mutex("b").try_acquire().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_task_of_the_caller_is_an_error_and_leaves_nothing_held() {
    for when in [When::Before, When::After] {
        let (server, clock) = (SessionServer::in_callers_task(), VirtualClock::new());
        let locks = server.locks(&clock);
        server.panic_next(Call::Acquire, when, 100);
        let error = locks.mutex("a").acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
        until(|| async { server.is_free() }).await;
        server.panic_next(Call::Acquire, when, 0);
        let guard = locks.mutex("a").acquire().await.unwrap();
        server.panic_next(Call::Release, when, 1);
        assert!(guard.release().await.is_err());
        until(|| async { server.is_free() }).await;
    }
}
