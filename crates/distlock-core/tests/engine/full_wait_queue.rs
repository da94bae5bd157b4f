//! A store whose wait queue has no room: the waiter has no entry, so no release grants it the lock.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use distlock_core::memory::MemoryStore;
use distlock_core::store::{
    Attempt, Backend, Batch, Capabilities, Claim, Finding, Holder, Inbox, Lease, LeaseStore, Query, Record,
    Released, Renewal, Store, WakeStream,
};
use distlock_core::{Locks, Resource, Result, VirtualClock};

use crate::common::{MS, SECOND, World, options, until};

/// The memory store, with a wait queue that can be full.
#[derive(Clone, Debug)]
struct FullQueue {
    inner: MemoryStore,
    is_full: Arc<AtomicBool>,
    attempts: Arc<AtomicUsize>,
    subscriptions: Arc<AtomicUsize>,
}

impl FullQueue {
    fn new(inner: &MemoryStore) -> Self {
        FullQueue {
            inner: inner.clone(),
            is_full: Arc::new(AtomicBool::new(true)),
            attempts: Arc::default(),
            subscriptions: Arc::default(),
        }
    }

    fn locks(&self) -> Locks {
        let clock = Arc::new(VirtualClock::new());
        Locks::builder(Backend::lease(self.clone())).clock(clock).options(options()).build().unwrap()
    }

    fn attempts(&self) -> usize {
        self.attempts.load(Ordering::SeqCst)
    }

    fn subscriptions(&self) -> usize {
        self.subscriptions.load(Ordering::SeqCst)
    }

    fn make_room(&self) {
        self.is_full.store(false, Ordering::SeqCst);
    }
}

#[async_trait]
impl Store for FullQueue {
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
impl LeaseStore for FullQueue {
    async fn try_acquire(&self, claims: &[Claim]) -> Batch<Attempt> {
        self.attempts.fetch_add(claims.len(), Ordering::SeqCst);
        if !self.is_full.load(Ordering::SeqCst) {
            return self.inner.try_acquire(claims).await;
        }
        let mut claims = claims.to_vec();
        claims.iter_mut().for_each(|claim| claim.waiting = None);
        let answers = self.inner.try_acquire(&claims).await?;
        Ok(answers.into_iter().map(|answer| Ok(answer?.with_poll_after(SECOND))).collect())
    }

    async fn renew(&self, leases: &[Lease]) -> Batch<Renewal> {
        self.inner.renew(leases).await
    }

    async fn release(&self, leases: &[Lease]) -> Batch<Released> {
        self.inner.release(leases).await
    }

    async fn subscribe(&self, inbox: &Inbox) -> Result<WakeStream> {
        self.subscriptions.fetch_add(1, Ordering::SeqCst);
        self.inner.subscribe(inbox).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_without_room_asks_once_a_second_and_does_not_subscribe() {
    let world = World::new();
    let held = world.locks().mutex("m").acquire().await.unwrap();
    let store = FullQueue::new(&world.store);
    let locks = store.locks();
    let waiter = tokio::spawn(locks.mutex("m").acquire().into_future());
    tokio::time::sleep(20 * SECOND).await;
    let attempts = store.attempts();
    assert!((15..=27).contains(&attempts), "{attempts} attempts in 20 s");
    assert_eq!(store.subscriptions(), 0, "nothing could wake it");
    // With room it subscribes, and the release wakes it.
    store.make_room();
    until(|| async { world.records("m").await.iter().any(|record| !record.waiters.is_empty()) }).await;
    assert_eq!(store.subscriptions(), 1);
    let token = held.token();
    held.release().await.unwrap();
    let guard = tokio::time::timeout(10 * MS, waiter).await.expect("it is woken").unwrap().unwrap();
    assert!(guard.token() > token);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_without_room_gets_a_lock_that_is_released() {
    let world = World::new();
    let held = world.locks().mutex("m").acquire().await.unwrap();
    let locks = FullQueue::new(&world.store).locks();
    let waiter = tokio::spawn(locks.mutex("m").acquire().into_future());
    tokio::time::sleep(5 * SECOND).await;
    held.release().await.unwrap();
    let guard = tokio::time::timeout(1600 * MS, waiter).await.expect("it asks once a second");
    drop(guard.unwrap().unwrap());
}

/// A process that listens for another lock sends its claims with an entry from the first attempt on.
#[tokio::test(start_paused = true)]
async fn a_waiter_of_a_listening_process_that_finds_no_room_asks_once_a_second_too() {
    let world = World::new();
    let theirs = world.locks();
    let held = theirs.mutex("m").acquire().await.unwrap();
    let other = theirs.mutex("other").acquire().await.unwrap();
    let store = FullQueue::new(&world.store);
    let locks = store.locks();
    store.make_room();
    let listening = tokio::spawn(locks.mutex("other").acquire().into_future());
    until(|| async { world.records("other").await.iter().any(|record| !record.waiters.is_empty()) }).await;
    other.release().await.unwrap();
    let _guard = listening.await.unwrap().unwrap();
    store.is_full.store(true, Ordering::SeqCst);
    let before = store.attempts();
    let waiter = tokio::spawn(locks.mutex("m").acquire().into_future());
    tokio::time::sleep(5 * SECOND).await;
    let attempts = store.attempts() - before;
    assert!((4..=8).contains(&attempts), "{attempts} attempts in 5 s");
    held.release().await.unwrap();
    let guard = tokio::time::timeout(1600 * MS, waiter).await.expect("it asks once a second");
    drop(guard.unwrap().unwrap());
}
