//! Waiting: time limits, order, lost wake-ups, outages.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{MS, SECOND, World, options, until};
use distlock_core::faults::{Fault, Verb};
use distlock_core::store::{Claim, Inbox, Lease, LeaseStore, Waiting};
use distlock_core::{ErrorKind, FencingToken, Kind, LockId, Resource};

#[tokio::test(start_paused = true)]
async fn a_time_limit_ends_the_wait_on_time_and_zero_is_one_attempt() {
    let world = World::new();
    let (ours, theirs) = (world.locks(), world.locks());
    let _held = theirs.mutex("a").acquire().await.unwrap();
    for limit in [Duration::ZERO, MS, 250 * MS, 10 * SECOND] {
        let begun = tokio::time::Instant::now();
        let error = ours.mutex("a").acquire().timeout(limit).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert!(
            begun.elapsed() >= limit && begun.elapsed() <= limit + 5 * MS,
            "{:?} for {limit:?}",
            begun.elapsed()
        );
        assert!(ours.mutex("a").try_acquire().timeout(limit).await.unwrap().is_none());
    }
    let before = world.store.stats().acquire.requests;
    assert!(ours.mutex("a").try_acquire().await.unwrap().is_none());
    assert_eq!(world.store.stats().acquire.requests, before + 1);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_is_an_error_and_never_looks_like_contention() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    faults.set_down(true);
    for limit in [Duration::ZERO, 50 * MS, 10 * SECOND] {
        let error = locks.mutex("a").acquire().timeout(limit).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.can_retry() && error.store().is_some() && error.resource().is_some());
    }
    faults.heal();
    faults.always(Verb::Acquire, Fault::hang_before());
    let begun = tokio::time::Instant::now();
    let error = locks.mutex("a").acquire().timeout(200 * MS).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(begun.elapsed() <= 2 * SECOND, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_survives_an_outage() {
    let world = World::new();
    let (ours, _clock, faults) = world.process();
    let theirs = world.locks();
    let held = theirs.mutex("a").acquire().await.unwrap();
    let waiter = tokio::spawn(async move { ours.mutex("a").acquire().await });
    until(|| async { world.records("a").await.iter().any(|record| !record.waiters.is_empty()) }).await;
    faults.set_down(true);
    tokio::time::sleep(10 * SECOND).await;
    assert!(!waiter.is_finished());
    faults.heal();
    held.release().await.unwrap();
    assert!(waiter.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_woken_by_the_release_and_does_not_poll() {
    let world = World::new();
    let (ours, theirs) = (world.locks(), world.locks());
    let held = theirs.mutex("a").acquire().await.unwrap();
    let waiter = tokio::spawn(async move { ours.mutex("a").acquire().await.unwrap() });
    until(|| async { world.records("a").await.iter().any(|record| !record.waiters.is_empty()) }).await;
    let begun = tokio::time::Instant::now();
    held.release().await.unwrap();
    let _next = waiter.await.unwrap();
    assert!(begun.elapsed() < 5 * MS, "{:?}", begun.elapsed());
}

/// Each in a process of its own.
#[tokio::test(start_paused = true)]
async fn a_waiter_far_behind_asks_less_often_and_keeps_its_place() {
    let far = FarBehind::new(20 * SECOND).await;
    let before = far.world.store.stats().acquire.requests;
    for _ in 0..60 {
        far.renew_holder().await;
        tokio::time::sleep(SECOND / 2).await;
        assert!(far.is_queued().await, "its entry is gone");
    }
    let asked = far.world.store.stats().acquire.requests - before;
    assert!((3..=4).contains(&asked), "{asked} attempts in 30 s");
    // When it is its turn, it is woken like any other.
    far.withdraw_all_before().await;
    far.release(0).await;
    let begun = tokio::time::Instant::now();
    let _held = far.waiter.await.unwrap().unwrap();
    assert!(begun.elapsed() < 5 * MS, "{:?}", begun.elapsed());
}

/// The holder crashes, and all before it leave.
#[tokio::test(start_paused = true)]
async fn a_waiter_far_behind_that_became_the_first_asks_soon_after_the_holders_lease_ended() {
    let far = FarBehind::new(3 * SECOND).await;
    let begun = tokio::time::Instant::now();
    far.withdraw_all_before().await;
    let _held = far.waiter.await.unwrap().unwrap();
    assert!((3 * SECOND..=3 * SECOND + 2100 * MS).contains(&begun.elapsed()), "{:?}", begun.elapsed());
}

/// A holder of a mutex, a long queue of others, and behind them a waiter in a process of its own.
struct FarBehind {
    world: World,
    held_for: Duration,
    waiter: tokio::task::JoinHandle<distlock_core::Result<distlock_core::Guard>>,
}

impl FarBehind {
    const BEFORE: u64 = 900;

    async fn new(held_for: Duration) -> Self {
        let world = World::new();
        let locks = world.locks();
        let waiting = Waiting::new(Inbox::new("other"), 3600 * SECOND, 1);
        for n in 0..=Self::BEFORE {
            let claim = Self::claim(n, held_for).with_waiting(waiting.clone());
            world.store.try_acquire(&[claim]).await.unwrap().remove(0).unwrap();
        }
        let waiter = tokio::spawn(async move { locks.mutex("a").acquire().await });
        let far = FarBehind { world, held_for, waiter };
        until(|| far.is_queued()).await;
        // Its first attempt was made before its process could be woken.
        tokio::time::sleep(10 * MS).await;
        far.renew_holder().await;
        far
    }

    fn claim(n: u64, held_for: Duration) -> Claim {
        let id = LockId::from_stored(format!("other#{n}"));
        let expiry = if n == 0 { held_for } else { 3600 * SECOND };
        Claim::new(Resource::new(Kind::Mutex, "a").unwrap(), id, expiry)
    }

    fn lease(&self, n: u64) -> Lease {
        Lease::of(&Self::claim(n, self.held_for), FencingToken::new(0))
    }

    async fn renew_holder(&self) {
        self.world.store.renew(&[self.lease(0)]).await.unwrap().remove(0).unwrap();
    }

    async fn release(&self, n: u64) {
        self.world.store.release(&[self.lease(n)]).await.unwrap().remove(0).unwrap();
    }

    async fn withdraw_all_before(&self) {
        for n in 1..=Self::BEFORE {
            self.release(n).await;
        }
    }

    /// Whether the waiter is in the queue.
    async fn is_queued(&self) -> bool {
        let waiters = self.world.records("a").await.remove(0).waiters;
        waiters.last().is_some_and(|last| !last.lock_id.as_str().starts_with("other#"))
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_wake_up_costs_one_second_and_not_liveness() {
    for pool in [false, true] {
        let world = World::new();
        let (ours, theirs) = (world.locks(), world.locks());
        let held =
            if pool { theirs.rw_lock("a").write() } else { theirs.mutex("a").acquire() }.await.unwrap();
        let waiter = tokio::spawn(async move {
            if pool { ours.rw_lock("a").write() } else { ours.mutex("a").acquire() }.await.unwrap()
        });
        until(|| async { world.records("a").await.iter().any(|record| !record.waiters.is_empty()) }).await;
        tokio::time::sleep(50 * MS).await;
        world.store.lose_wakes(1_000);
        let begun = tokio::time::Instant::now();
        held.release().await.unwrap();
        let _next = waiter.await.unwrap();
        assert!(begun.elapsed() <= 1_200 * MS, "pool {pool}: {:?}", begun.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_broken_subscription_is_reopened_and_a_failed_one_is_retried() {
    let world = World::new();
    let (ours, _clock, faults) = world.process();
    let theirs = world.locks();
    faults.always(Verb::Subscribe, Fault::fail());
    let held = theirs.mutex("a").acquire().await.unwrap();
    let waiter = tokio::spawn(async move { ours.mutex("a").acquire().await.unwrap() });
    tokio::time::sleep(3 * SECOND).await;
    held.release().await.unwrap();
    let guard = waiter.await.unwrap();
    faults.heal();
    let waiter = tokio::spawn(async move { theirs.mutex("a").acquire().await.unwrap() });
    until(|| async { world.records("a").await.iter().any(|record| !record.waiters.is_empty()) }).await;
    world.store.hang_up();
    until(|| async { world.store.listeners() > 0 }).await;
    let begun = tokio::time::Instant::now();
    drop(guard);
    let _next = waiter.await.unwrap();
    assert!(begun.elapsed() <= 1_200 * MS);
}

#[tokio::test(start_paused = true)]
async fn without_waiters_there_is_no_subscription() {
    let world = World::new();
    let locks = world.locks();
    for n in 0..50 {
        locks.mutex(format!("m{n}")).acquire().await.unwrap().release().await.unwrap();
        locks.semaphore(format!("s{n}"), 3).acquire().await.unwrap().release().await.unwrap();
    }
    assert_eq!(world.store.listeners(), 0);
    let stats = world.store.stats();
    assert_eq!((stats.acquire.requests, stats.release.requests), (100, 100), "one round trip each");
}

#[tokio::test(start_paused = true)]
async fn a_crashed_holders_lock_is_acquired_at_its_expiry_and_not_at_the_next_poll() {
    let world = World::new();
    let (dead, _clock, faults) = world.process();
    let ours = world.locks();
    let guard = dead.mutex("a").acquire().await.unwrap();
    let granted = tokio::time::Instant::now();
    faults.set_down(true);
    let next = ours.mutex("a").acquire().await.unwrap();
    assert!(
        granted.elapsed() >= 3 * SECOND && granted.elapsed() <= 3 * SECOND + 10 * MS,
        "{:?}",
        granted.elapsed()
    );
    assert!(next.token() > guard.token());
}

#[tokio::test(start_paused = true)]
async fn waiters_of_one_process_are_served_in_order() {
    let world = World::new();
    let (ours, theirs) = (world.locks(), world.locks());
    for kind in ["mutex", "fair", "write", "permit"] {
        let order = Arc::new(Mutex::new(Vec::new()));
        let take = |locks: &distlock_core::Locks| match kind {
            "mutex" => locks.mutex("a").acquire(),
            "fair" => locks.mutex("a").fair().acquire(),
            "write" => locks.rw_lock("a").write(),
            _ => locks.semaphore("a", 1).acquire(),
        };
        let held = take(&theirs).await.unwrap();
        let mut tasks = Vec::new();
        for n in 0..10 {
            let (order, asking) = (Arc::clone(&order), take(&ours));
            tasks.push(tokio::spawn(async move {
                let guard = asking.await.unwrap();
                order.lock().unwrap().push(n);
                tokio::time::sleep(MS).await;
                guard.release().await.unwrap();
            }));
            tokio::time::sleep(20 * MS).await;
        }
        drop(held);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), (0..10).collect::<Vec<_>>(), "{kind}");
    }
}

/// Acquires, counts, holds for a millisecond, releases, and pauses.
async fn counted_cycle(mutex: &distlock_core::Mutex, counts: &Mutex<Vec<u32>>, n: usize) {
    let guard = mutex.acquire().await.unwrap();
    counts.lock().unwrap()[n] += 1;
    tokio::time::sleep(MS).await;
    guard.release().await.unwrap();
    tokio::time::sleep(5 * MS).await;
}

#[tokio::test(start_paused = true)]
async fn sixty_four_contenders_cost_two_requests_per_acquisition_and_get_equal_shares() {
    let world = World::new();
    let locks = world.locks();
    let counts = Arc::new(Mutex::new(vec![0_u32; 64]));
    let tasks: Vec<_> = (0..64)
        .map(|n| {
            let (mutex, counts) = (locks.mutex("a"), Arc::clone(&counts));
            tokio::spawn(async move {
                for _ in 0..20 {
                    counted_cycle(&mutex, &counts, n).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let stats = world.store.stats();
    let requests = stats.acquire.requests + stats.release.requests;
    assert!(requests <= 64 * 20 * 21 / 10, "{requests} requests for {} acquisitions", 64 * 20);
}

#[tokio::test(start_paused = true)]
async fn contending_processes_get_equal_shares_at_a_cost_independent_of_the_waiters() {
    for processes in [2_usize, 4, 16] {
        let world = World::new();
        let counts = Arc::new(Mutex::new(vec![0_u32; processes]));
        let end = tokio::time::Instant::now() + 20 * SECOND;
        let tasks: Vec<_> = (0..processes)
            .map(|n| {
                let (locks, counts) = (world.locks(), Arc::clone(&counts));
                tokio::spawn(async move {
                    while tokio::time::Instant::now() < end {
                        counted_cycle(&locks.mutex("a"), &counts, n).await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let counts = counts.lock().unwrap().clone();
        let (total, stats) = (counts.iter().sum::<u32>(), world.store.stats());
        let requests = stats.acquire.requests + stats.release.requests;
        let (most, fewest) = (*counts.iter().max().unwrap(), *counts.iter().min().unwrap());
        assert!(f64::from(most) <= 1.5 * f64::from(fewest.max(1)), "{processes} processes: {counts:?}");
        assert!(
            requests <= u64::from(total) * 33 / 10,
            "{processes} processes: {requests} requests for {total}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_pool_handoff_on_release_needs_no_other_request() {
    let world = World::new();
    let end = tokio::time::Instant::now() + 10 * SECOND;
    let total = Arc::new(Mutex::new(0_u64));
    let tasks: Vec<_> = (0..16)
        .map(|_| {
            let (locks, total) = (world.locks(), Arc::clone(&total));
            tokio::spawn(async move {
                while tokio::time::Instant::now() < end {
                    let guard = locks.semaphore("s", 2).acquire().await.unwrap();
                    *total.lock().unwrap() += 1;
                    tokio::time::sleep(MS).await;
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let (total, stats) = (*total.lock().unwrap(), world.store.stats());
    let requests = stats.acquire.requests + stats.release.requests + stats.renew.requests;
    assert!(total > 5_000, "{total} in ten seconds of virtual time");
    assert!(requests <= total * 21 / 10, "{requests} requests for {total} acquisitions");
}

#[tokio::test(start_paused = true)]
async fn a_pushed_grant_is_renewed_before_its_short_window_ends() {
    let world = World::new();
    let (ours, theirs) = (world.locks(), world.locks());
    let held = theirs.rw_lock("a").write().await.unwrap();
    let waiter = tokio::spawn(async move { ours.rw_lock("a").write().await.unwrap() });
    until(|| async { world.records("a").await.iter().any(|record| !record.waiters.is_empty()) }).await;
    held.release().await.unwrap();
    let guard = waiter.await.unwrap();
    for _ in 0..100 {
        tokio::time::sleep(100 * MS).await;
        assert!(!guard.is_lost());
        assert!(theirs.rw_lock("a").try_read().await.unwrap().is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn hold_at_least_delays_an_early_release() {
    let world = World::new();
    let (ours, theirs) = (world.locks(), world.locks());
    let long = options().hold_at_least(10 * SECOND).unwrap();
    for dropped in [true, false] {
        let guard = ours.mutex("a").options(long.clone()).acquire().await.unwrap();
        let begun = tokio::time::Instant::now();
        let releasing = tokio::spawn(async move {
            if dropped {
                drop(guard);
            } else {
                guard.release().await.unwrap();
            }
        });
        let next = theirs.mutex("a").acquire().await.unwrap();
        assert!(begun.elapsed() >= 10 * SECOND && begun.elapsed() < 11 * SECOND, "{:?}", begun.elapsed());
        releasing.await.unwrap();
        next.release().await.unwrap();
    }
}
