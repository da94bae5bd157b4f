//! A store made of stores: what a majority of independent nodes grants is granted.
//!
//! Redlock is this over Redis servers; nothing in it is about Redis. [`Quorum`] says what it promises.

mod acquire;
mod admin;
mod error;
mod generation;
mod node;
mod options;
mod release;
mod renew;
mod round;
mod runtime;
mod tokens;
mod wakes;
mod withdraw;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

pub use options::QuorumOptions;

use self::generation::Generations;
use self::node::Node;
use self::runtime::QuorumRuntime;
use crate::error::{Error, ErrorKind, Result};
use crate::resource::{Kind, Resource};
use crate::store::{
    Attempt, Batch, Capabilities, Claim, Fairness, Finding, Holder, Inbox, Lease, LeaseStore, Query, Record,
    Released, Renewal, Store, WakeStream,
};

/// Independent lease stores as one: a lease is granted if a majority of them grants it, and it goes on as long as a
/// majority extends it. So it can do without any minority: one node of three, two of five.
///
/// ```
/// use std::sync::Arc;
/// use distlock_core::memory::MemoryStore;
/// use distlock_core::quorum::Quorum;
/// use distlock_core::store::{LeaseStore, Store};
///
/// # fn main() -> distlock_core::Result<()> {
/// let nodes = (0..3).map(|_| Arc::new(MemoryStore::new()) as Arc<dyn LeaseStore>).collect();
/// let quorum = Quorum::new(nodes)?;
/// assert!(quorum.capabilities().rw_lock && !quorum.capabilities().semaphore);
/// # Ok(()) }
/// ```
///
/// # How
/// - **Acquire** asks all nodes at once and needs a majority of *all* nodes, not of those that answer. It returns
///   as soon as that is had; a node that answers later is welcome, and one that is needed is waited for. Otherwise every vote is taken back, those
///   included that come late or whose answer was lost, and nodes that fail to give back are asked until they do.
///   The answer is *busy* if a majority answered, and an error that names the nodes if not.
/// - **Renew** needs a majority of all nodes again. It takes nothing and gives nothing back, whatever comes of it.
///   Nodes that do not have a lease which a majority has just extended are then asked for it in the background
///   ([`QuorumOptions::repair`]); such a vote counts from the next renewal on.
/// - **Release** tells all nodes and returns when a majority confirmed.
/// - **Tokens** are the largest of a majority, and a majority knows them before the grant is returned.
///
/// # What is promised
/// While fewer than a majority of the nodes are *without memory* of a resource, no two hold what excludes each other,
/// and every token is higher than those granted before, whatever the nodes' clocks show, however late or often
/// messages come, and whoever crashes. Without memory of a lease are the nodes that
///
/// - did not have it when it was granted or last renewed: they were down or slow, or a rival had their vote; or
/// - forgot it since: they were restarted and came back empty, or their clock jumped ahead so that it expired early.
///
/// For the token of a lease that has ended, it is those that never knew it or forgot it. On a calm day all nodes have
/// a lease and its token, and any minority may forget at once; with repair, a lock that is held survives the restart
/// of every node one after the other, if a renewal lies between. Clocks may differ by anything as to the time of
/// day, but should run at the same speed within one per cent: that is the engine's margin.
///
/// # What is not
/// If more forget than that, two may hold until the next renewal of the first, which finds out. So let nodes
/// persist what they granted before they answer, or keep a node that was restarted empty away for longer than the
/// longest expiry. Tokens then still rise if the nodes' clocks agree to within the time that passed between the two
/// grants, since each token is at least the clock of its node in milliseconds.
///
/// Readers that are granted at the same time may share a token; a writer's is higher than all before it.
///
/// Semaphores are refused: three majorities need not share a node. So are fair locks: the nodes' queues differ.
/// A waiting writer may be overtaken by readers.
///
/// # Cancel safety
/// As with every [`LeaseStore`], calls should be driven to their end: dropping a `try_acquire` half-way may leave
/// votes on nodes until they expire, or until the lock id is released. The engine sees to that.
///
/// # Runtimes
/// What goes on in the background lives on the runtime that the quorum was made on: votes of a failed attempt are taken
/// back though the runtime of its caller ends. A quorum made outside a runtime settles on the first one that uses it, and
/// on another one when that has ended.
#[derive(Clone)]
pub struct Quorum(Arc<QuorumInner>);

struct QuorumInner {
    nodes: Vec<Node>,
    majority: usize,
    options: QuorumOptions,
    generations: Generations,
    home: QuorumRuntime,
    capabilities: Capabilities,
    max_batch: usize,
}

impl Quorum {
    /// A quorum of these nodes with the default options.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if there are no nodes, or one is there twice.
    pub fn new(nodes: Vec<Arc<dyn LeaseStore>>) -> Result<Self> {
        Quorum::with_options(nodes, QuorumOptions::default())
    }

