//! A lease store made of independent lease stores: a lock is granted if a majority of the nodes grants it.
//!
//! Redlock is a quorum of Redis servers; nothing here depends on Redis. [`Quorum`] states the guarantees.

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
use crate::resource::{Kind, MAX_PERMITS, Resource};
use crate::store::{
    Attempt, Batch, Capabilities, Claim, Fairness, Finding, Holder, Inbox, Lease, LeaseStore, Query, Record,
    Released, Renewal, Store, WakeStream,
};

/// Independent lease stores as one store: a lease is granted if a majority of the nodes grants it, and is held while a
/// majority renews it. It tolerates the failure of any minority: one node of three, two of five.
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
/// # Operations
/// - **Acquire** asks all nodes at once and needs a majority of *all* nodes, not of those that answer. It returns as soon
///   as a majority has granted. It waits longer for a node that the majority needs, and keeps a vote that arrives later.
///   Without a majority every vote is withdrawn, including late votes and votes whose reply was lost, and nodes that fail
///   to release are asked until they do. The answer is *busy* if a majority answered, and otherwise an error that names
///   the nodes.
/// - **Renew** needs a majority of all nodes again. It never acquires or releases anything. Nodes that lack a lease that a
///   majority has just renewed are then asked to take it, in the background ([`QuorumOptions::repair`]). Such a vote
///   counts from the next renewal on.
/// - **Release** asks all nodes and returns when a majority has confirmed.
/// - **Tokens** are the largest of a majority, and a majority knows them before the grant is returned.
///
/// # Guarantees
/// While fewer than a majority of the nodes *lack* a lease, no two conflicting holders exist, and every token is higher
/// than all earlier ones, whatever the nodes' clocks show, however late or often messages arrive, and whatever crashes.
/// A node lacks a lease if it
///
/// - did not have it when it was granted or last renewed: it was down or slow, or had voted for another client; or
/// - has forgotten it since: it restarted empty, or its clock jumped ahead so that the lease expired early.
///
/// For the token of a lease that has ended, these are the nodes that never knew the token or have forgotten it. Normally
/// all nodes have a lease and its token, and any minority may forget them at once. With repair, a held lock survives the
/// restart of every node, one after the other, if a renewal lies between two restarts. The nodes' time of day may differ
/// by any amount, but their clocks should run at the same speed within one per cent, which is the engine's margin.
///
/// # Limits
/// If more nodes forget a lease, there may be two holders until the next renewal of the first one, which detects it. So
/// let nodes persist a grant before they answer, or keep a node that restarted empty out for longer than the longest
/// expiry. Tokens then still rise if the nodes' clocks differ by less than the time between the two grants, since each
/// token is at least the clock of its node in milliseconds.
///
/// Readers that are granted at the same time may share a token. A writer's token is higher than all earlier ones.
///
/// Semaphores are not supported, because three majorities need not share a node. Fair locks are not supported, because
/// the nodes' queues differ. Readers may overtake a waiting writer.
///
/// # Cancel safety
/// As with every [`LeaseStore`], drive calls to completion: a dropped `try_acquire` may leave votes on nodes until they
/// expire or the lock id is released. The engine takes care of that.
///
/// # Runtimes
/// Background work runs on the runtime that the quorum was created on: votes of a failed attempt are withdrawn although
/// the caller's runtime ends. A quorum that was created outside a runtime uses the first one that calls it, and another
/// one when that has ended.
#[derive(Clone)]
pub struct Quorum(Arc<QuorumInner>);

struct QuorumInner {
    nodes: Vec<Node>,
    majority: usize,
    options: QuorumOptions,
    generations: Generations,
    runtime: QuorumRuntime,
    capabilities: Capabilities,
    max_batch: usize,
}

impl Quorum {
    /// A quorum of these nodes with the default options.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if there are no nodes, or one is listed twice.
    pub fn new(nodes: Vec<Arc<dyn LeaseStore>>) -> Result<Self> {
        Quorum::with_options(nodes, QuorumOptions::default())
    }

