//! A time-out names the holder where the store knows it, and is never late for that.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{MS, SECOND};
use distlock_core::faults::{Fault, Faults, FaultyStore, Verb};
use distlock_core::memory::MemoryStore;
use distlock_core::store::Backend;
use distlock_core::{Error, ErrorKind, Kind, Locks, VirtualClock};
use tokio::time::Instant;

/// Two processes on one store: the holder, and a waiter behind a connection with faults.
fn two_processes() -> (Locks, Locks, Faults, MemoryStore) {
    let store = MemoryStore::with_clock(Arc::new(VirtualClock::new()));
    let locks = |backend, label: &str| {
        Locks::builder(backend).clock(Arc::new(VirtualClock::new())).label(label).build().unwrap()
    };
    let (faulty, faults) = FaultyStore::new(Arc::new(store.clone()));
    let holder = locks(Backend::lease(store.clone()), "web-3:812");
    (holder, locks(Backend::lease(faulty), "web-4:77"), faults, store)
}

async fn times_out(locks: &Locks, limit: Duration) -> Error {
    let begun = Instant::now();
    let error = locks.mutex("x").acquire().timeout(limit).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(begun.elapsed() >= limit && begun.elapsed() < limit + 20 * MS, "{:?}", begun.elapsed());
    error
}

#[tokio::test(start_paused = true)]
async fn the_message_names_the_holder_and_the_time_held() {
    let (holder, waiter, ..) = two_processes();
    let guard = holder.mutex("x").acquire().await.unwrap();
    tokio::time::sleep(249 * SECOND + 100 * MS).await;
    let error = times_out(&waiter, SECOND).await;
    assert_eq!(
        error.to_string(),
        "timed out after 1s waiting for mutex \"x\": held by web-3:812 for 4m 10s (memory); \
         wait longer, or see `distlock show`"
    );
    // A waiter of the same process waits in the local queue, and is told the same.
    let (first, second) = tokio::join!(times_out(&waiter, SECOND), times_out(&waiter, SECOND));
    assert!(
        first.to_string().contains("held by web-3:812") && second.to_string().contains("held by web-3:812")
    );
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn all_holders_of_a_pool_are_named() {
    let (holder, waiter, ..) = two_processes();
    let permits = holder.semaphore("gpu", 2).acquire_many(2).await.unwrap();
    let error = waiter.semaphore("gpu", 2).acquire().timeout(SECOND).await.unwrap_err();
    assert!(
        error.to_string().starts_with("timed out after 1s waiting for semaphore \"gpu\": held by web-3:812")
    );
    drop(permits);
    let writer = holder.rw_lock("r").write().await.unwrap();
    let error = waiter.rw_lock("r").read().timeout(SECOND).await.unwrap_err();
    assert!(error.to_string().contains("held by web-3:812"), "{error}");
    drop(writer);
}

#[tokio::test(start_paused = true)]
async fn the_holder_of_a_fair_mutex_and_of_one_of_several_locks_is_named() {
    let (holder, waiter, ..) = two_processes();
    let guard = holder.mutex("x").fair().acquire().await.unwrap();
    let error = waiter.mutex("x").fair().acquire().timeout(SECOND).await.unwrap_err();
    assert!(error.to_string().contains("\"x\": held by web-3:812"), "{error}");
    let error = waiter.acquire_all(["a", "x"]).timeout(SECOND).await.unwrap_err();
    assert!(error.to_string().contains("\"x\": held by web-3:812"), "{error}");
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_the_lookup_does_not_delay_the_time_out() {
    let (holder, waiter, faults, _) = two_processes();
    let guard = holder.mutex("x").acquire().await.unwrap();
    for fault in [
        Fault::hang_before(),
        Fault::hang_after(),
        Fault::none().delay_after(10 * SECOND),
        Fault::fail(),
        Fault::panic_before(),
        Fault::panic_after(),
    ] {
        faults.always(Verb::Admin, fault);
        for limit in [50 * MS, SECOND, 30 * SECOND] {
            let error = times_out(&waiter, limit).await;
            assert_eq!(
                error.to_string(),
                format!(
                    "timed out after {limit:?} waiting for mutex \"x\" (memory); wait longer, or see `distlock show`"
                ),
                "{fault:?}"
            );
        }
    }
    faults.heal();
    assert!(
        times_out(&waiter, SECOND).await.to_string().contains("web-3:812"),
        "the lookups hold no permit for ever"
    );
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_succeeds_before_the_last_tenth_asks_nothing_more() {
    let (holder, waiter, faults, _) = two_processes();
    faults.always(Verb::Admin, Fault::panic_before());
    let guard = holder.mutex("x").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let mutex = waiter.mutex("x");
        async move { mutex.acquire().timeout(10 * SECOND).await }
    });
    tokio::time::sleep(9 * SECOND).await;
    faults.always(Verb::Admin, Fault::none());
    guard.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    // Inside the last tenth the lookup runs beside the wait, which succeeds nevertheless.
    let guard = holder.mutex("x").acquire().await.unwrap();
    faults.always(Verb::Admin, Fault::hang_before());
    let waiting = tokio::spawn({
        let mutex = waiter.mutex("x");
        async move { mutex.acquire().timeout(10 * SECOND).await }
    });
    tokio::time::sleep(10 * SECOND - 50 * MS).await;
    guard.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_batch_of_time_outs_is_no_batch_of_lookups() {
    let (holder, waiter, faults, _) = two_processes();
    let guard = holder.mutex("x").acquire().await.unwrap();
    // Each lookup takes as long as there is time, so all of them would be in flight at once.
    faults.always(Verb::Admin, Fault::none().delay_before(90 * MS));
    let waiting: Vec<_> = (0..100)
        .map(|_| {
            let mutex = waiter.mutex("x");
            tokio::spawn(async move { mutex.acquire().timeout(2 * SECOND).await.unwrap_err().to_string() })
        })
        .collect();
    let mut named = 0;
    for one in waiting {
        named += usize::from(one.await.unwrap().contains("web-3:812"));
    }
    assert!((1..=8).contains(&named), "{named} lookups");
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn a_single_attempt_looks_nothing_up_and_its_caller_can_ask() {
    let (holder, waiter, faults, _) = two_processes();
    let guard = holder.mutex("x").acquire().await.unwrap();
    faults.always(Verb::Admin, Fault::hang_before());
    assert!(waiter.mutex("x").try_acquire().await.unwrap().is_none());
    let error = waiter.mutex("x").acquire().timeout(Duration::ZERO).await.unwrap_err();
    assert!(error.to_string().starts_with("cannot acquire mutex \"x\" without waiting"), "{error}");
    faults.heal();
    let holders = waiter.holders(Kind::Mutex, "x").await.unwrap();
    assert_eq!(holders.len(), 1);
    assert_eq!(holders[0].lock_id.label(), "web-3:812");
    drop(guard);
}
