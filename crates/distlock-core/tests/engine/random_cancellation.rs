//! Callers that are cancelled at random moments, on a store with random delays and faults: in the end nothing is held,
//! nothing waits, and the engine is idle. Seeded and repeatable.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{MS, SECOND, World, options, until};
use distlock_core::faults::{Fault, Faults, FaultyStore, Verb};
use distlock_core::memory::MemoryStore;
use distlock_core::quorum::{Quorum, QuorumOptions};
use distlock_core::store::{Backend, LeaseStore, Query, Store};
use distlock_core::{Clock, Locks, Request, VirtualClock};
use fastrand::Rng;

const NAMES: [&str; 3] = ["a", "b", "c"];
const SEEDS: u64 = 150;
const QUORUM_SEEDS: u64 = 15;

fn moment(rng: &mut Rng, most: u32) -> Duration {
    MS * rng.u32(0..most)
}

/// Delays and faults that change all the time.
async fn inject_faults(faults: Faults, mut rng: Rng, fails: bool) {
    loop {
        for verb in [Verb::Acquire, Verb::Renew, Verb::Release] {
            let delays = Fault::none().delay_before(moment(&mut rng, 12)).delay_after(moment(&mut rng, 12));
            faults.always(verb, delays);
            match rng.u8(0..24) {
                _ if !fails => {}
                0 => faults.next(verb, 1, Fault::fail()),
                1 => faults.next(verb, 1, Fault::lost_reply()),
                2 => faults.next(verb, 1, Fault::panic_before()),
                3 => faults.next(verb, 1, Fault::panic_after().delay_before(moment(&mut rng, 12))),
                // Longer than the request time-out, for the request or the reply.
                4 => faults.next(verb, 1, Fault::none().delay_before(moment(&mut rng, 2000))),
                5 => faults.next(verb, 1, Fault::none().delay_after(moment(&mut rng, 2000))),
                _ => {}
            }
        }
        tokio::time::sleep(moment(&mut rng, 20)).await;
    }
}