    /// A quorum of these nodes. All clients that share its locks must use the same nodes.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if there are no nodes, or one is listed twice.
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
            return refused("a node of the quorum is listed twice: its two votes would be one");
        }
        let capabilities = merge_capabilities(&nodes);
        Ok(Quorum(Arc::new(QuorumInner {
            majority: nodes.len() / 2 + 1,
            nodes: (1..).zip(nodes).map(|(number, store)| Node::new(number, store)).collect(),
            options,
            generations: Generations::new(),
            runtime: QuorumRuntime::new(),
            max_batch: capabilities.max_batch.max(1),
            capabilities,
        })))
    }
}

/// The capabilities that all nodes have and that hold over a quorum.
fn merge_capabilities(nodes: &[Arc<dyn LeaseStore>]) -> Capabilities {
    let each: Vec<Capabilities> = nodes.iter().map(|node| node.capabilities()).collect();
    let majority = nodes.len() / 2 + 1;
    Capabilities {
        rw_lock: each.iter().all(|node| node.rw_lock),
        semaphore: false,
        max_permits: MAX_PERMITS,
        fairness: Fairness::None,
        writer_not_starved: false,
        // Every majority, and so every holder's majority, contains a node that can push.
        push: each.iter().filter(|node| !node.push).count() < majority,
        forced_release: each.iter().all(|node| node.forced_release),
        // Waiters for a mutex are shown, but waiters for a reader-writer lock are in no queue.
        shows_waiters: false,
        frees_on_crash: each.iter().all(|node| node.frees_on_crash),
        minimum_hold: true,
        durable: each.iter().all(|node| node.durable),
        max_batch: each.iter().map(|node| node.max_batch).min().unwrap_or(1),
        // Each request counts votes, and may have to withdraw them from every node.
        max_in_flight: 1,
        max_batches_in_flight: 1,
        reasons: &[
            (
                "semaphores",
                "two majorities share a node, three need not: two permits on three nodes can admit three",
            ),
            ("fair mutexes", "the nodes' queues differ, so no majority agrees on the first waiter"),
            ("reader-writer locks", "one of the nodes does not have them"),
        ],
    }
}

/// After this long without an answer a background release counts as failed, and is sent again.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long to wait for a node that the majority needs: less than a caller usually waits, so that the error can name the
/// nodes that did not answer.
const NEEDED_NODE_TIMEOUT: Duration = Duration::from_secs(4);

impl QuorumInner {
    fn release_timeout(&self) -> Duration {
        RELEASE_TIMEOUT.max(self.options.node_timeout)
    }

    fn needed_node_timeout(&self) -> Duration {
        NEEDED_NODE_TIMEOUT.max(self.options.node_timeout)
    }

    /// The error for kinds that a quorum does not support.
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
        let Some(runtime) = self.0.runtime.other_than_current() else {
            return acquire::try_acquire(&self.0, claims).await;
        };
        let (inner, claims) = (Arc::clone(&self.0), claims.to_vec());
        runtime.run(async move { acquire::try_acquire(&inner, &claims).await }).await
    }

    async fn renew(&self, leases: &[Lease]) -> Batch<Renewal> {
        let Some(runtime) = self.0.runtime.other_than_current() else {
            return renew::renew(&self.0, leases).await;
        };
        let (inner, leases) = (Arc::clone(&self.0), leases.to_vec());
        runtime.run(async move { renew::renew(&inner, &leases).await }).await
    }

    async fn release(&self, leases: &[Lease]) -> Batch<Released> {
        let Some(runtime) = self.0.runtime.other_than_current() else {
            return release::release(&self.0, leases).await;
        };
        let (inner, leases) = (Arc::clone(&self.0), leases.to_vec());
        runtime.run(async move { release::release(&inner, &leases).await }).await
    }

    async fn subscribe(&self, inbox: &Inbox) -> Result<WakeStream> {
        wakes::subscribe(&self.0, inbox).await
    }
}
