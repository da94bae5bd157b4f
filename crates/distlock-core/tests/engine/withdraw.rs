//! A waiter that left while the store could not be told: its entry in the wait queue goes as soon as the store is back,
//! also where the entry outlives the lease that it asked for.

use std::future::IntoFuture;

use crate::common::{MS, SECOND, World, options, until};
use crate::recording_store::Recorder;
use distlock_core::faults::{Fault, Verb};
use distlock_core::{Locks, Options};
use tokio::time::Instant;

/// A short lease and a waiter that asks rarely, whose entry therefore lives long.
fn rare() -> Options {
    let options = options().expiry(200 * MS).unwrap();
    options.busy_wait_sleep(10 * SECOND, 20 * SECOND).unwrap()
}

async fn waits(world: &World) -> bool {
    world.records("a").await.iter().any(|record| !record.waiters.is_empty())
}

/// Readers get in within this long of the store's return: a withdrawal is tried again every second.
async fn readers_get_in(world: &World, back: Instant) {
    let reader = world.locks().rw_lock("a").read().await.unwrap();
    assert!(back.elapsed() <= 1_100 * MS, "kept out for {:?} after the store was back", back.elapsed());
    drop(reader);
}

async fn held_by_a_reader(world: &World) -> (Locks, distlock_core::Guard) {
    let theirs = world.locks();
    let reader = theirs.rw_lock("a").read().await.unwrap();
    (theirs, reader)
}

#[tokio::test(start_paused = true)]
async fn a_departed_writer_does_not_keep_readers_out_once_the_store_is_back() {
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
    readers_get_in(&world, Instant::now()).await;
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_arrives_after_its_writer_departed_is_withdrawn_however_long_that_takes() {
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
    readers_get_in(&world, Instant::now()).await;
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_was_given_up_leaves_no_second_entry_for_its_writer() {
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

/// The store's future is not dropped half-way: what it may yet bring about lives for as long as the entry of a waiter.
#[tokio::test(start_paused = true)]
async fn an_attempt_that_is_stuck_is_seen_to_its_end_and_withdrawn() {
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

/// A waiter that died cannot withdraw. How long it keeps others out is bounded, whatever it asked for.
#[tokio::test(start_paused = true)]
async fn the_entry_of_a_waiter_lives_a_little_longer_than_it_sleeps() {
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
