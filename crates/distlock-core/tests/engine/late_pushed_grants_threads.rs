//! The same as in `late_pushed_grants`, on a runtime with several threads and in real time: there the timer of the next
//! attempt, its answer and the late message meet in any order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use distlock_core::faults::{HookedStore, StoreHooks, delay_wakes};
use distlock_core::memory::MemoryStore;
use distlock_core::store::{Backend, Claim, Query, Store};
use distlock_core::{Locks, Options};

const MS: Duration = Duration::from_millis(1);

/// The delay of a wake-up. Longer than the grant of the test lasts.
const LATE: Duration = Duration::from_millis(1200);

/// The connection of a process that can be paused: then it sends no claims.
#[derive(Debug)]
struct Paused(Arc<AtomicBool>);

#[async_trait]
impl StoreHooks for Paused {
    async fn before_acquire(&self, _: &[Claim]) {
        while self.0.load(Ordering::SeqCst) {
            tokio::time::sleep(MS).await;
        }
    }
}

fn options() -> Options {
    Options::new().expiry(500 * MS).unwrap().request_timeout(Duration::from_secs(5)).unwrap()
}

async fn is_queued(store: &MemoryStore, name: &str) -> bool {
    let records = store.inspect(&Query::named(name)).await.unwrap();
    records.iter().any(|record| !record.waiters.is_empty())
}

/// Whether there were two holders. One waiter in a process of its own for each name: the first holder releases while that
/// process is paused, another client acquires when the grant has expired, and the waiter resumes before the message about
/// the grant arrives.
async fn two_at_once(store: &MemoryStore, name: String, semaphore: bool) -> bool {
    let theirs = Locks::builder(Backend::lease(store.clone())).options(options()).build().unwrap();
    let acquire = |locks: &Locks| match semaphore {
        true => locks.semaphore(&*name, 1).acquire(),
        false => locks.rw_lock(&*name).write(),
    };
    let paused = Arc::new(AtomicBool::new(false));
    let (delayed, delay) = delay_wakes(Arc::new(store.clone()));
    let connection = HookedStore::new(Arc::new(delayed), Arc::new(Paused(Arc::clone(&paused))));
    let ours = Locks::builder(Backend::lease(connection)).options(options()).build().unwrap();
    let first = acquire(&theirs).await.unwrap();
    let waiting = acquire(&ours);
    let mut waiter = tokio::spawn(async move { waiting.await.unwrap() });
    while !is_queued(store, &name).await {
        tokio::time::sleep(MS).await;
    }
    // Longer than opening the subscription takes.
    tokio::time::sleep(100 * MS).await;
    paused.store(true, Ordering::SeqCst);
    delay.set(LATE);
    let released = tokio::time::Instant::now();
    let _ = first.release().await;
    // On a busy machine the first lease may have expired before. Then the waiter has it, and the round shows nothing.
    let Ok(second) = acquire(&theirs).timeout(Duration::from_secs(5)).await else { return false };
    delay.set(Duration::ZERO);
    paused.store(false, Ordering::SeqCst);
    let both = tokio::time::timeout_at(released + LATE + 700 * MS, &mut waiter).await.is_ok();
    let still_held = !second.is_lost();
    let _ = second.release().await;
    if !both {
        drop(waiter.await.expect("it acquires later"));
    }
    both && still_held
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_pushed_grant_that_arrives_after_the_next_attempt_is_ignored() {
    let store = MemoryStore::new();
    let rounds = (0..20).map(|round| {
        let store = store.clone();
        tokio::spawn(async move { two_at_once(&store, format!("a{round}"), round % 2 == 0).await })
    });
    let mut both = 0;
    for round in rounds.collect::<Vec<_>>() {
        both += usize::from(round.await.unwrap());
    }
    assert_eq!(both, 0, "two holders at once in {both} of 20 rounds");
}
