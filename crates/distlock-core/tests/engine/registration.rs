//! What an attempt leaves with the store: a waiter's entry once it can be woken, and nothing where it does not wait.

use crate::common::{MS, SECOND, World, options, until};
use crate::recording_store::Recorder;

#[tokio::test(start_paused = true)]
async fn an_attempt_that_does_not_wait_enters_no_queue() {
    let world = World::new();
    let theirs = world.locks();
    let _pool = theirs.semaphore("a", 1).acquire().await.unwrap();
    let _lock = theirs.mutex("a").acquire().await.unwrap();
    let store = Recorder::new(&world.store);
    let (ours, ..) = store.locks(options());
    assert!(ours.semaphore("a", 1).try_acquire().await.unwrap().is_none());
    assert!(ours.mutex("a").try_acquire().await.unwrap().is_none());
    tokio::time::sleep(SECOND).await;
    assert!(store.claims.lock().unwrap().iter().all(|claim| claim.waiting.is_none()));
    assert!(store.released.lock().unwrap().is_empty(), "nothing to withdraw");
    assert_eq!(store.attempts(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_for_a_lock_enters_the_queue_once_wake_ups_can_reach_it() {
    let world = World::new();
    let _held = world.locks().mutex("a").acquire().await.unwrap();
    let store = Recorder::new(&world.store);
    let (ours, ..) = store.locks(options());
    let waiter = tokio::spawn(async move { ours.mutex("a").acquire().await });
    until(|| async { store.attempts() >= 2 }).await;
    assert!(store.claims.lock().unwrap()[0].waiting.is_none(), "an uncontended lock costs no subscription");
    assert!(store.last().waiting.is_some());
    waiter.abort();
}

#[tokio::test(start_paused = true)]
async fn a_waiter_for_a_lock_enters_the_queue_at_once_where_the_store_cannot_wake_it() {
    let world = World::new();
    let _held = world.locks().mutex("a").acquire().await.unwrap();
    let mut store = Recorder::new(&world.store);
    store.push = false;
    let (ours, ..) = store.locks(options());
    let waiter = tokio::spawn(async move { ours.mutex("a").acquire().await });
    until(|| async { store.attempts() >= 1 }).await;
    assert!(store.last().waiting.is_some(), "operators would not see it, and others would overtake it");
    waiter.abort();
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_can_be_woken_asks_again_once_a_second() {
    let world = World::new();
    let _held = world.locks().mutex("a").acquire().await.unwrap();
    let store = Recorder::new(&world.store);
    let (ours, ..) = store.locks(options());
    let waiter = tokio::spawn(async move { ours.mutex("a").acquire().await });
    until(|| async { store.last_is_registered() }).await;
    let before = store.attempts();
    tokio::time::sleep(60 * SECOND + 10 * MS).await;
    let attempts = store.attempts() - before;
    assert!((54..=67).contains(&attempts), "{attempts} in a minute");
    waiter.abort();
}
