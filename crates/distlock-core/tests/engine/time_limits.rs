//! A time limit holds whatever the store does, and an attempt right after a drop does not find its own process's leftovers.

use std::time::Duration;

use crate::common::{MS, SECOND, World, options};
use distlock_core::faults::{Fault, Verb};
use distlock_core::{ErrorKind, Locks};
use tokio::time::Instant;

/// How long after its limit an acquisition may end.
fn slack(limit: Duration) -> Duration {
    (limit / 2).clamp(100 * MS, 250 * MS)
}

async fn takes<T>(call: impl Future<Output = distlock_core::Result<T>>) -> (Duration, ErrorKind) {
    let begun = Instant::now();
    let error = call.await.err().expect("the store does not answer");
    assert!(error.store().is_some() && error.resource().is_some() && error.can_retry(), "{error}");
    (begun.elapsed(), error.kind())
}

#[tokio::test(start_paused = true)]
async fn a_store_that_never_answers_does_not_stretch_the_time_limit() {
    for fault in [Fault::hang_before(), Fault::hang_after()] {
        for limit in [MS, 50 * MS, 300 * MS, 3 * SECOND] {
            let world = World::new();
            let (locks, _clock, faults) = world.process();
            faults.always_all(fault);
            for (took, kind) in [
                takes(async { locks.mutex("a").acquire().timeout(limit).await }).await,
                takes(async { locks.mutex("a").try_acquire().timeout(limit).await }).await,
                takes(async { locks.mutex("a").fair().acquire().timeout(limit).await }).await,
                takes(async { locks.rw_lock("a").write().timeout(limit).await }).await,
                takes(async { locks.semaphore("a", 2).acquire().timeout(limit).await }).await,
                takes(async { locks.acquire_all(["a", "b"]).timeout(limit).await }).await,
            ] {
                assert_eq!(kind, ErrorKind::Unavailable);
                assert!(took >= limit.min(SECOND) && took <= limit + slack(limit), "{took:?} for {limit:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_single_attempt_on_a_store_that_never_answers_ends_within_a_request() {
    let world = World::new();
    let (locks, _clock, faults) = world.process_with(options().request_timeout(3 * SECOND).unwrap());
    faults.always_all(Fault::hang_before());
    let (took, kind) = takes(async { locks.mutex("a").try_acquire().await }).await;
    assert_eq!((kind, took <= 3 * SECOND), (ErrorKind::Unavailable, true), "{took:?}");
    let (took, kind) = takes(async { locks.mutex("a").acquire().timeout(Duration::ZERO).await }).await;
    assert_eq!((kind, took <= SECOND), (ErrorKind::Unavailable, true), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn what_a_cut_off_acquisition_left_in_the_store_is_released_in_the_background() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    faults.next(Verb::Acquire, 1, Fault::none().delay_after(400 * MS));
    let (took, _) = takes(async { locks.mutex("a").acquire().timeout(50 * MS).await }).await;
    assert!(took <= 150 * MS, "{took:?}");
    tokio::time::sleep(SECOND).await;
    assert!(world.locks().mutex("a").try_acquire().await.unwrap().is_some(), "nothing is left held");
}

/// Delays every release, so that an attempt that does not wait for it finds the lock held.
async fn after_a_drop(locks: &Locks, faults: &distlock_core::faults::Faults) {
    faults.always(Verb::Release, Fault::none().delay_before(30 * MS));
    for _ in 0..5 {
        drop(locks.mutex("a").acquire().await.unwrap());
        assert!(locks.mutex("a").try_acquire().await.unwrap().is_some(), "mutex");
        drop(locks.mutex("f").fair().acquire().await.unwrap());
        assert!(locks.mutex("f").fair().try_acquire().await.unwrap().is_some(), "fair mutex");
        drop(locks.rw_lock("a").write().await.unwrap());
        assert!(locks.rw_lock("a").try_read().await.unwrap().is_some(), "writer");
        drop(locks.semaphore("a", 1).acquire().await.unwrap());
        assert!(locks.semaphore("a", 1).try_acquire().await.unwrap().is_some(), "permit");
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_right_after_a_drop_waits_for_the_release_in_flight() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    after_a_drop(&locks, &faults).await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_acquire_all_leaves_nothing_that_blocks_the_next_attempt_of_the_caller() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    let theirs = world.locks().mutex("c").acquire().await.unwrap();
    faults.always(Verb::Release, Fault::none().delay_before(30 * MS));
    for _ in 0..5 {
        let error = locks.acquire_all(["a", "b", "c"]).timeout(10 * MS).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        for name in ["a", "b"] {
            assert!(locks.mutex(name).try_acquire().await.unwrap().is_some(), "{name}");
        }
    }
    drop(theirs);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_after_a_waiter_gave_up_does_not_find_its_queue_entry() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    let theirs = world.locks().semaphore("a", 2).acquire_many(2).await.unwrap();
    faults.always(Verb::Release, Fault::none().delay_before(30 * MS));
    let waited = locks.semaphore("a", 2).acquire_many(2).timeout(50 * MS).await;
    assert_eq!(waited.unwrap_err().kind(), ErrorKind::Timeout);
    theirs.release().await.unwrap();
    assert!(locks.semaphore("a", 2).try_acquire().await.unwrap().is_some(), "its own entry is in front");
}

#[tokio::test(start_paused = true)]
async fn a_release_that_never_ends_does_not_look_like_contention_to_an_attempt() {
    let world = World::new();
    let (locks, _clock, faults) = world.process_with(options().request_timeout(2 * SECOND).unwrap());
    let guard = locks.mutex("a").acquire().await.unwrap();
    faults.always_all(Fault::hang_before());
    drop(guard);
    let (took, kind) = takes(async { locks.mutex("a").try_acquire().await }).await;
    assert_eq!((kind, took <= 2 * SECOND), (ErrorKind::Unavailable, true), "{took:?}");
}

/// Attempts on one name, each dropped at once: there is always a release in flight, and still each ends.
#[tokio::test(start_paused = true)]
async fn attempts_do_not_wait_for_releases_that_began_after_them() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    faults.always(Verb::Release, Fault::none().delay_before(10 * MS));
    let tasks: Vec<_> = (0..16)
        .map(|number| {
            let locks = locks.clone();
            tokio::spawn(async move {
                for _ in 0..20 {
                    drop(locks.semaphore("a", 16).try_acquire().await.unwrap());
                    tokio::time::sleep(number * MS / 3).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}
