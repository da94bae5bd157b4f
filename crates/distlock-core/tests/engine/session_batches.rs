//! A session store that takes attempts and releases in batches.

use std::future::IntoFuture;

use futures_util::future::join_all;

use crate::common::sessions::{Call, SessionServer, When};
use crate::common::{MS, SECOND, options, until};
use distlock_core::{ErrorKind, VirtualClock};

#[tokio::test(start_paused = true)]
async fn many_tasks_are_one_attempt_and_one_release_at_a_time() {
    let (server, clock) = (SessionServer::batching(), VirtualClock::new());
    let locks = server.locks(&clock);
    let names: Vec<String> = (0..100).map(|n| format!("m/{n}")).collect();
    let guards = join_all(names.iter().map(|name| locks.mutex(name.as_str()).acquire().into_future())).await;
    let sizes = server.batch_sizes(Call::Acquire);
    assert!(sizes.len() <= 3 && sizes.iter().sum::<usize>() == 100, "{sizes:?}");
    let released = join_all(guards.into_iter().map(|guard| guard.unwrap().release())).await;
    assert!(released.into_iter().all(|released| released.is_ok()));
    let sizes = server.batch_sizes(Call::Release);
    assert!(sizes.len() <= 3 && sizes.iter().sum::<usize>() == 100, "{sizes:?}");
    assert!(server.is_free() && server.acquisitions() == 0 && server.waits() == 0);
}

#[tokio::test(start_paused = true)]
async fn a_contended_claim_waits_in_the_server_without_a_second_attempt() {
    let (server, clock) = (SessionServer::batching(), VirtualClock::new());
    let (holder, waiter) = (server.locks(&clock), server.locks(&clock));
    let held = holder.mutex("a").acquire().await.unwrap();
    assert!(waiter.mutex("a").try_acquire().await.unwrap().is_none());
    assert_eq!(server.waits(), 0, "a single attempt does not wait");
    let waiting = tokio::spawn(waiter.mutex("a").acquire().into_future());
    until(|| async { server.waits() == 1 }).await;
    held.release().await.unwrap();
    let granted = waiting.await.unwrap().unwrap();
    assert_eq!((server.batch_sizes(Call::Acquire), server.acquisitions()), (vec![1, 1, 1], 0));
    granted.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_attempt_cancelled_at_any_moment_leaves_nothing_held() {
    for others in [0, 5] {
        for after in 0..6 {
            let (server, clock) = (SessionServer::batching(), VirtualClock::new());
            let locks = server.locks(&clock);
            let beside: Vec<_> = (0..others)
                .map(|n| tokio::spawn(locks.mutex(format!("b/{n}")).acquire().into_future()))
                .collect();
            tokio::task::yield_now().await;
            let asking = locks.mutex("a").acquire().into_future();
            let granted = tokio::time::timeout(MS * after, asking).await;
            drop(granted);
            // A single attempt waits for what its own process left, and does not report it as contention.
            let again = locks.mutex("a").try_acquire().await.unwrap();
            assert!(again.is_some(), "after {after} ms with {others} others");
            drop(again);
            for guard in join_all(beside).await {
                guard.unwrap().unwrap().release().await.unwrap();
            }
            until(|| async { server.is_free() }).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_arrived_and_was_never_read_is_released() {
    let (server, clock) = (SessionServer::batching(), VirtualClock::new());
    let locks = server.locks(&clock);
    let beside = tokio::spawn(locks.mutex("b").acquire().into_future());
    tokio::task::yield_now().await;
    let mut asking = Box::pin(locks.mutex("a").acquire().into_future());
    assert!(futures_util::poll!(&mut asking).is_pending(), "queued behind the attempt in flight");
    beside.await.unwrap().unwrap().release().await.unwrap();
    until(|| async { server.batch_sizes(Call::Acquire).len() == 2 }).await;
    tokio::time::sleep(10 * MS).await;
    assert!(!server.is_free(), "granted, and the answer not read");
    drop(asking);
    until(|| async { server.is_free() }).await;
    assert!(locks.mutex("a").try_acquire().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn an_attempt_without_an_answer_is_no_contention_and_its_late_grant_is_released() {
    let (server, clock) = (SessionServer::batching(), VirtualClock::new());
    let limit = options().get_request_timeout();
    let locks = server.locks(&clock);
    server.delay_attempts(3 * limit);
    let error = locks.mutex("a").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(!server.is_free(), "the server granted it");
    server.delay_attempts(MS);
    until(|| async { server.is_free() }).await;
    let guard = locks.mutex("a").acquire().timeout(10 * SECOND).await.unwrap();
    guard.release().await.unwrap();
    assert!(server.is_free());
}

#[tokio::test(start_paused = true)]
async fn a_panic_fails_the_claims_of_its_batch_and_no_others() {
    let (server, clock) = (SessionServer::batching(), VirtualClock::new());
    let locks = server.locks(&clock);
    let kept = locks.mutex("kept").acquire().await.unwrap();
    server.panic_next(Call::Acquire, When::Before, 1);
    let error = locks.mutex("a").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
    assert!(!kept.is_lost());
    locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
    kept.release().await.unwrap();
    assert!(server.is_free());
}

#[tokio::test(start_paused = true)]
async fn shutdown_releases_what_was_granted_in_a_batch() {
    let (server, clock) = (SessionServer::batching(), VirtualClock::new());
    let locks = server.locks(&clock);
    let guards = join_all((0..20).map(|n| locks.mutex(format!("m/{n}")).acquire().into_future())).await;
    let asking = tokio::spawn(locks.mutex("late").acquire().into_future());
    tokio::task::yield_now().await;
    locks.shutdown().await.unwrap();
    let _ = asking.await.unwrap();
    until(|| async { server.is_free() }).await;
    assert!(guards.iter().all(|guard| guard.as_ref().unwrap().is_lost()));
}
