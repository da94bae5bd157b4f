//! How many requests are in flight at once: as many as the store wants. Items that arrive meanwhile are sent together.
//! Renewals are limited to a few batches, unless the store is slow.

use std::future::IntoFuture;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{MS, SECOND, options};
use async_trait::async_trait;
use distlock_core::faults::{HookedStore, StoreHooks};
use distlock_core::memory::MemoryStore;
use distlock_core::store::{Backend, Capabilities, Claim, Lease};
use distlock_core::{Locks, VirtualClock};

/// Delays the calls of a store, and counts those in flight.
#[derive(Debug, Default)]
struct Counting {
    max_in_flight: usize,
    max_batches_in_flight: usize,
    /// 0: ten.
    max_batch: usize,
    acquiring: AtomicUsize,
    most_acquiring: AtomicUsize,
    /// The number of claims in each request.
    sizes: Mutex<Vec<usize>>,
    renewal_takes: Duration,
    renewing: AtomicUsize,
    most_renewing: AtomicUsize,
}

#[async_trait]
impl StoreHooks for Counting {
    fn capabilities(&self, mut inner: Capabilities) -> Capabilities {
        inner.max_in_flight = self.max_in_flight;
        inner.max_batches_in_flight = self.max_batches_in_flight;
        inner.max_batch = if self.max_batch == 0 { 10 } else { self.max_batch };
        inner
    }

    async fn before_acquire(&self, claims: &[Claim]) {
        let now = 1 + self.acquiring.fetch_add(1, Ordering::SeqCst);
        self.most_acquiring.fetch_max(now, Ordering::SeqCst);
        self.sizes.lock().unwrap().push(claims.len());
        tokio::time::sleep(MS).await;
        self.acquiring.fetch_sub(1, Ordering::SeqCst);
    }

