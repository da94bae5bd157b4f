//! Compares the pool record with the memory store, the reference: the same random steps must have the same outcomes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::claims::{claim, waiting};
use common::store;
use distlock_core::memory::MemoryStore;
use distlock_core::store::{
    Attempt, Claim, Inbox, Lease, LeaseStore, Query, Record, Released, Wake, WakeStream,
};
use distlock_core::{FencingToken, Kind};
use distlock_testkit::servers::RedisServer;
use futures_util::StreamExt;

const LONG: Duration = Duration::from_secs(600);
const STEPS: u32 = 1500;

/// The outcome of a step, without what differs from store to store.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Granted,
    Busy,
    Released(Released),
}

/// A store and its stream of wake-ups.
struct Subject<S> {
    store: S,
    wakes: WakeStream,
}

impl<S: LeaseStore> Subject<S> {
    async fn open(store: S) -> Self {
        let wakes = store.subscribe(&Inbox::new("mine")).await.unwrap();
        Subject { store, wakes }
    }

    async fn acquire(&self, claim: &Claim) -> Outcome {
        match self.store.try_acquire(std::slice::from_ref(claim)).await.unwrap().remove(0).unwrap() {
            Attempt::Granted { .. } => Outcome::Granted,
            _ => Outcome::Busy,
        }
    }

    async fn release(&self, claim: &Claim) -> Outcome {
        let lease = Lease::of(claim, FencingToken::new(0));
        Outcome::Released(self.store.release(&[lease]).await.unwrap().remove(0).unwrap())
    }

    /// Holders with their weights, and waiters in their order.
    async fn state(&self, kind: Kind) -> (BTreeMap<String, u32>, Vec<(String, u32)>) {
        let query = Query::named("x").with_kind(kind);
        let Some(Record { holders, waiters, .. }) = self.store.inspect(&query).await.unwrap().pop() else {
            return Default::default();
        };
        let holders = holders.into_iter().map(|one| (one.lock_id.as_str().to_owned(), one.weight));
        let waiters = waiters.into_iter().map(|one| (one.lock_id.as_str().to_owned(), one.weight));
        (holders.collect(), waiters.collect())
    }

    /// The next `count` pushed grants: lock id, and the attempt that they repeat.
    async fn grants(&mut self, count: u64) -> Vec<(String, u64)> {
        let mut found = Vec::new();
        for _ in 0..count {
            match tokio::time::timeout(common::LIMIT, self.wakes.next()).await.expect("a grant").unwrap() {
                Wake::Granted { lock_id, grant, .. } => {
                    found.push((lock_id.as_str().to_owned(), grant.attempt))
                }
                other => panic!("{other:?}"),
            }
        }
        found
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_behaves_like_the_memory_store_step_by_step() {
    for (seed, server) in [(1, RedisServer::start()), (2, RedisServer::configure().valkey().start())] {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut ours = Subject::open(store(&server.url()).await).await;
        let mut theirs = Subject::open(MemoryStore::new()).await;
        // All holders and waiters, with the number of their newest attempt.
        let mut known: Vec<(Claim, u64)> = Vec::new();
        let (mut pushed, mut longest) = (0, 0);
        for step in 0..STEPS {
            // The queue grows, then shrinks.
            let grows = (step / 500) % 2 == 0;
            let fresh = random.u32(..100) < if grows { 65 } else { 15 };
            let (what, a, b) = if fresh || known.is_empty() {
                let new = claim(Kind::Semaphore, "x", format!("id#{step}"))
                    .with_weight(random.u32(1..=3))
                    .with_capacity(5)
                    .with_expiry(LONG);
                let new = if random.u32(..10) == 0 { new } else { waiting(new, "mine", LONG, 1) };
                let outcomes = (ours.acquire(&new).await, theirs.acquire(&new).await);
                if new.waiting.is_some() || outcomes.1 == Outcome::Granted {
                    known.push((new.clone(), 1));
                }
                (format!("{new:?}"), outcomes.0, outcomes.1)
            } else if random.u32(..100) < 30 {
                // A retry, sometimes by an attempt that is applied late.
                let at = random.usize(..known.len());
                let (claim, newest) = &mut known[at];
                let attempt = (*newest + random.u64(..3)).saturating_sub(1).max(1);
                *newest = attempt.max(*newest);
                let again = waiting(claim.clone(), "mine", LONG, attempt);
                (format!("{again:?}"), ours.acquire(&again).await, theirs.acquire(&again).await)
            } else {
                // The first one, the last one, or any.
                let at = match random.u32(..4) {
                    0 => 0,
                    1 => known.len() - 1,
                    _ => random.usize(..known.len()),
                };
                let (claim, _) = known.remove(at);
                (format!("release {claim:?}"), ours.release(&claim).await, theirs.release(&claim).await)
            };
            assert_eq!(a, b, "seed {seed}, step {step}: {what}");
            let (mine, memory) = (ours.state(Kind::Semaphore).await, theirs.state(Kind::Semaphore).await);
            assert_eq!(mine, memory, "seed {seed}, step {step}: {what}");
            longest = longest.max(mine.1.len());
            let sent = theirs.store.stats().wakes;
            let granted = theirs.grants(sent - pushed).await;
            assert_eq!(ours.grants(sent - pushed).await, granted, "seed {seed}, step {step}: {what}");
            pushed = sent;
            // A pushed grant is short: renew it.
            for (id, _) in granted {
                let claim = known.iter().map(|(claim, _)| claim).find(|claim| claim.lock_id.as_str() == id);
                let lease = [Lease::of(claim.expect("a waiter"), FencingToken::new(0))];
                ours.store.renew(&lease).await.unwrap().remove(0).unwrap();
                theirs.store.renew(&lease).await.unwrap().remove(0).unwrap();
            }
        }
        for (claim, _) in known.drain(..) {
            assert_eq!(ours.release(&claim).await, theirs.release(&claim).await);
        }
        // The queue was long enough for holders to be indexed, and in the end only the token is left.
        assert!(longest > 100, "{longest}");
        let script = "return table.concat(redis.call('HKEYS', redis.call('KEYS', '*')[1]), ' ')";
        assert_eq!(server.command(&["EVAL", script, "0"]).text(), "t");
    }
}
