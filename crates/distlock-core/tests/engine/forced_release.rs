//! A forced release: a subscribed holder notices it within a round trip, any other at its next renewal.

use crate::common::{MS, SECOND, World, options, until};
use distlock_core::faults::{Fault, Verb};
use distlock_core::{Guard, Locks};
use tokio::time::Instant;

/// The next renewal is due after a third of it.
const EXPIRY: std::time::Duration = std::time::Duration::from_secs(900);

async fn held(locks: &Locks, notice: bool) -> Guard {
    let options = options().expiry(EXPIRY).unwrap().notice_break(notice);
    locks.rw_lock("a").options(options).write().await.unwrap()
}

async fn break_it(locks: &Locks) {
    let broken = locks.break_lock(distlock_core::Kind::RwLock, "a").await.unwrap();
    assert_eq!(broken.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_subscribed_holder_notices_a_forced_release_within_a_round_trip() {
    let world = World::new();
    let (ours, operator) = (world.locks(), world.locks());
    let guard = held(&ours, true).await;
    until(|| async { world.store.listeners() == 1 }).await;
    let renewals = world.store.stats().renew.requests;
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(world.store.stats().renew.requests, renewals, "a healthy holder renews when it is due");
    assert_eq!(world.store.listeners(), 1, "it stays subscribed while it holds");
    let begin = Instant::now();
    break_it(&operator).await;
    guard.lost().await;
    assert!(begin.elapsed() <= 2 * MS, "{:?}", begin.elapsed());
    drop(guard);
    // The subscription closes some time after the release.
    until(|| async { world.store.listeners() == 0 }).await;
}

#[tokio::test(start_paused = true)]
async fn an_unsubscribed_holder_notices_a_forced_release_at_its_next_renewal() {
    let world = World::new();
    let (ours, operator) = (world.locks(), world.locks());
    let guard = held(&ours, false).await;
    tokio::time::sleep(SECOND).await;
    assert_eq!(world.store.listeners(), 0);
    break_it(&operator).await;
    tokio::time::sleep(EXPIRY / 6).await;
    assert!(!guard.is_lost());
    tokio::time::sleep(EXPIRY / 3).await;
    assert!(guard.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_forced_release_announced_while_a_renewal_is_in_flight_is_not_missed() {
    let world = World::new();
    let (ours, _, faults) = world.process();
    let operator = world.locks();
    let guard = held(&ours, true).await;
    until(|| async { world.store.listeners() == 1 }).await;
    // A renewal is applied, and its answer is still in flight when the lock is broken.
    faults.next(Verb::Renew, 1, Fault::none().delay_after(100 * MS));
    let renewals = world.store.stats().renew.requests;
    until(|| async { world.store.stats().renew.requests > renewals }).await;
    break_it(&operator).await;
    let begin = Instant::now();
    guard.lost().await;
    assert!(begin.elapsed() <= 200 * MS, "{:?}", begin.elapsed());
}
