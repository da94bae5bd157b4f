//! The place in a fair mutex's queue is released with the mutex, however the mutex ends.

use crate::common::{SECOND, World, options, until};
use distlock_core::{Kind, ReleaseError};

#[tokio::test(start_paused = true)]
async fn a_fair_mutex_is_free_for_fair_users_when_its_release_returns() {
    let world = World::new();
    let (ours, theirs) = (world.locks(), world.locks());
    for _ in 0..10 {
        let guard = ours.mutex("a").fair().acquire().await.unwrap();
        guard.release().await.unwrap();
        let next = theirs.mutex("a").fair().try_acquire().await.unwrap();
        next.expect("the queue place was still held").release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_guard_that_is_not_dropped_keeps_no_fair_waiter_waiting() {
    let world = World::new();
    let (ours, theirs) = (world.locks(), world.locks());
    let lost = ours.mutex("a").fair().acquire().await.unwrap();
    ours.break_lock(Kind::Mutex, "a").await.unwrap();
    lost.lost().await;
    let next = theirs.mutex("a").fair().acquire().timeout(10 * SECOND).await.unwrap();
    assert!(matches!(lost.release().await, Err(ReleaseError::Lost { .. })));
    assert!(!next.is_lost() && ours.mutex("a").fair().try_acquire().await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_broken_fair_mutex_is_free_for_fair_waiters_before_its_holder_knows() {
    let world = World::new();
    let (ours, theirs) = (world.locks(), world.locks());
    let broken = ours.mutex("a").fair().acquire().await.unwrap();
    let waiter = tokio::spawn(async move { theirs.mutex("a").fair().acquire().await.unwrap() });
    until(|| async { world.records("a").await.iter().any(|record| !record.waiters.is_empty()) }).await;
    let begun = tokio::time::Instant::now();
    ours.break_lock(Kind::Mutex, "a").await.unwrap();
    let next = waiter.await.unwrap();
    assert!(begun.elapsed() < SECOND / 2, "{:?}", begun.elapsed());
    assert!(next.token() > broken.token());
}

#[tokio::test(start_paused = true)]
async fn a_release_cancelled_between_the_mutex_and_its_queue_place_frees_both() {
    let world = World::new();
    let (ours, theirs) = (world.locks(), world.locks());
    for polls in 0..6 {
        let guard = ours.mutex("a").fair().acquire().await.unwrap();
        let mut release = Box::pin(guard.release());
        for _ in 0..polls {
            if futures_util::FutureExt::now_or_never(&mut release).is_some() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(release);
        world.until_clean("a").await;
        let next = theirs.mutex("a").fair().acquire().timeout(SECOND).await.unwrap();
        next.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_queue_place_ignores_the_minimum_hold_time() {
    let world = World::new();
    let (ours, theirs) = (world.locks(), world.locks());
    let ours = ours.with_options(options().hold_at_least(3600 * SECOND).unwrap());
    // Held without a queue place, so that a fair waiter gets the place and not the mutex.
    let held = theirs.mutex("a").acquire().await.unwrap();
    assert!(ours.mutex("a").fair().try_acquire().timeout(SECOND).await.unwrap().is_none());
    held.release().await.unwrap();
    let next = theirs.mutex("a").fair().acquire().timeout(SECOND).await.unwrap();
    next.release().await.unwrap();
    // The same for a lost guard.
    let lost = ours.mutex("a").fair().acquire().await.unwrap();
    theirs.break_lock(Kind::Mutex, "a").await.unwrap();
    lost.lost().await;
    let next = theirs.mutex("a").fair().acquire().timeout(SECOND).await.unwrap();
    drop((lost, next));
}
