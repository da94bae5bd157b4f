//! The shortest and the longest time for which a lock is held.

use std::time::Duration;

use crate::common::sessions::SessionServer;
use crate::common::{MS, SECOND, World, options};
use distlock_core::faults::{Fault, Verb};
use distlock_core::{Guard, Locks, LossReason, Options, VirtualClock};
use tokio::time::Instant;

const LEAST: Duration = Duration::from_secs(10);

fn at_least() -> Options {
    options().hold_at_least(LEAST).unwrap()
}

/// When another process gets the lock, counted from `begun`.
async fn free_after(world: &World, begun: Instant) -> Duration {
    drop(world.locks().mutex("a").acquire().await.unwrap());
    begun.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_does_not_end_the_minimum_hold_time() {
    for dropped_before in [true, false] {
        let world = World::new();
        let ours = world.locks();
        let begun = Instant::now();
        let guard = ours.mutex("a").options(at_least()).acquire().await.unwrap();
        let mut kept = Some(guard);
        if dropped_before {
            kept = None;
        }
        tokio::time::sleep(SECOND).await;
        ours.shutdown().await.unwrap();
        assert!(begun.elapsed() < 2 * SECOND, "shutdown does not wait for it: {:?}", begun.elapsed());
        assert!(kept.is_none_or(|guard| guard.loss() == Some(LossReason::ShutDown)));
        let free = free_after(&world, begun).await;
        assert!(free >= LEAST && free < LEAST + SECOND, "{free:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_dies_does_not_end_the_minimum_hold_time() {
    let world = World::new();
    let (ours, _clock, faults) = world.process();
    let begun = Instant::now();
    let _guard = ours.mutex("a").options(at_least()).acquire().await.unwrap();
    faults.set_down(true);
    let free = free_after(&world, begun).await;
    assert!(free >= LEAST && free < LEAST + SECOND, "the expiry alone is 3 s: {free:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_was_handed_over_is_also_held_for_the_minimum_time() {
    let world = World::new();
    let (ours, theirs) = (world.locks(), world.locks());
    // A writer is granted by the release, with a short window that a renewal must prolong.
    let first = theirs.rw_lock("a").write().await.unwrap();
    let waiter = tokio::spawn({
        let lock = ours.with_options(at_least()).rw_lock("a");
        async move { lock.write().await.unwrap() }
    });
    tokio::time::sleep(SECOND).await;
    first.release().await.unwrap();
    let guard = waiter.await.unwrap();
    let begun = Instant::now();
    drop(guard);
    ours.shutdown().await.unwrap();
    drop(world.locks().rw_lock("a").write().await.unwrap());
    assert!(begun.elapsed() >= LEAST - 10 * MS, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_release_after_the_minimum_time_frees_the_lock_at_once_although_its_first_lease_was_longer() {
    let world = World::new();
    let ours = world.locks();
    let begun = Instant::now();
    let guard = ours.mutex("a").options(at_least()).acquire().await.unwrap();
    tokio::time::sleep(LEAST + SECOND).await;
    guard.release().await.unwrap();
    let free = free_after(&world, begun).await;
    assert!(free < LEAST + 2 * SECOND, "{free:?}");
}

async fn lost_by_max_hold(locks: &Locks, longest: Duration) -> (Guard, Duration) {
    let begun = Instant::now();
    let guard = locks.mutex("a").options(options().max_hold(longest).unwrap()).acquire().await.unwrap();
    assert_eq!(guard.lost().await, LossReason::MaxHold);
    (guard, begun.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_not_renewed_after_the_longest_hold_and_then_lost_as_usual() {
    let world = World::new();
    let ours = world.locks();
    let (guard, took) = lost_by_max_hold(&ours, 20 * SECOND).await;
    assert!(took >= 20 * SECOND && took <= 23 * SECOND, "{took:?}");
    // The lost guard lives, and another process gets the lock at the expiry.
    let begun = Instant::now();
    let theirs = world.locks().mutex("a").acquire().await.unwrap();
    assert!(begun.elapsed() <= SECOND && theirs.token() > guard.token(), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_failing_renewal_before_the_longest_hold_does_not_lose_the_lock_earlier() {
    let world = World::new();
    let (ours, _clock, faults) = world.process();
    faults.next(Verb::Renew, 2, Fault::fail());
    let (_guard, took) = lost_by_max_hold(&ours, 20 * SECOND).await;
    assert!(took >= 20 * SECOND, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lock_of_a_session_is_lost_and_released_after_the_longest_hold() {
    let server = SessionServer::default();
    let clock = VirtualClock::new();
    let (ours, theirs) = (server.locks(&clock), server.locks(&clock));
    let (guard, took) = lost_by_max_hold(&ours, 20 * SECOND).await;
    assert!(took >= 20 * SECOND && took < 21 * SECOND, "{took:?}");
    let begun = Instant::now();
    let next = theirs.mutex("a").acquire().await.unwrap();
    assert!(begun.elapsed() < SECOND && next.token() > guard.token(), "{:?}", begun.elapsed());
}
