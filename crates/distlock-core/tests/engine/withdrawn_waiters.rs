//! A waiter that was cancelled during an outage: its queue entry is removed as soon as the store is back, even if the entry
//! lives longer than the lease would.

use std::future::IntoFuture;

use crate::common::{MS, SECOND, World, options, until};
use crate::recording_store::Recorder;
use distlock_core::faults::{Fault, Verb};
use distlock_core::{Locks, Options};
use tokio::time::Instant;

/// A short lease, and a waiter that asks rarely, so that its entry lives long.
fn rare() -> Options {
    let options = options().expiry(200 * MS).unwrap();
    options.busy_wait_sleep(10 * SECOND, 20 * SECOND).unwrap()
}

async fn waits(world: &World) -> bool {
    world.records("a").await.iter().any(|record| !record.waiters.is_empty())
}

/// Readers acquire within this time after the outage: a withdrawal is retried every second.
async fn readers_acquire(world: &World, back: Instant) {
    let reader = world.locks().rw_lock("a").read().await.unwrap();
    assert!(back.elapsed() <= 1_100 * MS, "blocked for {:?} after the outage", back.elapsed());
    drop(reader);
}

async fn held_by_a_reader(world: &World) -> (Locks, distlock_core::Guard) {
    let theirs = world.locks();
    let reader = theirs.rw_lock("a").read().await.unwrap();
    (theirs, reader)
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_writer_does_not_block_readers_after_an_outage() {
    let world = World::new();
    let (_theirs, _reader) = held_by_a_reader(&world).await;
    let (ours, _clock, faults) = world.process();
    let writer = tokio::spawn(ours.rw_lock("a").options(rare()).write().into_future());
    until(|| waits(&world)).await;
    faults.set_down(true);
    writer.abort();
    tokio::time::sleep(5 * SECOND).await;
    assert!(waits(&world).await, "its entry lives longer than its lease would");
    faults.heal();
    readers_acquire(&world, Instant::now()).await;
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_arrives_after_its_writer_was_cancelled_is_withdrawn() {
    let world = World::new();
    let (_theirs, _reader) = held_by_a_reader(&world).await;
    let (ours, _clock, faults) = world.process();
    faults.next(Verb::Acquire, 1, Fault::none().delay_before(400 * MS));
    faults.always(Verb::Release, Fault::fail());
    let writer = tokio::spawn(ours.rw_lock("a").options(rare()).write().into_future());
    tokio::time::sleep(100 * MS).await;
    writer.abort();
    tokio::time::sleep(5 * SECOND).await;
    assert!(waits(&world).await);
    faults.heal();
    readers_acquire(&world, Instant::now()).await;
}

#[tokio::test(start_paused = true)]
async fn a_timed_out_attempt_leaves_no_second_entry_for_its_writer() {
    let world = World::new();
    let (_theirs, _reader) = held_by_a_reader(&world).await;
    let (ours, _clock, faults) = world.process();
    faults.next(Verb::Acquire, 1, Fault::hang_after());
    faults.always(Verb::Release, Fault::fail());
    let writer = tokio::spawn(ours.rw_lock("a").options(rare()).write().into_future());
    let entries = async || world.records("a").await.iter().map(|record| record.waiters.len()).sum::<usize>();
    until(async || entries().await == 2).await;
    tokio::time::sleep(5 * SECOND).await;
    faults.heal();
    let back = Instant::now();
    until(async || entries().await == 1).await;
    assert!(back.elapsed() <= 1_100 * MS, "{:?}", back.elapsed());
    writer.abort();
}

/// The store's future is not dropped before it completes: it may still create a queue entry.
#[tokio::test(start_paused = true)]
async fn an_unanswered_attempt_is_driven_to_completion_and_withdrawn() {
    let world = World::new();
    let (_theirs, _reader) = held_by_a_reader(&world).await;
    let (ours, _clock, faults) = world.process();
    faults.next(Verb::Acquire, 1, Fault::none().delay_before(10 * SECOND));
    let before = world.store.stats().acquire.items;
    let writer = tokio::spawn(ours.rw_lock("a").options(rare()).write().into_future());
    tokio::time::sleep(100 * MS).await;
    writer.abort();
    tokio::time::sleep(11 * SECOND).await;
    assert_eq!(world.store.stats().acquire.items, before + 1, "it arrived");
    assert!(!waits(&world).await);
}

/// A dead waiter cannot withdraw. The time for which its entry blocks others is bounded, whatever its options.
#[tokio::test(start_paused = true)]
async fn a_waiters_entry_lives_a_little_longer_than_its_longest_sleep() {
    let world = World::new();
    let _theirs = held_by_a_reader(&world).await;
    for push in [true, false] {
        for (longest, ttl) in [(800 * MS, 3 * SECOND), (20 * SECOND, 22 * SECOND), (60 * SECOND, 62 * SECOND)]
        {
            let mut recorder = Recorder::new(&world.store);
            recorder.push = push;
            let options = options().busy_wait_sleep(10 * MS, longest).unwrap();
            let (locks, _clock, _faults) = recorder.locks(options);
            let writer = locks.rw_lock("a").write().timeout(100 * MS).await;
            assert!(writer.is_err());
            assert_eq!(recorder.last().waiting.unwrap().ttl, ttl, "for {longest:?}");
        }
    }
}
