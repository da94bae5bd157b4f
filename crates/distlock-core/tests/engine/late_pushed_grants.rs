//! Wake-ups that arrive late: a pushed grant counts only if it is certainly still valid.

use std::sync::Arc;

use crate::common::{MS, SECOND, World, options, until};
use distlock_core::faults::{Fault, Faults, FaultyStore, Verb, WakeDelay, delay_wakes};
use distlock_core::store::Backend;
use distlock_core::{Locks, Options, VirtualClock};

/// A process whose wake-ups can be delayed and whose requests can fail.
fn process(world: &World, options: Options) -> (Locks, WakeDelay, Faults) {
    let (delayed, delay) = delay_wakes(Arc::new(world.store.clone()));
    let (faulty, faults) = FaultyStore::new(Arc::new(delayed));
    let builder = Locks::builder(Backend::lease(faulty)).clock(Arc::new(VirtualClock::new()));
    (builder.options(options).build().unwrap(), delay, faults)
}

async fn until_queued(world: &World) {
    until(|| async { world.records("a").await.iter().any(|record| !record.waiters.is_empty()) }).await;
}

#[tokio::test(start_paused = true)]
async fn a_pushed_grant_that_arrives_after_its_window_is_ignored() {
    let world = World::new();
    let theirs = world.locks();
    let (ours, delay, faults) = process(&world, options());
    let held = theirs.rw_lock("a").write().await.unwrap();
    let waiter = tokio::spawn(async move { ours.rw_lock("a").write().await.unwrap() });
    until_queued(&world).await;
    tokio::time::sleep(100 * MS).await;
    // From now on only the message reaches the waiter, three seconds late. The grant lasts two.
    delay.set(3 * SECOND);
    faults.always(Verb::Acquire, Fault::hang_before());
    held.release().await.unwrap();
    let second = theirs.rw_lock("a").write().await.unwrap();
    for _ in 0..60 {
        tokio::time::sleep(100 * MS).await;
        assert!(!second.is_lost() && !waiter.is_finished(), "the late grant was accepted");
    }
    faults.heal();
    second.release().await.unwrap();
    let guard = waiter.await.unwrap();
    assert!(guard.token() > distlock_core::FencingToken::new(0) && !guard.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_pushed_grant_that_arrives_half_a_second_late_ends_half_a_second_earlier() {
    let world = World::new();
    let theirs = world.locks();
    let (ours, delay, faults) = process(&world, options());
    delay.set(500 * MS);
    let held = theirs.rw_lock("a").write().await.unwrap();
    let waiter = tokio::spawn(async move { ours.rw_lock("a").write().await.unwrap() });
    until_queued(&world).await;
    tokio::time::sleep(100 * MS).await;
    faults.always(Verb::Renew, Fault::hang_before());
    let requests = world.store.stats().acquire.requests;
    held.release().await.unwrap();
    let released = tokio::time::Instant::now();
    let guard = waiter.await.unwrap();
    if world.store.stats().acquire.requests == requests {
        // Accepted from the message: the deadline counts from the grant, not from the arrival of the message.
        assert!(guard.time_left().unwrap() + released.elapsed() <= 2 * SECOND);
    }
    guard.lost().await;
    assert!(released.elapsed() <= 4 * SECOND);
}

/// A waiter that was paused for longer than a grant's window queues again when it resumes, and the message about the old
/// grant arrives after that. No request hangs and no lock id changes.
#[tokio::test(start_paused = true)]
async fn a_pushed_grant_that_arrives_after_the_waiter_queued_again_is_ignored() {
    for late_ms in [1_200, 2_150, 2_500, 3_500, 5_000, 9_000] {
        let world = World::new();
        let theirs = world.locks();
        let (ours, delay, faults) = process(&world, options().expiry(600 * MS).unwrap());
        let held = theirs.rw_lock("a").write().await.unwrap();
        let waiter = tokio::spawn(async move { ours.rw_lock("a").write().await.unwrap() });
        until_queued(&world).await;
        // The waiter is stalled for longer than the window: neither its requests nor its messages arrive.
        delay.set(late_ms * MS);
        faults.next(Verb::Acquire, 1, Fault::none().delay_before(499 * MS));
        held.release().await.unwrap();
        let second = theirs.rw_lock("a").write().await.unwrap();
        for _ in 0..200 {
            tokio::time::sleep(50 * MS).await;
            assert!(!waiter.is_finished(), "{late_ms} ms late: two writers");
            assert!(!second.is_lost());
        }
        second.release().await.unwrap();
        assert!(!waiter.await.unwrap().is_lost());
    }
}
