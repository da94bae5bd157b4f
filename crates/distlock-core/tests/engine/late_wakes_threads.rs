//! The same as in `engine_late_wakes`, on a runtime with several threads and in real time: there the timer of the next
//! attempt, its answer and the late message meet in any order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use distlock_core::memory::MemoryStore;
use distlock_core::store::{
    Attempt, Backend, Batch, Capabilities, Claim, Finding, Holder, Inbox, Lease, LeaseStore, Query, Record,
    Released, Renewal, Store, WakeStream,
};
use distlock_core::{Locks, Options, Resource, Result};
use futures_util::StreamExt;

const MS: Duration = Duration::from_millis(1);

/// How late a wake-up is. Longer than the grant of the test lasts.
const LATE: Duration = Duration::from_millis(1200);

/// The connection of a process that is paused: while it is, no request of its leaves, and wake-ups are late.
#[derive(Debug)]
struct Paused {
    inner: MemoryStore,
    paused: Arc<AtomicBool>,
}

#[async_trait]
impl Store for Paused {
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    async fn inspect(&self, query: &Query) -> Result<Vec<Record>> {
        self.inner.inspect(query).await
    }
    async fn break_lock(&self, resource: &Resource) -> Result<Vec<Holder>> {
        self.inner.break_lock(resource).await
    }
    async fn doctor(&self) -> Result<Vec<Finding>> {
        self.inner.doctor().await
    }
}

#[async_trait]
impl LeaseStore for Paused {
    async fn try_acquire(&self, claims: &[Claim]) -> Batch<Attempt> {
        while self.paused.load(Ordering::SeqCst) {
            tokio::time::sleep(MS).await;
        }
        self.inner.try_acquire(claims).await
    }
    async fn renew(&self, leases: &[Lease]) -> Batch<Renewal> {
        self.inner.renew(leases).await
    }
    async fn release(&self, leases: &[Lease]) -> Batch<Released> {
        self.inner.release(leases).await
    }
    async fn subscribe(&self, inbox: &Inbox) -> Result<WakeStream> {
        let paused = Arc::clone(&self.paused);
        let stream = self.inner.subscribe(inbox).await?;
        // Several at a time, so that each is late by as much whatever comes before it.
        let late = stream.map(move |wake| {
            let delay = if paused.load(Ordering::SeqCst) { LATE } else { Duration::ZERO };
            async move {
                tokio::time::sleep(delay).await;
                wake
            }
        });
        Ok(Box::pin(late.buffered(1000)))
    }
}

fn options() -> Options {
    Options::new().expiry(500 * MS).unwrap().request_timeout(Duration::from_secs(5)).unwrap()
}

async fn is_queued(store: &MemoryStore, name: &str) -> bool {
    let records = store.inspect(&Query::named(name)).await.unwrap();
    records.iter().any(|record| !record.waiters.is_empty())
}

/// One waiter of its own process for each name: the first holder releases while that process is paused, another client
/// gets the lock when the grant has ended, and the waiter resumes before it hears of the grant.
async fn two_at_once(store: &MemoryStore, name: String, semaphore: bool) -> bool {
    let theirs = Locks::builder(Backend::lease(store.clone())).options(options()).build().unwrap();
    let acquire = |locks: &Locks| match semaphore {
        true => locks.semaphore(&*name, 1).acquire(),
        false => locks.rw_lock(&*name).write(),
    };
    let paused = Arc::new(AtomicBool::new(false));
    let connection = Paused { inner: store.clone(), paused: Arc::clone(&paused) };
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
    let released = tokio::time::Instant::now();
    let _ = first.release().await;
    // On a machine so busy that the first lease ended before, the waiter has it, and the round shows nothing.
    let Ok(second) = acquire(&theirs).timeout(Duration::from_secs(5)).await else { return false };
    paused.store(false, Ordering::SeqCst);
    let both = tokio::time::timeout_at(released + LATE + 700 * MS, &mut waiter).await.is_ok();
    let still_held = !second.is_lost();
    let _ = second.release().await;
    if !both {
        drop(waiter.await.expect("it still gets its turn"));
    }
    both && still_held
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_pushed_grant_that_comes_after_the_next_attempt_is_not_believed() {
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
