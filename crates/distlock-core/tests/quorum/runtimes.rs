//! A quorum that is used on several runtimes: the votes of a failed attempt are withdrawn although the caller's runtime
//! has ended.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::{MS, SECOND, claim, granted};
use distlock_core::faults::{Fault, Verb};
use distlock_core::memory::MemoryStore;
use distlock_core::quorum::Quorum;
use distlock_core::store::{Attempt, Backend, LeaseStore, Query, Store};
use distlock_core::{Locks, Options};
use tokio::runtime::{Builder, Runtime};

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

struct Nodes {
    nodes: Vec<MemoryStore>,
    faults: Vec<distlock_core::faults::Faults>,
    stores: Vec<Arc<dyn LeaseStore>>,
}

impl Nodes {
    fn new() -> Self {
        let nodes: Vec<MemoryStore> = (0..3).map(|_| MemoryStore::new()).collect();
        let faulty = nodes.iter().map(|node| distlock_core::faults::FaultyStore::new(Arc::new(node.clone())));
        let (stores, faults): (Vec<_>, Vec<_>) = faulty.unzip();
        let stores = stores.into_iter().map(|store| Arc::new(store) as Arc<dyn LeaseStore>).collect();
        Nodes { nodes, faults, stores }
    }

    async fn is_held(&self, node: usize) -> bool {
        let records = self.nodes[node].inspect(&Query::named("m")).await.unwrap();
        records.iter().any(|record| !record.holders.is_empty())
    }

    /// Waits until a node holds nothing, for much less than the expiry.
    async fn until_free(&self, node: usize) {
        let begun = Instant::now();
        while self.is_held(node).await {
            assert!(begun.elapsed() < Duration::from_secs(8), "the vote stays on the node until it expires");
            tokio::time::sleep(10 * MS).await;
        }
    }
}

/// Another client has two nodes. The third one grants, answers late, and is slow to release.
async fn split(nodes: &Nodes) {
    for node in [0, 1] {
        granted(&nodes.nodes[node], "other").await;
    }
    nodes.faults[2].next(Verb::Acquire, 1, Fault::none().delay_after(300 * MS));
    nodes.faults[2].next(Verb::Release, 1, Fault::none().delay_before(2 * SECOND));
}

#[test]
fn a_failed_attempt_is_undone_although_the_callers_runtime_ends() {
    let (home, caller) = (runtime(), runtime());
    let nodes = Nodes::new();
    let quorum = home.block_on(async { Quorum::new(nodes.stores.clone()).unwrap() });
    home.block_on(split(&nodes));
    let answer = caller.block_on(quorum.try_acquire(&[claim("a")])).unwrap().remove(0).unwrap();
    assert!(matches!(answer, Attempt::Busy { .. }));
    drop(caller);
    assert!(home.block_on(nodes.is_held(2)), "the withdrawal is in flight");
    home.block_on(nodes.until_free(2));
}

#[test]
fn an_attempt_that_is_dropped_with_its_runtime_is_undone_by_the_engine() {
    let (home, caller) = (runtime(), runtime());
    let nodes = Nodes::new();
    let quorum = home.block_on(async { Quorum::new(nodes.stores.clone()).unwrap() });
    let options = Options::new().expiry(60 * SECOND).unwrap();
    let locks = home
        .block_on(async { Locks::builder(Backend::lease(quorum.clone())).options(options).build().unwrap() });
    for faults in &nodes.faults {
        faults.next(Verb::Acquire, 1, Fault::none().delay_after(300 * MS));
    }
    let asking = locks.mutex("m").acquire();
    let asking = caller.spawn(asking.into_future());
    home.block_on(async {
        while !nodes.is_held(2).await {
            tokio::time::sleep(MS).await;
        }
    });
    drop(caller);
    assert!(home.block_on(asking).is_err_and(|error| error.is_cancelled()));
    for node in 0..3 {
        home.block_on(nodes.until_free(node));
    }
}

#[test]
fn a_quorum_outlives_the_runtime_that_it_was_created_on() {
    let nodes = Nodes::new();
    let quorum = Quorum::new(nodes.stores.clone()).unwrap();
    for id in ["a", "b", "c"] {
        let caller = runtime();
        caller.block_on(async {
            granted(&quorum, id).await;
            crate::support::release(&quorum, id).await.unwrap();
        });
        caller.shutdown_timeout(Duration::from_secs(1));
    }
}
