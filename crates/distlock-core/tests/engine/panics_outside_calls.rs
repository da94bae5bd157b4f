//! A driver that panics on one item of a batch, before it returns a future, or when its stream is dropped.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::panics::{assert_told, goes_on};
use crate::common::{MS, SECOND, options, until};
use distlock_core::memory::MemoryStore;
use distlock_core::store::{
    Attempt, Backend, Batch, Capabilities, Claim, Finding, Holder, Inbox, Lease, LeaseStore, Query, Record,
    Released, Renewal, Store, WakeStream,
};
use distlock_core::{Locks, ReleaseError, Resource, VirtualClock};
use futures_util::future::BoxFuture;

/// A store whose methods panic before they return their futures.
#[derive(Debug, Default)]
struct Rude {
    inner: MemoryStore,
    panics: Arc<AtomicBool>,
    /// The first stream of wake-ups ends at once, and panics when it is dropped.
    bad_stream: AtomicBool,
}

struct PanicsOnDrop;

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        std::panic::resume_unwind(Box::new("a planned panic"));
    }
}

const BAD: &str = "bad";
const BAD_TO_RENEW: &str = "bad to renew";

impl Rude {
    fn maybe_panic(&self) {
        if self.panics.swap(false, Ordering::SeqCst) {
            std::panic::resume_unwind(Box::new("a planned panic"));
        }
    }
}