/// Acquires a lock or is cancelled, holds it for a while, and releases it, drops it or cancels the release.
async fn use_lock(locks: &Locks, rng: &mut Rng) {
    let name = NAMES[rng.usize(..NAMES.len())];
    let patience = moment(rng, 60);
    let asking = match rng.u8(0..6) {
        0 => locks.mutex(name).fair().acquire(),
        1 => locks.rw_lock(name).read(),
        2 => locks.rw_lock(name).write(),
        3 => locks.semaphore(name, 3).acquire_many(rng.u32(1..=3)),
        _ => locks.mutex(name).acquire(),
    };
    if rng.u8(0..8) == 0 {
        let all = locks.acquire_all([Request::mutex("a"), Request::fair_mutex("b"), Request::read("c")]);
        let _ = tokio::time::timeout(patience, all.into_future()).await;
        return;
    }
    let Ok(Ok(guard)) = tokio::time::timeout(patience, asking.into_future()).await else { return };
    tokio::time::sleep(moment(rng, 10)).await;
    if rng.bool() {
        let _ = tokio::time::timeout(moment(rng, 20), guard.release()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn after_random_cancellations_the_engine_is_idle() {
    for seed in 0..SEEDS {
        fastrand::seed(seed);
        // One request at a time, many at once, and something in between.
        let world = World::wide([1, 2, 10][fastrand::usize(..3)]);
        let engines: Vec<_> = (0..2).map(|_| world.process()).collect();
        let mut users = tokio::task::JoinSet::new();
        let mut faulting = tokio::task::JoinSet::new();
        for (locks, _, faults) in &engines {
            faulting.spawn(inject_faults(faults.clone(), Rng::new(), true));
            for _ in 0..5 {
                // Sometimes with a minimum hold time, which a hold that no user ever got ignores.
                let minimum = if fastrand::bool() { 50 * MS } else { Duration::ZERO };
                let locks = locks.with_options(options().hold_at_least(minimum).unwrap());
                let mut rng = Rng::new();
                users.spawn(async move {
                    for _ in 0..6 {
                        use_lock(&locks, &mut rng).await;
                    }
                });
            }
        }
        while let Some(ended) = users.join_next().await {
            ended.unwrap();
        }
        faulting.shutdown().await;
        // A shutdown before that would leave these locks to their expiry.
        tokio::time::sleep(60 * MS).await;
        for (locks, _, faults) in engines {
            faults.heal();
            let begun = tokio::time::Instant::now();
            locks.shutdown().await.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            assert!(begun.elapsed() < 5 * SECOND, "seed {seed}: {:?}", begun.elapsed());
        }
        // `shutdown` does not wait for an unanswered request. The engine undoes it when its answer arrives.
        for name in NAMES {
            until(|| async {
                let left = world.records(name).await;
                let holders = || left.iter().flat_map(|record| &record.holders);
                assert!(
                    holders().all(|holder| holder.expires_in.is_some_and(|left| left > 300 * MS)),
                    "seed {seed}: left to its expiry: {left:?}"
                );
                holders().next().is_none() && left.iter().all(|record| record.waiters.is_empty())
            })
            .await;
        }
    }
}

/// The same over a quorum, which has mutexes and reader-writer locks. True if it acquired the lock.
async fn use_quorum(locks: &Locks, rng: &mut Rng) -> bool {
    let name = NAMES[rng.usize(..NAMES.len())];
    let asking = match rng.u8(0..4) {
        0 => locks.rw_lock(name).read(),
        1 => locks.rw_lock(name).write(),
        _ => locks.mutex(name).acquire(),
    };
    let patience = moment(rng, 150);
    let Ok(Ok(guard)) = tokio::time::timeout(patience, asking.into_future()).await else { return false };
    tokio::time::sleep(moment(rng, 10)).await;
    if rng.bool() {
        let _ = tokio::time::timeout(moment(rng, 40), guard.release()).await;
    }
    true
}

#[tokio::test(start_paused = true)]
async fn after_random_cancellations_no_node_of_a_quorum_holds_anything() {
    for seed in 0..QUORUM_SEEDS {
        fastrand::seed(seed);
        let nodes: Vec<_> = (0..3).map(|_| MemoryStore::with_clock(Arc::new(VirtualClock::new()))).collect();
        let mut faulting = tokio::task::JoinSet::new();
        let mut users = tokio::task::JoinSet::new();
        let mut engines = Vec::new();
        for _ in 0..2 {
            let clock: Arc<dyn Clock> = Arc::new(VirtualClock::new());
            let connections: Vec<Arc<dyn LeaseStore>> = nodes
                .iter()
                .map(|node| {
                    let (store, faults) = FaultyStore::new(Arc::new(node.clone()));
                    faulting.spawn(inject_faults(faults, Rng::new(), false));
                    Arc::new(store) as Arc<dyn LeaseStore>
                })
                .collect();
            let quorum =
                Quorum::with_options(connections, QuorumOptions::new().clock(clock.clone())).unwrap();
            // So long that nothing expires during the test.
            let patient = options().expiry(3600 * SECOND).unwrap();
            let locks = Locks::builder(Backend::lease(quorum)).clock(clock).options(patient).build().unwrap();
            for _ in 0..4 {
                let (locks, mut rng) = (locks.clone(), Rng::new());
                users.spawn(async move {
                    let mut granted = 0;
                    for _ in 0..6 {
                        granted += u32::from(use_quorum(&locks, &mut rng).await);
                    }
                    granted
                });
            }
            engines.push(locks);
        }
        let granted: u32 = users.join_all().await.into_iter().sum();
        assert!(
            (1..48).contains(&granted),
            "seed {seed}: some must be granted and some cancelled, not {granted}"
        );
        for locks in engines {
            locks.shutdown().await.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
        let mut left = Vec::new();
        for _ in 0..100 {
            left.clear();
            for node in &nodes {
                let records = node.inspect(&Query::default()).await.unwrap();
                left.extend(records.into_iter().filter(|r| !(r.holders.is_empty() && r.waiters.is_empty())));
            }
            if left.is_empty() {
                break;
            }
            tokio::time::sleep(100 * MS).await;
        }
        assert!(left.is_empty(), "seed {seed}: {left:?}");
        faulting.shutdown().await;
    }
}
