//! Requests that are never answered: each costs its own caller the request time-out, and no other caller anything.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{MS, SECOND, World, begin, options, until};
use distlock_core::faults::{Fault, Faults, FaultyStore, Verb};
use distlock_core::store::Backend;
use distlock_core::{ErrorKind, Locks, ReleaseError, VirtualClock};
use tokio::time::Instant;

/// An engine on the world's store, whose requests take a millisecond and time out after five seconds.
fn engine(world: &World, max_in_flight: usize, max_batch: usize) -> (Locks, Faults) {
    let (store, faults) = FaultyStore::new(Arc::new(world.store.clone()));
    let store = store.max_in_flight(max_in_flight).max_batch(max_batch);
    faults.always(Verb::Acquire, Fault::none().delay_before(MS));
    let locks = Locks::builder(Backend::lease(store))
        .clock(Arc::new(VirtualClock::new()))
        .options(options().request_timeout(5 * SECOND).unwrap().expiry(30 * SECOND).unwrap())
        .build()
        .unwrap();
    (locks, faults)
}

async fn is_held(world: &World, name: &str) -> bool {
    world.records(name).await.iter().any(|record| !record.holders.is_empty())
}

/// Acquires and releases so many different locks one after another. Returns the longest acquire.
async fn cycle(locks: Locks, prefix: String, times: usize) -> Duration {
    let mut longest = Duration::ZERO;
    for n in 0..times {
        let begun = Instant::now();
        let guard = locks.mutex(format!("{prefix}/{n}")).acquire().await.unwrap();
        longest = longest.max(begun.elapsed());
        guard.release().await.unwrap();
    }
    longest
}

/// The same with so many tasks at once, each with locks of its own.
async fn many_tasks(locks: &Locks, tasks: usize, times: usize) -> Duration {
    let tasks: Vec<_> =
        (0..tasks).map(|n| tokio::spawn(cycle(locks.clone(), format!("many/{n}"), times))).collect();
    let mut longest = Duration::ZERO;
    for task in tasks {
        longest = longest.max(task.await.unwrap());
    }
    longest
}

