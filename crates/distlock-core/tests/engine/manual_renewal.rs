//! `Guard::renew`: what the store's answer, its silence and a dropped call mean.

use distlock_core::faults::{Fault, Verb};
use distlock_core::store::LossReason;
use distlock_core::{ErrorKind, Kind};

use crate::common::{MS, SECOND, World, begin, options};

#[tokio::test(start_paused = true)]
async fn a_lease_without_automatic_renewal_is_held_as_long_as_it_is_renewed() {
    let world = World::new();
    let (ours, theirs) = (world.process_with(options().auto_extend(false)).0, world.locks());
    let guard = ours.mutex("a").acquire().await.unwrap();
    for _ in 0..10 {
        tokio::time::sleep(2 * SECOND).await;
        guard.renew().await.unwrap();
        assert!(guard.time_left().unwrap() > 2900 * MS - 40 * MS, "{:?}", guard.time_left());
        assert!(theirs.mutex("a").try_acquire().await.unwrap().is_none());
    }
    let lost = guard.lost();
    tokio::time::sleep(4 * SECOND).await;
    assert_eq!(lost.await, LossReason::Expired { last_error: None });
    let error = guard.renew().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(error.to_string().contains("mutex \"a\"") && error.store() == Some("memory"), "{error}");
    assert!(theirs.mutex("a").try_acquire().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn the_loss_of_a_renewed_lease_is_told_at_the_new_deadline_without_a_look() {
    let world = World::new();
    let (ours, clock, _) = world.process_with(options().auto_extend(false));
    let guard = ours.mutex("a").acquire().await.unwrap();
    tokio::time::sleep(2 * SECOND).await;
    guard.renew().await.unwrap();
    let token = guard.cancellation_token();
    let renewed = distlock_core::Clock::now(&clock);
    token.cancelled().await;
    let passed = distlock_core::Clock::now(&clock).since(renewed);
    assert!(passed > 2900 * MS && passed < 4 * SECOND, "{passed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_the_store_refuses_loses_the_guard() {
    let world = World::new();
    let (ours, theirs) = (world.locks(), world.locks());
    let guard = ours.mutex("a").acquire().await.unwrap();
    theirs.break_lock(Kind::Mutex, "a").await.unwrap();
    assert_eq!(guard.renew().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.loss(), Some(LossReason::NotYours));
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_fails_is_an_error_and_loses_nothing() {
    let world = World::new();
    let (ours, _, faults) = world.process_with(options().auto_extend(false));
    let guard = ours.semaphore("s", 2).acquire().await.unwrap();
    faults.set_down(true);
    let error = guard.renew().await.unwrap_err();
    assert_eq!((error.kind(), error.action()), (ErrorKind::Unavailable, Some("renew")));
    assert!(error.resource().is_some_and(|resource| resource.name() == "s"), "{error}");
    assert!(!guard.is_lost());
    faults.set_down(false);
    guard.renew().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_renewal_without_an_answer_ends_at_the_request_time_out_and_its_late_answer_counts() {
    let world = World::new();
    let (ours, _, faults) = world.process_with(options().auto_extend(false));
    let guard = ours.mutex("a").acquire().await.unwrap();
    tokio::time::sleep(SECOND).await;
    faults.next(Verb::Renew, 1, Fault::none().delay_after(1200 * MS));
    let error = guard.renew().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.is_outcome_unknown(), "{error}");
    let before = guard.time_left().unwrap();
    tokio::time::sleep(SECOND).await;
    // It counts from the moment when it was sent.
    assert!(
        guard.time_left().unwrap() + SECOND > before + 800 * MS,
        "{before:?} then {:?}",
        guard.time_left()
    );
}

#[tokio::test(start_paused = true)]
async fn a_dropped_renewal_goes_on_and_its_answer_counts() {
    let world = World::new();
    let (ours, _, faults) = world.process_with(options().auto_extend(false));
    let guard = ours.mutex("a").acquire().await.unwrap();
    tokio::time::sleep(SECOND).await;
    faults.next(Verb::Renew, 1, Fault::none().delay_before(50 * MS));
    let mut renewing = Box::pin(guard.renew());
    assert!(!begin(&mut renewing).await);
    drop(renewing);
    tokio::time::sleep(200 * MS).await;
    assert!(guard.time_left().unwrap() > 2500 * MS, "{:?}", guard.time_left());
    assert!(world.records("a").await[0].holders[0].expires_in.unwrap() > 2500 * MS);
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_not_renewed_past_its_longest_time() {
    let world = World::new();
    let (ours, ..) = world.process_with(options().auto_extend(false).max_hold(2 * SECOND).unwrap());
    let guard = ours.mutex("a").acquire().await.unwrap();
    guard.renew().await.unwrap();
    tokio::time::sleep(2500 * MS).await;
    assert!(!guard.is_lost());
    assert_eq!(guard.renew().await.unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_beside_automatic_ones_never_moves_the_deadline_back() {
    let world = World::new();
    let (ours, _, faults) = world.process();
    let guard = ours.mutex("a").fair().acquire().await.unwrap();
    faults.next(Verb::Renew, 1, Fault::none().delay_after(900 * MS));
    for _ in 0..200 {
        let before = guard.time_left().unwrap();
        let _ = guard.renew().await;
        assert!(guard.time_left().unwrap() + 500 * MS >= before);
        tokio::time::sleep(100 * MS).await;
        assert!(!guard.is_lost());
    }
    guard.release().await.unwrap();
    world.until_clean("a").await;
}

#[tokio::test(start_paused = true)]
async fn the_queue_of_a_fair_mutex_is_renewed_with_it() {
    let world = World::new();
    let (ours, theirs) = (world.process_with(options().auto_extend(false)).0, world.locks());
    let guard = ours.mutex("a").fair().acquire().await.unwrap();
    for _ in 0..4 {
        tokio::time::sleep(2 * SECOND).await;
        guard.renew().await.unwrap();
    }
    let queue = world.records("a").await.into_iter().find(|record| record.kind == Kind::FairQueue).unwrap();
    assert_eq!(queue.holders.len(), 1);
    assert!(theirs.mutex("a").fair().try_acquire().await.unwrap().is_none());
}
