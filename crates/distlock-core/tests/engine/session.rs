//! The engine on a session store.

use std::future::IntoFuture;

use crate::common::sessions::SessionServer;
use crate::common::{MS, SECOND, until};
use distlock_core::{Clock, ErrorKind, LossReason, ReleaseError, VirtualClock};

#[tokio::test(start_paused = true)]
async fn guards_are_lost_at_once_when_their_session_ends() {
    let (server, clock) = (SessionServer::default(), VirtualClock::new());
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
async fn a_session_past_its_deadline_is_lost_without_a_message() {
    let (server, clock) = (SessionServer::default(), VirtualClock::new());
    server.set_deadline(clock.now().after(10 * SECOND));
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
async fn the_first_check_after_a_suspend_reports_a_session_past_its_deadline() {
    let (server, clock) = (SessionServer::default(), VirtualClock::new());
    server.set_deadline(clock.now().after(10 * SECOND));
    let locks = server.locks(&clock);
    let guard = locks.mutex("a").acquire().await.unwrap();
    clock.jump(11 * SECOND);
    assert!(guard.is_lost());
}

#[tokio::test(start_paused = true)]
async fn an_acquire_cancelled_at_any_moment_withdraws_and_leaves_nothing_held() {
    for contended in [false, true] {
        for after in 0..8 {
            let (server, clock) = (SessionServer::default(), VirtualClock::new());
            let locks = server.locks(&clock);
            let other = server.locks(&clock);
            let held = if contended { Some(other.mutex("a").acquire().await.unwrap()) } else { None };
            let asking = locks.mutex("a").acquire().into_future();
            let _ = tokio::time::timeout(MS * after, asking).await;
            drop(held);
            until(|| async { server.is_free() }).await;
            // What the server granted to the cancelled caller is released soon.
            assert!(
                locks.mutex("a").try_acquire().timeout(SECOND).await.unwrap().is_some(),
                "after {after} ms"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_time_limit_withdraws_and_contention_is_not_an_error() {
    let (server, clock) = (SessionServer::default(), VirtualClock::new());
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
async fn unsupported_locks_are_refused_with_the_stores_reason() {
    let (server, clock) = (SessionServer::default(), VirtualClock::new());
    let locks = server.locks(&clock);
    let error = locks.semaphore("s", 2).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("has no counters"), "{error}");
    assert_eq!(locks.mutex("m").fair().acquire().await.unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(locks.rw_lock("r").read().await.unwrap_err().kind(), ErrorKind::Unsupported);
    assert!(server.is_free());
}

#[tokio::test(start_paused = true)]
async fn shutdown_releases_session_holds() {
    let (server, clock) = (SessionServer::default(), VirtualClock::new());
    let locks = server.locks(&clock);
    let guard = locks.mutex("a").acquire().await.unwrap();
    locks.shutdown().await.unwrap();
    assert!(server.is_free() && guard.loss() == Some(LossReason::ShutDown));
}

#[tokio::test(start_paused = true)]
async fn a_failed_release_is_reported_and_retried() {
    let (server, clock) = (SessionServer::default(), VirtualClock::new());
    let locks = server.locks(&clock);
    let guard = locks.mutex("a").acquire().await.unwrap();
    server.refuse_release(true);
    assert!(matches!(guard.release().await, Err(ReleaseError::Unknown { .. })));
    server.refuse_release(false);
    until(|| async { server.is_free() }).await;
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_acquire_ends_as_an_error_at_the_limit() {
    let (server, clock) = (SessionServer::default(), VirtualClock::new());
    server.set_hanging(true);
    let locks = server.locks(&clock);
    for limit in [std::time::Duration::ZERO, 100 * MS] {
        let begun = tokio::time::Instant::now();
        let error = locks.mutex("a").acquire().timeout(limit).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(begun.elapsed() <= limit + SECOND, "{:?}", begun.elapsed());
    }
    server.set_hanging(false);
    let guard = locks.mutex("b").acquire().await.unwrap();
    server.set_hanging(true);
    assert!(matches!(guard.release().await, Err(ReleaseError::Unknown { .. })));
}
