//! How many requests of a verb are under way at once: as many as the store says, and what comes while there are so many
//! goes out together. Extensions go out a few at a time, unless the store is slow.

use std::future::IntoFuture;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{MS, SECOND, options};
use async_trait::async_trait;
use distlock_core::memory::MemoryStore;
use distlock_core::store::{
    Attempt, Backend, Batch, Capabilities, Claim, Finding, Holder, Inbox, Lease, LeaseStore, Query, Record,
    Released, Renewal, Store, WakeStream,
};
use distlock_core::{Locks, Resource, Result, VirtualClock};

/// A store whose answers take a while, and which keeps count.
#[derive(Debug, Default)]
struct Counting {
    inner: MemoryStore,
    max_in_flight: usize,
    now: AtomicUsize,
    most: Arc<AtomicUsize>,
    sizes: Arc<Mutex<Vec<usize>>>,
    renewal_takes: Duration,
    renewing: AtomicUsize,
    most_renewing: Arc<AtomicUsize>,
}

#[async_trait]
impl Store for Counting {
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.inner.capabilities();
        capabilities.max_in_flight = self.max_in_flight;
        capabilities.max_batch = 10;
        capabilities
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
impl LeaseStore for Counting {
    async fn try_acquire(&self, claims: &[Claim]) -> Batch<Attempt> {
        let now = 1 + self.now.fetch_add(1, Ordering::SeqCst);
        self.most.fetch_max(now, Ordering::SeqCst);
        self.sizes.lock().unwrap().push(claims.len());
        tokio::time::sleep(MS).await;
        self.now.fetch_sub(1, Ordering::SeqCst);
        self.inner.try_acquire(claims).await
    }
    async fn renew(&self, leases: &[Lease]) -> Batch<Renewal> {
        let now = 1 + self.renewing.fetch_add(1, Ordering::SeqCst);
        self.most_renewing.fetch_max(now, Ordering::SeqCst);
        tokio::time::sleep(self.renewal_takes).await;
        self.renewing.fetch_sub(1, Ordering::SeqCst);
        self.inner.renew(leases).await
    }
    async fn release(&self, leases: &[Lease]) -> Batch<Released> {
        self.inner.release(leases).await
    }
    async fn subscribe(&self, inbox: &Inbox) -> Result<WakeStream> {
        self.inner.subscribe(inbox).await
    }
}

/// Lets so many tasks take a lock each, all at once. The most requests that were under way, and the size of each.
async fn rush(max_in_flight: usize, tasks: usize) -> (usize, Vec<usize>) {
    let store = Counting { max_in_flight, ..Counting::default() };
    let (most, sizes) = (Arc::clone(&store.most), Arc::clone(&store.sizes));
    let locks = Locks::builder(Backend::lease(store)).options(options()).build().unwrap();
    let asked: Vec<_> =
        (0..tasks).map(|n| tokio::spawn(locks.mutex(format!("{n}")).acquire().into_future())).collect();
    for one in asked {
        assert!(!one.await.unwrap().unwrap().is_lost());
    }
    let sizes = sizes.lock().unwrap().clone();
    (most.load(Ordering::SeqCst), sizes)
}

#[tokio::test(start_paused = true)]
async fn no_more_requests_are_under_way_than_the_store_takes() {
    for (width, tasks) in [(1, 5), (3, 20), (8, 100)] {
        let (most, sizes) = rush(width, tasks).await;
        assert_eq!(most, width, "{sizes:?}");
        assert_eq!(sizes.iter().sum::<usize>(), tasks);
    }
}

#[tokio::test(start_paused = true)]
async fn what_comes_while_every_place_is_taken_goes_out_together() {
    let (_, sizes) = rush(3, 20).await;
    assert_eq!(sizes, [1, 1, 1, 10, 7], "three at once, and the rest in as few requests as it takes");
}

/// An answer to many lets many go on, and all of them ask for something next.
#[tokio::test(start_paused = true)]
async fn those_who_ask_at_the_same_moment_go_out_together_once_there_was_a_crowd() {
    let store = Counting { max_in_flight: 1, ..Counting::default() };
    let sizes = Arc::clone(&store.sizes);
    let locks = Locks::builder(Backend::lease(store)).options(options()).build().unwrap();
    for _ in 0..3 {
        let asked = (0..8).map(|n| tokio::spawn(locks.mutex(format!("{n}")).acquire().into_future()));
        for one in asked.collect::<Vec<_>>() {
            one.await.unwrap().unwrap().release().await.unwrap();
        }
    }
    assert_eq!(std::mem::take(&mut *sizes.lock().unwrap()), [1, 7, 8, 8]);
    // Nobody waits for company that does not come.
    for _ in 0..3 {
        let begun = tokio::time::Instant::now();
        locks.mutex("alone").acquire().await.unwrap().release().await.unwrap();
        assert!(begun.elapsed() < 3 * MS, "{:?}", begun.elapsed());
    }
    assert_eq!(*sizes.lock().unwrap(), [1, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn when_a_crowd_has_gone_the_few_who_are_left_are_served_side_by_side_again() {
    let store = Counting { max_in_flight: 8, ..Counting::default() };
    let sizes = Arc::clone(&store.sizes);
    let locks = Locks::builder(Backend::lease(store)).options(options()).build().unwrap();
    let ask = async |tasks: usize| {
        let asked = (0..tasks).map(|n| tokio::spawn(locks.mutex(format!("{n}")).acquire().into_future()));
        for one in asked.collect::<Vec<_>>() {
            one.await.unwrap().unwrap().release().await.unwrap();
        }
        std::mem::take(&mut *sizes.lock().unwrap())
    };
    assert_eq!(ask(18).await, [1, 1, 1, 1, 1, 1, 1, 1, 10]);
    // Fewer than there are places, but not by much: those who come and go do not change it every time.
    assert_eq!([ask(6).await, ask(6).await], [[6], [6]]);
    assert_eq!(ask(4).await, [4]);
    assert_eq!(ask(6).await, [1, 1, 1, 1, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_takes_none_at_a_time_takes_one() {
    assert_eq!(rush(0, 5).await, (1, vec![1, 4]));
}

/// Holds a thousand locks, a hundred batches, for several times their expiry. The most extensions under way at once.
async fn hold_many(renewal_takes: Duration) -> usize {
    let store = Counting { max_in_flight: 1, renewal_takes, ..Counting::default() };
    let most = Arc::clone(&store.most_renewing);
    let clock = Arc::new(VirtualClock::new());
    let locks = Locks::builder(Backend::lease(store)).clock(clock).options(options()).build().unwrap();
    let asked: Vec<_> =
        (0..1000).map(|n| tokio::spawn(locks.mutex(format!("{n}")).acquire().into_future())).collect();
    let mut held = Vec::new();
    for one in asked {
        held.push(one.await.unwrap().unwrap());
    }
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!(held.iter().filter(|guard| guard.is_lost()).count(), 0, "lost while waiting for a turn");
    most.load(Ordering::SeqCst)
}

#[tokio::test(start_paused = true)]
async fn requests_for_all_that_is_held_do_not_fill_the_memory_at_once() {
    let most = hold_many(MS).await;
    assert!((2..=4).contains(&most), "{most}");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_lost_because_a_slow_store_extends_by_turns() {
    // By fours it would take eleven seconds, and a lock lasts three.
    let most = hold_many(450 * MS).await;
    assert!(most > 4, "{most}");
}
