//! The records against the memory store, which says what they mean: the same random steps, and the same comes of them.
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

/// What came of a step, without what differs from store to store.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Granted,
    Busy,
    Released(Released),
}

/// A store and its stream of wake-ups.
struct Side<S> {
    store: S,
    wakes: WakeStream,
}

impl<S: LeaseStore> Side<S> {
    async fn open(store: S) -> Self {
        let wakes = store.subscribe(&Inbox::new("mine")).await.unwrap();
        Side { store, wakes }
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
    async fn look(&self, kind: Kind) -> (BTreeMap<String, u32>, Vec<(String, u32)>) {
        let query = Query::named("x").with_kind(kind);
        let Some(Record { holders, waiters, .. }) = self.store.inspect(&query).await.unwrap().pop() else {
            return Default::default();
        };
        let holders = holders.into_iter().map(|one| (one.lock_id.as_str().to_owned(), one.weight));
        let waiters = waiters.into_iter().map(|one| (one.lock_id.as_str().to_owned(), one.weight));
        (holders.collect(), waiters.collect())
    }

    /// The grants that were pushed, so many: to whom, and which attempt they repeat.
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
async fn a_pool_does_what_the_memory_store_does_step_by_step() {
    for (seed, server) in [(1, RedisServer::start()), (2, RedisServer::configure().valkey().start())] {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut ours = Side::open(store(&server.url()).await).await;
        let mut theirs = Side::open(MemoryStore::new()).await;
        // Everything that holds or waits, with the number of its newest attempt.
        let mut known: Vec<(Claim, u64)> = Vec::new();
        let (mut pushed, mut longest) = (0, 0);
        for step in 0..STEPS {
            // A crowd, which goes away again.
            let crowded = (step / 500) % 2 == 0;
            let fresh = random.u32(..100) < if crowded { 65 } else { 15 };
            let (what, a, b) = if fresh || known.is_empty() {
                let new = claim(Kind::Semaphore, "x", format!("id#{step}"))
                    .with_weight(random.u32(1..=3))
                    .with_capacity(5)
                    .with_expiry(LONG);
                let new = if random.u32(..10) == 0 { new } else { waiting(new, "mine", LONG, 1) };
                let answers = (ours.acquire(&new).await, theirs.acquire(&new).await);
                if new.waiting.is_some() || answers.1 == Outcome::Granted {
                    known.push((new.clone(), 1));
                }
                (format!("{new:?}"), answers.0, answers.1)
            } else if random.u32(..100) < 30 {
                // Asked again, now and then by an attempt that is late.
                let at = random.usize(..known.len());
                let (claim, newest) = &mut known[at];
                let attempt = (*newest + random.u64(..3)).saturating_sub(1).max(1);
                *newest = attempt.max(*newest);
                let again = waiting(claim.clone(), "mine", LONG, attempt);
                (format!("{again:?}"), ours.acquire(&again).await, theirs.acquire(&again).await)
            } else {
                // The first ones, the last ones, or any.
                let at = match random.u32(..4) {
                    0 => 0,
                    1 => known.len() - 1,
                    _ => random.usize(..known.len()),
                };
                let (claim, _) = known.remove(at);
                (format!("release {claim:?}"), ours.release(&claim).await, theirs.release(&claim).await)
            };
            assert_eq!(a, b, "seed {seed}, step {step}: {what}");
            let (mine, memory) = (ours.look(Kind::Semaphore).await, theirs.look(Kind::Semaphore).await);
            assert_eq!(mine, memory, "seed {seed}, step {step}: {what}");
            longest = longest.max(mine.1.len());
            let sent = theirs.store.stats().wakes;
            let granted = theirs.grants(sent - pushed).await;
            assert_eq!(ours.grants(sent - pushed).await, granted, "seed {seed}, step {step}: {what}");
            pushed = sent;
            // A pushed grant is short.
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
        // Long enough for holders to be found by their slots, and in the end nothing but the token is left.
        assert!(longest > 100, "{longest}");
        let script = "return table.concat(redis.call('HKEYS', redis.call('KEYS', '*')[1]), ' ')";
        assert_eq!(server.command(&["EVAL", script, "0"]).text(), "t");
    }
}
