//! Memory stores with faults, each with a clock of its own, and a quorum of them.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::panic)] // each test file uses a part of it

use std::sync::Arc;
use std::time::Duration;

use distlock_core::faults::{Faults, FaultyStore};
use distlock_core::memory::MemoryStore;
use distlock_core::quorum::{Quorum, QuorumOptions};
use distlock_core::store::{
    Attempt, Claim, Holder, Inbox, Lease, LeaseStore, Query, Released, Renewal, Store, Waiting,
};
use distlock_core::{Clock, FencingToken, Kind, LockId, Resource, Result, VirtualClock, WRITER_WEIGHT};

pub const MS: Duration = Duration::from_millis(1);
pub const SECOND: Duration = Duration::from_secs(1);
pub const EXPIRY: Duration = Duration::from_secs(10);
/// The default node time-out.
pub const TIMEOUT: Duration = Duration::from_millis(50);
/// How long the quorum waits for a node that the majority needs.
pub const NEEDED: Duration = Duration::from_secs(4);

pub struct Fleet {
    pub clocks: Vec<VirtualClock>,
    pub faults: Vec<Faults>,
    /// The nodes without their faults.
    pub nodes: Vec<MemoryStore>,
    pub stores: Vec<Arc<dyn LeaseStore>>,
}

impl Fleet {
    pub fn new(nodes: usize) -> Self {
        let mut fleet =
            Fleet { clocks: Vec::new(), faults: Vec::new(), nodes: Vec::new(), stores: Vec::new() };
        for _ in 0..nodes {
            let clock = VirtualClock::new();
            let memory = MemoryStore::with_clock(Arc::new(clock.clone()));
            let (store, faults) = FaultyStore::new(Arc::new(memory.clone()));
            fleet.clocks.push(clock);
            fleet.nodes.push(memory);
            fleet.faults.push(faults);
            fleet.stores.push(Arc::new(store));
        }
        fleet
    }

    pub fn quorum(&self) -> Quorum {
        self.quorum_with(|options| options)
    }

    pub fn quorum_with(&self, options: impl FnOnce(QuorumOptions) -> QuorumOptions) -> Quorum {
        let clock: Arc<dyn Clock> = Arc::new(VirtualClock::new());
        Quorum::with_options(self.stores.clone(), options(QuorumOptions::new().clock(clock))).unwrap()
    }

    pub fn down(&self, nodes: &[usize]) {
        for node in nodes {
            self.faults[*node].set_down(true);
        }
    }

    pub fn up(&self, nodes: &[usize]) {
        for node in nodes {
            self.faults[*node].heal();
        }
    }

    /// The node restarts empty.
    pub fn forget(&mut self, node: usize) {
        let empty = MemoryStore::with_clock(Arc::new(self.clocks[node].clone()));
        self.faults[node].replace(Arc::new(empty.clone()));
        self.nodes[node] = empty;
    }

    /// The holder of the mutex `m` on a node, read without its faults.
    pub async fn holder(&self, node: usize) -> Option<Holder> {
        let mut records = self.nodes[node].inspect(&Query::named("m")).await.unwrap();
        records.pop().and_then(|mut record| record.holders.pop())
    }

    /// On how many nodes this lock id, in any generation, holds the mutex `m`.
    pub async fn votes(&self, id: &str) -> usize {
        let mut votes = 0;
        for node in 0..self.nodes.len() {
            let holder = self.holder(node).await;
            votes += usize::from(holder.is_some_and(|holder| {
                let text = holder.lock_id.as_str();
                text == id || text.strip_prefix(id).is_some_and(|rest| rest.starts_with('~'))
            }));
        }
        votes
    }
}

pub fn claim(id: &str) -> Claim {
    Claim::new(Resource::new(Kind::Mutex, "m").unwrap(), LockId::from_stored(id), EXPIRY)
}

/// A claim that leaves an entry in the nodes' queues.
pub fn waiting(id: &str) -> Claim {
    let mut claim = claim(id);
    claim.waiting = Some(Waiting::new(Inbox::new("box"), 600 * SECOND, 1));
    claim
}

/// The claim of a writer for the reader-writer lock `m`.
pub fn writer(id: &str) -> Claim {
    let mut claim = waiting(id);
    claim.resource = Resource::new(Kind::RwLock, "m").unwrap();
    (claim.weight, claim.capacity) = (WRITER_WEIGHT, WRITER_WEIGHT);
    claim
}

pub fn lease(id: &str, token: FencingToken) -> Lease {
    Lease::of(&claim(id), token)
}

pub async fn ask(store: &dyn LeaseStore, claim: Claim) -> Result<Attempt> {
    store.try_acquire(&[claim]).await.unwrap().remove(0)
}

pub async fn granted(store: &dyn LeaseStore, id: &str) -> FencingToken {
    match ask(store, claim(id)).await {
        Ok(Attempt::Granted { token, .. }) => token,
        other => panic!("{id}: {other:?}"),
    }
}

pub async fn busy(store: &dyn LeaseStore, id: &str) -> Option<Duration> {
    match ask(store, claim(id)).await {
        Ok(Attempt::Busy { retry_after, .. }) => retry_after,
        other => panic!("{id}: {other:?}"),
    }
}

pub async fn renew(store: &dyn LeaseStore, id: &str, token: FencingToken) -> Result<Renewal> {
    store.renew(&[lease(id, token)]).await.unwrap().remove(0)
}

pub async fn release(store: &dyn LeaseStore, id: &str) -> Result<Released> {
    store.release(&[lease(id, FencingToken::new(0))]).await.unwrap().remove(0)
}

/// Waits so long that all background work completes.
pub async fn rest(duration: Duration) {
    tokio::time::sleep(duration).await;
}