    /// A quorum of these nodes. All who share its locks must use the same nodes.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if there are no nodes, or one is there twice.
    pub fn with_options(nodes: Vec<Arc<dyn LeaseStore>>, options: QuorumOptions) -> Result<Self> {
        let refused = |what: &'static str| {
            Err(Error::new(ErrorKind::InvalidInput, what).advise("give three or five different nodes"))
        };
        if nodes.is_empty() {
            return refused("a quorum has no nodes");
        }
        let twice =
            |(at, node): (usize, &Arc<dyn LeaseStore>)| nodes[..at].iter().any(|n| Arc::ptr_eq(n, node));
        if nodes.iter().enumerate().any(twice) {
            return refused("a node of a quorum is there twice: its two votes would be one");
        }
        let capabilities = merge_capabilities(&nodes);
        Ok(Quorum(Arc::new(QuorumInner {
            majority: nodes.len() / 2 + 1,
            nodes: (1..).zip(nodes).map(|(number, store)| Node::new(number, store)).collect(),
            options,
            generations: Generations::new(),
            home: QuorumRuntime::new(),
            max_batch: capabilities.max_batch.max(1),
            capabilities,
        })))
    }
}

/// What all nodes can do and what survives being spread over them.
fn merge_capabilities(nodes: &[Arc<dyn LeaseStore>]) -> Capabilities {
    let each: Vec<Capabilities> = nodes.iter().map(|node| node.capabilities()).collect();
    let majority = nodes.len() / 2 + 1;
    Capabilities {
        rw_lock: each.iter().all(|node| node.rw_lock),
        semaphore: false,
        fairness: Fairness::None,
        writer_not_starved: false,
        // So many that every majority, and so every holder's, has one that can wake.
        push: each.iter().filter(|node| !node.push).count() < majority,
        forced_release: each.iter().all(|node| node.forced_release),
        // Those who wait for a mutex are shown; those who wait for a reader-writer lock are in no queue.
        shows_waiters: false,
        frees_on_crash: each.iter().all(|node| node.frees_on_crash),
        durable: each.iter().all(|node| node.durable),
        max_batch: each.iter().map(|node| node.max_batch).min().unwrap_or(1),
        // Each has votes to count and perhaps to take back from every node.
        max_in_flight: 1,
        reasons: &[
            (
                "semaphores",
                "two majorities share a node, three need not: two permits on three nodes can admit three",
            ),
            ("fair mutexes", "the nodes' queues differ, and no majority agrees on who is first"),
            ("reader-writer locks", "one of the nodes does not have them"),
        ],
    }
}

/// After this long without an answer a release in the background counts as failed, and is sent again.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a node is waited for without which there is no majority: less than a caller usually waits, so that the error
/// can say which nodes did not answer.
const NEEDED: Duration = Duration::from_secs(4);

impl QuorumInner {
    fn patience(&self) -> Duration {
        PATIENCE.max(self.options.node_timeout)
    }

    fn longest(&self) -> Duration {
        NEEDED.max(self.options.node_timeout)
    }

    /// The error for kinds that a quorum cannot carry.
    fn refuse(&self, kind: Kind) -> Option<Error> {
        let what = match kind {
            _ if self.capabilities.has(kind) => return None,
            Kind::Semaphore => "semaphores",
            Kind::FairQueue => "fair mutexes",
            _ => "reader-writer locks",
        };
        Some(self.capabilities.unsupported(what))
    }
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quorum").field("nodes", &self.0.nodes).finish_non_exhaustive()
    }
}

impl fmt::Debug for QuorumInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuorumInner").field("nodes", &self.nodes.len()).finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for Quorum {
    fn describe(&self) -> String {
        let nodes: Vec<String> = self.0.nodes.iter().map(|node| node.store.describe()).collect();
        format!("quorum of {} ({})", nodes.len(), nodes.join(", "))
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities.clone()
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Record>> {
        admin::inspect(&self.0, query).await
    }

    async fn break_lock(&self, resource: &Resource) -> Result<Vec<Holder>> {
        admin::break_lock(&self.0, resource).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        admin::doctor(&self.0).await
    }
}

#[async_trait]
impl LeaseStore for Quorum {
    async fn try_acquire(&self, claims: &[Claim]) -> Batch<Attempt> {
        let Some(home) = self.0.home.other_than_current() else {
            return acquire::try_acquire(&self.0, claims).await;
        };
        let (inner, claims) = (Arc::clone(&self.0), claims.to_vec());
        home.run(async move { acquire::try_acquire(&inner, &claims).await }).await
    }

    async fn renew(&self, leases: &[Lease]) -> Batch<Renewal> {
        let Some(home) = self.0.home.other_than_current() else { return renew::renew(&self.0, leases).await };
        let (inner, leases) = (Arc::clone(&self.0), leases.to_vec());
        home.run(async move { renew::renew(&inner, &leases).await }).await
    }

    async fn release(&self, leases: &[Lease]) -> Batch<Released> {
        let Some(home) = self.0.home.other_than_current() else {
            return release::release(&self.0, leases).await;
        };
        let (inner, leases) = (Arc::clone(&self.0), leases.to_vec());
        home.run(async move { release::release(&inner, &leases).await }).await
    }

    async fn subscribe(&self, inbox: &Inbox) -> Result<WakeStream> {
        wakes::subscribe(&self.0, inbox).await
    }
}