// Written by hand instead of with `async_trait`, so that the panic happens before the future exists.
impl Store for Rude {
    fn describe(&self) -> String {
        "rude".into()
    }
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn inspect<'a, 'b, 'f>(&'a self, query: &'b Query) -> BoxFuture<'f, distlock_core::Result<Vec<Record>>>
    where
        'a: 'f,
        'b: 'f,
    {
        self.maybe_panic();
        self.inner.inspect(query)
    }
    fn break_lock<'a, 'b, 'f>(&'a self, of: &'b Resource) -> BoxFuture<'f, distlock_core::Result<Vec<Holder>>>
    where
        'a: 'f,
        'b: 'f,
    {
        self.maybe_panic();
        self.inner.break_lock(of)
    }
    fn doctor<'a, 'f>(&'a self) -> BoxFuture<'f, distlock_core::Result<Vec<Finding>>>
    where
        'a: 'f,
    {
        self.maybe_panic();
        self.inner.doctor()
    }
}

impl LeaseStore for Rude {
    fn try_acquire<'a, 'b, 'f>(&'a self, claims: &'b [Claim]) -> BoxFuture<'f, Batch<Attempt>>
    where
        'a: 'f,
        'b: 'f,
    {
        self.maybe_panic();
        if claims.iter().any(|claim| claim.resource.name() == BAD) {
            std::panic::resume_unwind(Box::new("a planned panic"));
        }
        Box::pin(async move {
            tokio::time::sleep(MS).await;
            self.inner.try_acquire(claims).await
        })
    }
    fn renew<'a, 'b, 'f>(&'a self, leases: &'b [Lease]) -> BoxFuture<'f, Batch<Renewal>>
    where
        'a: 'f,
        'b: 'f,
    {
        self.maybe_panic();
        if leases.iter().any(|lease| lease.resource.name() == BAD_TO_RENEW) {
            std::panic::resume_unwind(Box::new("a planned panic"));
        }
        self.inner.renew(leases)
    }
    fn release<'a, 'b, 'f>(&'a self, leases: &'b [Lease]) -> BoxFuture<'f, Batch<Released>>
    where
        'a: 'f,
        'b: 'f,
    {
        self.maybe_panic();
        self.inner.release(leases)
    }
    fn subscribe<'a, 'b, 'f>(&'a self, inbox: &'b Inbox) -> BoxFuture<'f, distlock_core::Result<WakeStream>>
    where
        'a: 'f,
        'b: 'f,
    {
        self.maybe_panic();
        if self.bad_stream.swap(false, Ordering::SeqCst) {
            let panics = PanicsOnDrop;
            let ended: WakeStream = Box::pin(futures_util::stream::poll_fn(move |_| {
                let _ = &panics;
                std::task::Poll::Ready(None)
            }));
            return Box::pin(async { Ok(ended) });
        }
        self.inner.subscribe(inbox)
    }
}

/// The driver cannot handle one name. The other claims of the same batch do not fail with it.
#[tokio::test(start_paused = true)]
async fn a_claim_that_makes_a_batch_panic_fails_alone() {
    let store = Rude::default();
    let inner = store.inner.clone();
    let locks = Locks::builder(Backend::lease(store))
        .clock(Arc::new(VirtualClock::new()))
        .options(options())
        .build()
        .unwrap();
    let held = locks.mutex("held").acquire().await.unwrap();
    for round in 0..5 {
        let mut names: Vec<_> = (0..20).map(|n| format!("{round}/{n}")).collect();
        names.insert(round * 5, BAD.into());
        let asked: Vec<_> =
            names.into_iter().map(|name| (name.clone(), locks.mutex(name).acquire().into_future())).collect();
        let (names, asked): (Vec<_>, Vec<_>) = asked.into_iter().unzip();
        let mut bad = 0;
        for (name, got) in names.iter().zip(futures_util::future::join_all(asked).await) {
            match got {
                Ok(guard) => guard.release().await.unwrap(),
                Err(error) => {
                    assert_eq!(name, BAD, "{error}");
                    assert_told(&error);
                    bad += 1;
                }
            }
        }
        assert_eq!(bad, 1);
    }
    assert!(inner.stats().acquire.items >= 100);
    goes_on(&locks, &held).await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_makes_a_batch_of_renewals_panic_is_lost_alone() {
    let locks = Locks::builder(Backend::lease(Rude::default()))
        .clock(Arc::new(VirtualClock::new()))
        .options(options())
        .build()
        .unwrap();
    let mut names: Vec<_> = (0..20).map(|n| format!("{n}")).collect();
    names.insert(7, BAD_TO_RENEW.into());
    let asked = names.into_iter().map(|name| locks.mutex(name).acquire().into_future());
    let held: Vec<_> = futures_util::future::join_all(asked).await.into_iter().map(Result::unwrap).collect();
    tokio::time::sleep(10 * SECOND).await;
    for guard in &held {
        assert_eq!(guard.is_lost(), guard.resource().name() == BAD_TO_RENEW, "{guard:?}");
    }
    goes_on(&locks, &held[0]).await;
}

/// A panic in the background task itself, outside any store call.
#[tokio::test(start_paused = true)]
async fn a_stream_that_panics_when_it_is_dropped_does_not_end_the_engine() {
    let store = Rude { bad_stream: AtomicBool::new(true), ..Rude::default() };
    let inner = store.inner.clone();
    let build = |backend| {
        let builder = Locks::builder(backend).clock(Arc::new(VirtualClock::new()));
        builder.options(options()).build().unwrap()
    };
    let (ours, theirs) = (build(Backend::lease(store)), build(Backend::lease(inner.clone())));
    let held = ours.mutex("held").acquire().await.unwrap();
    let blocker = theirs.mutex("a").acquire().await.unwrap();
    let waiter = tokio::spawn(ours.mutex("a").acquire().into_future());
    until(|| async { inner.stats().subscriptions > 0 }).await;
    blocker.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    goes_on(&ours, &held).await;
}

#[tokio::test(start_paused = true)]
async fn a_method_that_panics_before_it_returns_its_future_fails_alone() {
    let store = Rude::default();
    let panics = Arc::clone(&store.panics);
    let locks = Locks::builder(Backend::lease(store))
        .clock(Arc::new(VirtualClock::new()))
        .options(options())
        .build()
        .unwrap();
    let held = locks.mutex("held").acquire().await.unwrap();
    let plan = || panics.store(true, Ordering::SeqCst);
    plan();
    assert_told(&locks.mutex("a").acquire().await.unwrap_err());
    let guard = locks.mutex("a").acquire().await.unwrap();
    plan();
    assert!(matches!(guard.release().await, Err(ReleaseError::Unknown { .. })));
    plan();
    assert_told(&locks.doctor().await.unwrap_err());
    plan();
    // The next call is a renewal.
    until(|| async { !panics.load(Ordering::SeqCst) }).await;
    goes_on(&locks, &held).await;
}
