//! A guard is lost before another client can hold the lock, and reports the loss at once.

use crate::common::{MS, SECOND, World, options, until};
use distlock_core::faults::{Fault, Verb};
use distlock_core::{ErrorKind, Kind, LossReason, ReleaseError};

#[tokio::test(start_paused = true)]
async fn a_lock_is_held_far_beyond_its_expiry_while_it_is_renewed() {
    let world = World::new();
    let (ours, theirs) = (world.locks(), world.locks());
    let guard = ours.mutex("a").acquire().await.unwrap();
    for _ in 0..100 {
        tokio::time::sleep(SECOND).await;
        assert!(!guard.is_lost());
        assert!(theirs.mutex("a").try_acquire().await.unwrap().is_none());
    }
    guard.release().await.unwrap();
    assert!(theirs.mutex("a").try_acquire().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn the_first_check_after_a_suspend_reports_the_loss() {
    let world = World::new();
    let (locks, clock, _faults) = world.process();
    let guard = locks.mutex("a").acquire().await.unwrap();
    // No timer runs and no task is polled between the jump and the check.
    clock.jump(4 * SECOND);
    assert!(guard.is_lost());
    assert_eq!(guard.time_left(), Some(std::time::Duration::ZERO));
    assert!(matches!(guard.loss(), Some(LossReason::Expired { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_guard_is_lost_locally_before_the_store_grants_the_lock_to_another_client() {
    let world = World::new();
    let (ours, _clock, faults) = world.process();
    let theirs = world.locks();
    let guard = ours.mutex("a").acquire().await.unwrap();
    faults.set_down(true);
    let waiter = tokio::spawn(async move { theirs.mutex("a").acquire().await.unwrap() });
    let reason = guard.lost().await;
    assert!(!waiter.is_finished(), "another client held it before the guard was lost");
    assert!(matches!(&reason, LossReason::Expired { last_error: Some(_) }), "{reason:?}");
    let second = waiter.await.unwrap();
    assert!(guard.is_lost() && second.token() > guard.token());
}

#[tokio::test(start_paused = true)]
async fn one_failed_renewal_loses_nothing_and_frees_nothing() {
    let world = World::new();
    let (ours, _clock, faults) = world.process();
    let theirs = world.locks();
    let guard = ours.mutex("a").acquire().await.unwrap();
    faults.next(Verb::Renew, 1, Fault::fail());
    faults.next(Verb::Renew, 1, Fault::lost_reply());
    faults.next(Verb::Renew, 1, Fault::hang_before());
    for _ in 0..20 {
        tokio::time::sleep(SECOND).await;
        assert!(!guard.is_lost());
        assert!(theirs.mutex("a").try_acquire().await.unwrap().is_none());
    }
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lost_guard_never_becomes_held_again() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    let guard = locks.mutex("a").acquire().await.unwrap();
    // The store renews, but its answers arrive after the deadline.
    faults.always(Verb::Renew, Fault::none().delay_after(10 * SECOND));
    guard.lost().await;
    faults.heal();
    for _ in 0..30 {
        tokio::time::sleep(SECOND).await;
        assert!(guard.is_lost());
    }
    // It was renewed in the store. Dropping the guard frees it at once.
    drop(guard);
    world.until_clean("a").await;
}

#[tokio::test(start_paused = true)]
async fn a_broken_lock_is_noticed_at_the_next_renewal_and_the_next_token_is_higher() {
    let world = World::new();
    let (ours, theirs) = (world.locks(), world.locks());
    let guard = ours.mutex("a").acquire().await.unwrap();
    let broken = theirs.break_lock(Kind::Mutex, "a").await.unwrap();
    assert_eq!(broken.len(), 1);
    let next = theirs.mutex("a").acquire().await.unwrap();
    assert!(next.token() > guard.token());
    assert_eq!(guard.lost().await, LossReason::NotYours);
    // The end of the old guard does not affect the new holder.
    assert!(matches!(guard.release().await, Err(ReleaseError::Lost { reason: LossReason::NotYours, .. })));
    tokio::time::sleep(10 * SECOND).await;
    assert!(!next.is_lost());
}

#[tokio::test(start_paused = true)]
async fn work_is_cancelled_when_the_lock_is_lost_and_not_before() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    let guard = locks.mutex("a").acquire().await.unwrap();
    assert_eq!(guard.run(async { 7 }).await.unwrap(), 7);
    let signal = guard.cancellation_token();
    faults.set_down(true);
    let error = guard.run(std::future::pending::<()>()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    signal.cancelled().await;
    // Work that is already complete is refused too once the lock is lost.
    assert!(guard.run(async { 7 }).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn without_automatic_renewal_a_lease_ends_at_its_expiry() {
    let world = World::new();
    let locks = world.locks();
    let guard = locks.mutex("a").options(options().auto_extend(false)).acquire().await.unwrap();
    tokio::time::sleep(2 * SECOND).await;
    assert!(!guard.is_lost());
    assert!(matches!(guard.lost().await, LossReason::Expired { last_error: None }));
    assert!(guard.is_lost());
    assert_eq!(world.store.stats().renew.requests, 0);
}

#[tokio::test(start_paused = true)]
async fn a_server_clock_that_jumps_forward_loses_the_lock_and_is_reported() {
    let world = World::new();
    let (ours, theirs) = (world.locks(), world.locks());
    let guard = ours.mutex("a").acquire().await.unwrap();
    world.server_clock.jump(60 * SECOND);
    let next = theirs.mutex("a").acquire().await.unwrap();
    assert!(next.token() > guard.token());
    assert_eq!(guard.lost().await, LossReason::NotYours);
    // The clock jumps back, and tokens still rise.
    next.release().await.unwrap();
    world.server_clock.jump_back(120 * SECOND);
    let third = theirs.mutex("a").acquire().await.unwrap();
    assert!(third.token().get() > 0 && !third.is_lost());
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_takes_longer_than_the_lease_is_not_a_grant() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    let slow = options().expiry(200 * MS).unwrap().request_timeout(5 * SECOND).unwrap();
    faults.always(Verb::Acquire, Fault::none().delay_after(SECOND));
    let error = locks.mutex("a").options(slow.clone()).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    faults.heal();
    until(|| async { world.records("a").await.iter().all(|record| record.holders.is_empty()) }).await;
    assert!(locks.mutex("a").options(slow).try_acquire().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_locks_are_renewed_by_a_few_requests() {
    let world = World::new();
    let locks = world.locks();
    let mut guards = Vec::new();
    for n in 0..10_000 {
        guards.push(locks.mutex(format!("m{n}")).acquire().await.unwrap());
        if n % 1_000 == 0 {
            tokio::time::sleep(20 * MS).await;
        }
    }
    let before = world.store.stats().renew;
    tokio::time::sleep(10 * SECOND).await;
    let after = world.store.stats().renew;
    assert!(guards.iter().all(|guard| !guard.is_lost()));
    let (requests, items) = (after.requests - before.requests, after.items - before.items);
    assert!(items >= 90_000, "{items} renewals in ten seconds at a cadence of one");
    assert!(requests <= items / 300, "{requests} requests for {items} renewals");
}