#[tokio::test(start_paused = true)]
async fn a_lone_request_that_hangs_and_is_not_polled_frees_its_slot() {
    for in_flight in [1, 3] {
        let world = World::new();
        let (locks, faults) = engine(&world, in_flight, 100);
        faults.next(Verb::Acquire, in_flight, Fault::hang_before());
        let mut stuck: Vec<_> =
            (0..in_flight).map(|n| locks.mutex(format!("stuck/{n}")).acquire().into_future()).collect();
        for one in &mut stuck {
            assert!(!begin(one).await);
        }
        let begun = Instant::now();
        drop(
            locks
                .mutex("first")
                .acquire()
                .timeout(10 * SECOND)
                .await
                .expect("blocked by an unanswered request"),
        );
        assert!(begun.elapsed() <= 3 * SECOND, "{:?}", begun.elapsed());
        assert!(cycle(locks, "rest".into(), 50).await < 10 * MS);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lone_request_with_a_long_timeout_of_its_own_blocks_others_no_longer_than_theirs() {
    let world = World::new();
    let (locks, faults) = engine(&world, 1, 100);
    let long = options().request_timeout(600 * SECOND).unwrap();
    faults.next(Verb::Acquire, 1, Fault::hang_before());
    let stuck = tokio::spawn(locks.mutex("stuck").options(long).acquire().into_future());
    tokio::task::yield_now().await;
    let begun = Instant::now();
    let mut failed = 0;
    for n in 0..600 {
        let one = locks.mutex(format!("{n}")).acquire().timeout(SECOND).await;
        failed += usize::from(one.is_err());
    }
    assert!(failed <= 5, "{failed} of 600 failed in {:?}", begun.elapsed());
    // That request timed out, and its acquisition continued under a new lock id.
    assert!(!stuck.await.unwrap().unwrap().is_lost());
    assert!(begun.elapsed() < 20 * SECOND, "it waited for its own time-out: {:?}", begun.elapsed());
}

/// The slot is free in time for the requests behind the unanswered one: their first attempt succeeds.
#[tokio::test(start_paused = true)]
async fn requests_behind_an_unanswered_one_are_served_before_they_time_out() {
    let world = World::new();
    let (locks, faults) = engine(&world, 1, 100);
    faults.next(Verb::Acquire, 1, Fault::hang_before());
    let stuck = tokio::spawn(locks.mutex("stuck").acquire().into_future());
    tokio::time::sleep(2 * SECOND).await;
    let requests = world.store.stats().acquire.requests;
    let begun = Instant::now();
    let behind: Vec<_> =
        (0..10).map(|n| tokio::spawn(locks.mutex(format!("{n}")).acquire().into_future())).collect();
    for one in behind {
        drop(one.await.unwrap().unwrap());
    }
    assert!(begun.elapsed() <= 2 * SECOND, "{:?}", begun.elapsed());
    assert!(!stuck.await.unwrap().unwrap().is_lost());
    assert!(world.store.stats().acquire.requests <= requests + 2);
}

/// The request is applied and answered after its time-out: its grant is released.
#[tokio::test(start_paused = true)]
async fn the_late_answer_of_a_timed_out_request_is_undone() {
    for late in [6 * SECOND, 14 * SECOND] {
        let world = World::new();
        let (locks, faults) = engine(&world, 1, 100);
        faults.next(Verb::Acquire, 1, Fault::none().delay_after(late));
        let mut stuck = locks.mutex("stuck").acquire().into_future();
        assert!(!begin(&mut stuck).await);
        let begun = Instant::now();
        let next = locks.mutex("next").acquire().await.unwrap();
        assert!(is_held(&world, "stuck").await && begun.elapsed() <= 3 * SECOND);
        // Its caller gets the error and continues under another lock id, which the late answer does not undo.
        let guard = stuck.await.unwrap();
        assert!(begun.elapsed() <= 6 * SECOND, "{:?}", begun.elapsed());
        tokio::time::sleep(20 * SECOND).await;
        assert!(!guard.is_lost() && !next.is_lost());
        guard.release().await.unwrap();
        world.until_clean("stuck").await;
        locks.shutdown().await.unwrap();
    }
}

/// Some drivers' calls must not be dropped before they complete: a timed-out request still reaches the store.
#[tokio::test(start_paused = true)]
async fn a_timed_out_request_is_driven_to_completion() {
    let world = World::new();
    let (locks, faults) = engine(&world, 1, 100);
    faults.next(Verb::Acquire, 1, Fault::none().delay_before(6 * SECOND));
    // Its caller would wait longer, so the engine's own time-out ends it.
    let long = options().request_timeout(600 * SECOND).unwrap();
    let mut stuck = locks.mutex("stuck").options(long).acquire().into_future();
    assert!(!begin(&mut stuck).await);
    drop(locks.mutex("next").acquire().await.unwrap());
    let guard = stuck.await.unwrap();
    assert_eq!(world.store.stats().acquire.items, 2);
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(world.store.stats().acquire.items, 3);
    assert!(!guard.is_lost());
}

/// Its task did not poll it for longer than the request time-out. The answer needs a few more polls, and counts.
#[tokio::test(start_paused = true)]
async fn a_request_that_was_not_polled_for_long_does_not_time_out_before_it_is_driven() {
    let world = World::new();
    let (locks, faults) = engine(&world, 1, 100);
    faults.next(Verb::Acquire, 1, Fault::none().delay_before(MS).delay_after(MS));
    let mut first = locks.mutex("first").acquire().into_future();
    assert!(!begin(&mut first).await);
    tokio::time::sleep(12 * SECOND).await;
    let begun = Instant::now();
    drop(locks.mutex("second").acquire().await.unwrap());
    assert!(begun.elapsed() < 10 * MS, "{:?}", begun.elapsed());
    assert!(!first.await.unwrap().is_lost());
    assert_eq!(world.store.stats().acquire.items, 2);
}

/// A slow request frees its slot, another one takes it, and then the slow one is answered: the slot stays taken.
#[tokio::test(start_paused = true)]
async fn a_late_answer_does_not_free_the_slot_of_another_request() {
    let world = World::new();
    let (locks, faults) = engine(&world, 1, 100);
    faults.next(Verb::Acquire, 1, Fault::none().delay_before(3 * SECOND));
    faults.next(Verb::Acquire, 1, Fault::none().delay_before(SECOND));
    let begun = Instant::now();
    let slow = tokio::spawn(locks.mutex("slow").acquire().into_future());
    tokio::task::yield_now().await;
    let second = tokio::spawn(locks.mutex("second").acquire().into_future());
    // Half of the request time-out has passed, and the second one is in flight.
    tokio::time::sleep(2600 * MS).await;
    drop(locks.mutex("third").acquire().await.unwrap());
    assert!(begun.elapsed() >= 3500 * MS, "two at once: {:?}", begun.elapsed());
    for one in [slow, second] {
        assert!(!one.await.unwrap().unwrap().is_lost());
    }
    assert!(begun.elapsed() < 4 * SECOND, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_timed_out_request_whose_caller_was_cancelled_leaves_nothing_held() {
    let world = World::new();
    let (locks, faults) = engine(&world, 1, 100);
    faults.next(Verb::Acquire, 1, Fault::none().delay_after(6 * SECOND));
    let mut stuck = locks.mutex("stuck").acquire().into_future();
    assert!(!begin(&mut stuck).await);
    drop(locks.mutex("next").acquire().await.unwrap());
    drop(stuck);
    let begun = Instant::now();
    world.until_clean("stuck").await;
    assert!(begun.elapsed() < 5 * SECOND, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_release_that_hangs_and_is_not_polled_frees_its_slot_and_is_completed() {
    let world = World::new();
    let (locks, faults) = engine(&world, 1, 100);
    let (a, b) = (locks.mutex("a").acquire().await.unwrap(), locks.mutex("b").acquire().await.unwrap());
    faults.next(Verb::Release, 1, Fault::hang_before());
    let mut stuck = Box::pin(a.release());
    assert!(!begin(&mut stuck).await);
    let begun = Instant::now();
    b.release().await.expect("blocked by an unanswered request");
    assert!(begun.elapsed() <= 3 * SECOND, "{:?}", begun.elapsed());
    let error = stuck.await.unwrap_err();
    assert!(matches!(&error, ReleaseError::Unknown { error, .. } if error.kind() == ErrorKind::Unavailable));
    world.until_clean("a").await;
    assert!(begun.elapsed() <= 6 * SECOND, "retried in the background: {:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn one_unanswered_request_does_not_stop_batching() {
    let world = World::new();
    let (locks, faults) = engine(&world, 8, 100);
    faults.next(Verb::Acquire, 1, Fault::hang_before());
    let stuck = tokio::spawn(locks.mutex("stuck").acquire().into_future());
    tokio::task::yield_now().await;
    let longest = many_tasks(&locks, 50, 20).await;
    assert!(longest < 20 * MS, "an acquire took {longest:?}");
    assert!(!stuck.await.unwrap().unwrap().is_lost());
}

/// The batch itself is unanswered, and no later request overtakes it.
#[tokio::test(start_paused = true)]
async fn one_unanswered_batch_does_not_stop_the_next_batch() {
    let world = World::new();
    let (locks, faults) = engine(&world, 2, 100);
    assert!(many_tasks(&locks, 50, 2).await < 20 * MS);
    // From here on one batch at a time is sent.
    faults.next(Verb::Acquire, 1, Fault::hang_before());
    let stuck = tokio::spawn(locks.mutex("stuck").acquire().into_future());
    tokio::time::sleep(MS).await;
    let longest = many_tasks(&locks, 50, 20).await;
    assert!(longest < SECOND, "an acquire took {longest:?}");
    assert!(!stuck.await.unwrap().unwrap().is_lost());
}

#[tokio::test(start_paused = true)]
async fn when_every_slot_is_unanswered_pending_items_fail_and_later_ones_are_served() {
    for in_flight in [1, 4] {
        let world = World::new();
        let (locks, faults) = engine(&world, in_flight, 10);
        faults.always(Verb::Acquire, Fault::hang_before());
        let begun = Instant::now();
        let asked: Vec<_> =
            (0..200).map(|n| tokio::spawn(locks.mutex(format!("{n}")).acquire().into_future())).collect();
        for one in asked {
            let error = one.await.unwrap().unwrap_err();
            assert!(error.kind() == ErrorKind::Unavailable && error.is_outcome_unknown(), "{error}");
        }
        assert!(begun.elapsed() <= 11 * SECOND, "{:?}", begun.elapsed());
        faults.always(Verb::Acquire, Fault::none().delay_before(MS));
        let begun = Instant::now();
        drop(locks.mutex("next").acquire().await.expect("the store is back"));
        assert!(begun.elapsed() <= 3 * SECOND, "{:?}", begun.elapsed());
        assert!(many_tasks(&locks, 20, 10).await < SECOND);
        for n in 0..200 {
            world.until_clean(&format!("{n}")).await;
        }
        locks.shutdown().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn claims_whose_callers_were_cancelled_during_an_outage_are_not_sent_after_it() {
    let world = World::new();
    let (locks, faults) = engine(&world, 1, 10);
    faults.always(Verb::Acquire, Fault::hang_before());
    let asked: Vec<_> =
        (0..4000).map(|n| tokio::spawn(locks.mutex(format!("{n}")).acquire().into_future())).collect();
    tokio::time::sleep(SECOND).await;
    for one in &asked {
        one.abort();
    }
    for one in asked {
        assert!(one.await.unwrap_err().is_cancelled());
    }
    faults.always(Verb::Acquire, Fault::none().delay_before(MS));
    let before = world.store.stats().acquire.items;
    let begun = Instant::now();
    drop(locks.mutex("live").acquire().await.unwrap());
    assert!(begun.elapsed() <= 3 * SECOND, "{:?}", begun.elapsed());
    let sent = world.store.stats().acquire.items - before;
    assert!(sent <= 20, "{sent} claims were sent, one of them awaited");
    until(|| async { !is_held(&world, "0").await }).await;
    locks.shutdown().await.unwrap();
}

/// A cancelled waiter had an entry in the wait queue from an earlier attempt. Its next attempt is never sent, and the
/// entry is removed.
#[tokio::test(start_paused = true)]
async fn a_claim_that_is_cancelled_before_it_is_sent_leaves_no_entry_of_an_earlier_attempt() {
    let world = World::new();
    let (locks, faults) = engine(&world, 1, 10);
    let other = world.locks();
    let _held = other.rw_lock("a").write().await.unwrap();
    let waiter = tokio::spawn(locks.rw_lock("a").write().into_future());
    until(|| async { world.records("a").await.iter().any(|record| !record.waiters.is_empty()) }).await;
    // Its next attempt waits behind an unanswered request.
    faults.next(Verb::Acquire, 1, Fault::hang_before());
    let mut stuck = locks.mutex("stuck").acquire().into_future();
    assert!(!begin(&mut stuck).await);
    tokio::time::sleep(2 * SECOND).await;
    waiter.abort();
    until(|| async { world.records("a").await.iter().all(|record| record.waiters.is_empty()) }).await;
    drop(locks.mutex("next").acquire().await.unwrap());
    tokio::time::sleep(SECOND).await;
    assert!(world.records("a").await.iter().all(|record| record.waiters.is_empty()));
}
