//! Holds that end before their minimum time or at their longest, and attempts while the head of the local queue asks.

use crate::common::{MS, SECOND, World, options};
use distlock_core::faults::{Fault, Verb};
use distlock_core::{Guard, Kind, LossReason, ReleaseError};
use tokio::time::Instant;

/// A guard that was broken by an operator long before its minimum hold time.
async fn broken(world: &World) -> Guard {
    let options = options().hold_at_least(60 * SECOND).unwrap();
    let guard = world.locks().with_options(options).mutex("a").acquire().await.unwrap();
    world.locks().break_lock(Kind::Mutex, "a").await.unwrap();
    assert_eq!(guard.lost().await, LossReason::NotYours);
    guard
}

#[tokio::test(start_paused = true)]
async fn a_lock_lost_before_its_minimum_hold_time_is_not_reported_as_shut_down() {
    let guard = broken(&World::new()).await;
    match guard.release().await.unwrap_err() {
        ReleaseError::Lost { reason, .. } => assert_eq!(reason, LossReason::NotYours),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_lost_before_its_minimum_hold_time_is_released_in_the_store_when_its_guard_is_dropped() {
    let world = World::new();
    let guard = broken(&world).await;
    let before = world.store.stats().release.requests;
    drop(guard);
    tokio::time::sleep(SECOND).await;
    assert_eq!(world.store.stats().release.requests, before + 1, "a late renewal may have been applied");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_reached_its_longest_hold_is_left_to_its_expiry_while_its_guard_lives() {
    let world = World::new();
    let options = options().max_hold(20 * SECOND).unwrap();
    let guard = world.locks().with_options(options).mutex("a").acquire().await.unwrap();
    assert_eq!(guard.lost().await, LossReason::MaxHold);
    tokio::time::sleep(SECOND).await;
    assert_eq!(world.store.stats().release.requests, 0);
}

#[tokio::test(start_paused = true)]
async fn a_single_attempt_uses_the_answer_that_the_head_is_about_to_get() {
    let world = World::new();
    let _theirs = world.locks().mutex("a").acquire().await.unwrap();
    let (ours, _clock, faults) = world.process_with(options().request_timeout(20 * SECOND).unwrap());
    let head = tokio::spawn({
        let lock = ours.mutex("a");
        async move { lock.acquire().await }
    });
    tokio::time::sleep(100 * MS).await;
    // The head asks again after about a second, and its last answer is too old by the time of the attempt.
    faults.always(Verb::Acquire, Fault::none().delay_before(2_300 * MS));
    tokio::time::sleep(2_900 * MS).await;
    let begun = Instant::now();
    assert!(ours.mutex("a").try_acquire().await.unwrap().is_none());
    assert!(begun.elapsed() <= 500 * MS, "a request of its own takes longer: {:?}", begun.elapsed());
    head.abort();
}
