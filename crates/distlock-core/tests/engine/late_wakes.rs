//! Wake-ups that come too late: what they carry is believed only as far as it is surely true.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{MS, SECOND, World, options, until};
use async_trait::async_trait;
use distlock_core::faults::{Fault, FaultyStore, Verb};
use distlock_core::store::{
    Attempt, Backend, Batch, Capabilities, Claim, Finding, Holder, Inbox, Lease, LeaseStore, Query, Record,
    Released, Renewal, Store, WakeStream,
};
use distlock_core::{Locks, Resource, Result, VirtualClock};
use futures_util::StreamExt;

/// Passes everything on, wake-ups after a delay.
#[derive(Debug)]
struct LateWakes<S> {
    inner: S,
    delay_ms: Arc<AtomicU64>,
}

#[async_trait]
impl<S: LeaseStore> Store for LateWakes<S> {
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
impl<S: LeaseStore> LeaseStore for LateWakes<S> {
    async fn try_acquire(&self, claims: &[Claim]) -> Batch<Attempt> {
        self.inner.try_acquire(claims).await
    }
    async fn renew(&self, leases: &[Lease]) -> Batch<Renewal> {
        self.inner.renew(leases).await
    }
    async fn release(&self, leases: &[Lease]) -> Batch<Released> {
        self.inner.release(leases).await
    }
    async fn subscribe(&self, inbox: &Inbox) -> Result<WakeStream> {
        let delay = Arc::clone(&self.delay_ms);
        let stream = self.inner.subscribe(inbox).await?.then(move |wake| {
            let delay = Duration::from_millis(delay.load(Ordering::SeqCst));
            async move {
                tokio::time::sleep(delay).await;
                wake
            }
        });
        Ok(Box::pin(stream))
    }
}

#[tokio::test(start_paused = true)]
async fn a_pushed_grant_that_came_after_its_window_is_not_believed() {
    let world = World::new();
    let theirs = world.locks();
    let delay_ms = Arc::new(AtomicU64::new(0));
    let (faulty, faults) = FaultyStore::new(Arc::new(world.store.clone()));
    let late = LateWakes { inner: faulty, delay_ms: Arc::clone(&delay_ms) };
    let ours = Locks::builder(Backend::lease(late))
        .clock(Arc::new(VirtualClock::new()))
        .options(options())
        .build()
        .unwrap();

    let held = theirs.rw_lock("a").write().await.unwrap();
    let waiter = tokio::spawn(async move { ours.rw_lock("a").write().await.unwrap() });
    until(|| async { world.records("a").await.iter().any(|record| !record.waiters.is_empty()) }).await;
    tokio::time::sleep(100 * MS).await;
    // From now on the waiter hears only the message, three seconds late; the grant lasts two.
    delay_ms.store(3_000, Ordering::SeqCst);
    faults.always(Verb::Acquire, Fault::hang_before());
    held.release().await.unwrap();
    let second = theirs.rw_lock("a").write().await.unwrap();
    for _ in 0..60 {
        tokio::time::sleep(100 * MS).await;
        assert!(!second.is_lost() && !waiter.is_finished(), "the late message was believed");
    }
    faults.heal();
    second.release().await.unwrap();
    let guard = waiter.await.unwrap();
    assert!(guard.token() > distlock_core::FencingToken::new(0) && !guard.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_pushed_grant_that_was_half_a_second_on_its_way_ends_half_a_second_earlier() {
    let world = World::new();
    let theirs = world.locks();
    let late = LateWakes { inner: world.store.clone(), delay_ms: Arc::new(AtomicU64::new(500)) };
    let (late, faults) = FaultyStore::new(Arc::new(late));
    let ours = Locks::builder(Backend::lease(late))
        .clock(Arc::new(VirtualClock::new()))
        .options(options())
        .build()
        .unwrap();
    let held = theirs.rw_lock("a").write().await.unwrap();
    let waiter = tokio::spawn(async move { ours.rw_lock("a").write().await.unwrap() });
    until(|| async { world.records("a").await.iter().any(|record| !record.waiters.is_empty()) }).await;
    tokio::time::sleep(100 * MS).await;
    faults.always(Verb::Renew, Fault::hang_before());
    let requests = world.store.stats().acquire.requests;
    held.release().await.unwrap();
    let released = tokio::time::Instant::now();
    let guard = waiter.await.unwrap();
    if world.store.stats().acquire.requests == requests {
        // Taken from the message: the deadline counts from the grant, not from the message.
        assert!(guard.time_left().unwrap() + released.elapsed() <= 2 * SECOND);
    }
    guard.lost().await;
    assert!(released.elapsed() <= 4 * SECOND);
}

/// A waiter that was paused for longer than a grant's window re-queues when it resumes; the message about the old
/// grant arrives after that. No request hangs and no lock id changes.
#[tokio::test(start_paused = true)]
async fn a_pushed_grant_that_arrives_after_the_waiter_queued_again_is_not_believed() {
    for late_ms in [1_200, 2_150, 2_500, 3_500, 5_000, 9_000] {
        let world = World::new();
        let theirs = world.locks();
        let delay_ms = Arc::new(AtomicU64::new(0));
        let late = LateWakes { inner: world.store.clone(), delay_ms: Arc::clone(&delay_ms) };
        let (late, faults) = FaultyStore::new(Arc::new(late));
        let ours = Locks::builder(Backend::lease(late))
            .clock(Arc::new(VirtualClock::new()))
            .options(options().expiry(600 * MS).unwrap())
            .build()
            .unwrap();
        let held = theirs.rw_lock("a").write().await.unwrap();
        let waiter = tokio::spawn(async move { ours.rw_lock("a").write().await.unwrap() });
        until(|| async { world.records("a").await.iter().any(|record| !record.waiters.is_empty()) }).await;
        // The waiter is stalled: nothing that it sends arrives and no message reaches it, for longer than the window.
        delay_ms.store(late_ms, Ordering::SeqCst);
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