    async fn before_renew(&self, _: &[Lease]) {
        let now = 1 + self.renewing.fetch_add(1, Ordering::SeqCst);
        self.most_renewing.fetch_max(now, Ordering::SeqCst);
        tokio::time::sleep(self.renewal_takes).await;
        self.renewing.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Counting {
    /// Locks on a memory store that counts its requests here.
    fn locks(self: &Arc<Self>) -> Locks {
        let hooks = Arc::clone(self) as Arc<dyn StoreHooks>;
        let store = HookedStore::new(Arc::new(MemoryStore::new()), hooks);
        let builder = Locks::builder(Backend::lease(store)).clock(Arc::new(VirtualClock::new()));
        builder.options(options()).build().unwrap()
    }

    fn take_sizes(&self) -> Vec<usize> {
        std::mem::take(&mut self.sizes.lock().unwrap())
    }
}

/// Lets so many tasks acquire a lock each, all at once, and release it.
async fn rush(locks: &Locks, tasks: usize) {
    let tasks: Vec<_> =
        (0..tasks).map(|n| tokio::spawn(locks.mutex(format!("{n}")).acquire().into_future())).collect();
    for task in tasks {
        task.await.unwrap().unwrap().release().await.unwrap();
    }
}

/// The most acquire requests in flight at once, and the size of each, when so many tasks acquire at once.
async fn rush_once(max_in_flight: usize, tasks: usize) -> (usize, Vec<usize>) {
    let counting = Arc::new(Counting { max_in_flight, ..Counting::default() });
    rush(&counting.locks(), tasks).await;
    (counting.most_acquiring.load(Ordering::SeqCst), counting.take_sizes())
}

#[tokio::test(start_paused = true)]
async fn no_more_requests_are_in_flight_than_the_store_wants() {
    for (width, tasks) in [(1, 5), (3, 20), (8, 100)] {
        let (most, sizes) = rush_once(width, tasks).await;
        assert_eq!(most, width, "{sizes:?}");
        assert_eq!(sizes.iter().sum::<usize>(), tasks);
    }
}

#[tokio::test(start_paused = true)]
async fn items_that_arrive_while_no_slot_is_free_are_sent_together() {
    let (_, sizes) = rush_once(3, 20).await;
    assert_eq!(sizes, [1, 1, 1, 10, 7], "three requests at once, and the rest in as few as possible");
}

/// A batched reply wakes many tasks, and all of them ask for something next.
#[tokio::test(start_paused = true)]
async fn items_submitted_at_the_same_moment_are_sent_together_while_batching() {
    let counting = Arc::new(Counting { max_in_flight: 1, ..Counting::default() });
    let locks = counting.locks();
    for _ in 0..3 {
        rush(&locks, 8).await;
    }
    assert_eq!(counting.take_sizes(), [1, 7, 8, 8]);
    // A lone request does not wait for others.
    for _ in 0..3 {
        let begun = tokio::time::Instant::now();
        rush(&locks, 1).await;
        assert!(begun.elapsed() < 3 * MS, "{:?}", begun.elapsed());
    }
    assert_eq!(counting.take_sizes(), [1, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn batching_ends_when_few_items_are_left() {
    let counting = Arc::new(Counting { max_in_flight: 8, ..Counting::default() });
    let locks = counting.locks();
    let sizes_of = async |tasks: usize| {
        rush(&locks, tasks).await;
        counting.take_sizes()
    };
    assert_eq!(sizes_of(18).await, [1, 1, 1, 1, 1, 1, 1, 1, 10]);
    // Fewer than there are slots, but not by much, so that small changes do not switch it every time.
    assert_eq!([sizes_of(6).await, sizes_of(6).await], [[6], [6]]);
    // No more than half as many, for a while.
    let mut rushes = 0;
    while sizes_of(4).await == [4] {
        rushes += 1;
    }
    assert!((2..=8).contains(&rushes), "{rushes}");
    assert_eq!(sizes_of(6).await, [1, 1, 1, 1, 1, 1]);
}

/// Tasks that were answered together have nothing in flight until they ask again.
#[tokio::test(start_paused = true)]
async fn a_moment_with_few_items_does_not_end_batching() {
    let counting = Arc::new(Counting { max_in_flight: 8, ..Counting::default() });
    let locks = counting.locks();
    let sizes_of = async |tasks: usize| {
        rush(&locks, tasks).await;
        counting.take_sizes()
    };
    sizes_of(18).await;
    sizes_of(1).await;
    assert_eq!(sizes_of(7).await, [7]);
    for _ in 0..12 {
        sizes_of(1).await;
    }
    assert_eq!(sizes_of(7).await, [1, 1, 1, 1, 1, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn no_more_batches_are_in_flight_than_the_store_wants() {
    for (batches, most) in [(0, 1), (1, 1), (2, 2), (3, 3)] {
        let counting =
            Arc::new(Counting { max_in_flight: 4, max_batches_in_flight: batches, ..Counting::default() });
        let locks = counting.locks();
        // Starts a batching phase, with as many lone requests in flight as there are slots. The last batch is not small enough
        // to end it.
        rush(&locks, 17).await;
        counting.most_acquiring.store(0, Ordering::SeqCst);
        counting.take_sizes();
        // Four groups, each of which arrives while the requests of the others are in flight.
        let mut tasks = Vec::new();
        for group in 0..4 {
            for n in 0..8 {
                let mutex = locks.mutex(format!("{group}/{n}"));
                tasks.push(tokio::spawn(mutex.acquire().into_future()));
            }
            // Virtual time does not pass meanwhile.
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
        }
        for task in tasks {
            task.await.unwrap().unwrap().release().await.unwrap();
        }
        assert_eq!(counting.most_acquiring.load(Ordering::SeqCst), most, "{batches}");
        assert_eq!(counting.take_sizes().iter().sum::<usize>(), 32);
    }
}

/// Tasks that are answered together ask again together, so a batch that took all of them would keep them together for ever.
#[tokio::test(start_paused = true)]
async fn one_batch_does_not_take_the_tasks_of_all_batches_in_flight() {
    // Large batches are sent one at a time: the other half of the tasks has the other verb.
    for (tasks, batches, most, in_flight) in [(32, 1, 32, 1), (32, 2, 16, 2), (80, 2, 40, 1)] {
        let counting = Arc::new(Counting {
            max_batch: tasks,
            max_in_flight: 2,
            max_batches_in_flight: batches,
            ..Counting::default()
        });
        let locks = counting.locks();
        rush(&locks, tasks).await;
        counting.take_sizes();
        counting.most_acquiring.store(0, Ordering::SeqCst);
        rush(&locks, tasks).await;
        let sizes = counting.take_sizes();
        assert_eq!(sizes.iter().max(), Some(&most), "{sizes:?}");
        assert_eq!(counting.most_acquiring.load(Ordering::SeqCst), in_flight, "{sizes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_wants_no_request_in_flight_gets_one() {
    assert_eq!(rush_once(0, 5).await, (1, vec![1, 4]));
}

/// Holds a thousand locks, a hundred batches, for several times their expiry. Returns the most renewals in flight.
async fn hold_many(renewal_takes: Duration) -> usize {
    let counting = Arc::new(Counting { max_in_flight: 1, renewal_takes, ..Counting::default() });
    let locks = counting.locks();
    let tasks: Vec<_> =
        (0..1000).map(|n| tokio::spawn(locks.mutex(format!("{n}")).acquire().into_future())).collect();
    let mut held = Vec::new();
    for task in tasks {
        held.push(task.await.unwrap().unwrap());
    }
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!(held.iter().filter(|guard| guard.is_lost()).count(), 0, "lost while waiting for a permit");
    counting.most_renewing.load(Ordering::SeqCst)
}

#[tokio::test(start_paused = true)]
async fn renewals_of_many_locks_do_not_fill_the_memory_at_once() {
    let most = hold_many(MS).await;
    assert!((2..=4).contains(&most), "{most}");
}

#[tokio::test(start_paused = true)]
async fn a_slow_store_loses_no_lock_because_renewals_wait_for_each_other() {
    // Four at a time would take eleven seconds, and a lock lasts three.
    let most = hold_many(450 * MS).await;
    assert!(most > 4, "{most}");
}
