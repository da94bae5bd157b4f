//! The nodes, their true state, and the rules: which client may hold at which time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use distlock_core::faults::{Faults, FaultyStore};
use distlock_core::memory::MemoryStore;
use distlock_core::store::{LeaseStore, Query, Store};
use distlock_core::{Clock, FencingToken, Kind, LockId, Moment, Resource};
use futures_util::FutureExt;
use tokio::time::Instant;

/// A server's clock: offset from the others, a little faster or slower, and it may jump.
#[derive(Clone, Debug)]
pub struct ServerClock(Arc<Mutex<(Instant, f64, Duration)>>);

impl ServerClock {
    fn new(start: Instant, rate: f64, ahead: Duration) -> Self {
        ServerClock(Arc::new(Mutex::new((start, rate, ahead))))
    }

    pub fn jump(&self, by: Duration) {
        self.0.lock().unwrap().2 += by;
    }

    pub fn jump_back(&self, by: Duration) {
        let mut clock = self.0.lock().unwrap();
        clock.2 = clock.2.saturating_sub(by);
    }
}

impl Clock for ServerClock {
    fn now(&self) -> Moment {
        let clock = self.0.lock().unwrap();
        Moment::from_origin(clock.0.elapsed().mul_f64(clock.1) + clock.2)
    }
}

pub struct Node {
    pub clock: ServerClock,
    pub memory: MemoryStore,
    pub faults: Faults,
    pub store: Arc<dyn LeaseStore>,
}

/// A client that holds, by its own knowledge.
#[derive(Debug)]
struct Belief {
    client: usize,
    lock_id: LockId,
    exclusive: bool,
    until: Instant,
}

struct Truth {
    beliefs: Vec<Belief>,
    /// The highest token that was granted to any client, and to a writer.
    highest: Option<FencingToken>,
    highest_exclusive: Option<FencingToken>,
    /// When a node last lost its records or its leases.
    last_loss: Option<Instant>,
    log: Vec<String>,
    violation: Option<String>,
    /// More was lost than the quorum tolerates: the rest of the schedule proves nothing.
    void: bool,
    pub grants: u64,
}

pub struct World {
    pub nodes: Mutex<Vec<Node>>,
    pub resource: Resource,
    /// Check the nodes' records too, and not only the clients' holds.
    strict: bool,
    start: Instant,
    truth: Mutex<Truth>,
}

/// The result of a schedule.
#[derive(Debug)]
pub struct Verdict {
    pub violation: Option<String>,
    pub void: bool,
    pub grants: u64,
    pub log: Vec<String>,
}

impl World {
    pub fn new(rng: &mut fastrand::Rng, count: usize, kind: Kind, skew: Duration, strict: bool) -> Self {
        let start = Instant::now();
        let node = |rng: &mut fastrand::Rng| {
            let rate = 1.0 + (rng.f64() - 0.5) / 100.0;
            let clock = ServerClock::new(start, rate, Duration::from_secs(3600) + skew.mul_f64(rng.f64()));
            let memory = MemoryStore::with_clock(Arc::new(clock.clone()));
            let (store, faults) = FaultyStore::new(Arc::new(memory.clone()));
            Node { clock, memory, faults, store: Arc::new(store) }
        };
        World {
            nodes: Mutex::new((0..count).map(|_| node(rng)).collect()),
            resource: Resource::new(kind, "m").unwrap(),
            strict,
            start,
            truth: Mutex::new(Truth {
                beliefs: Vec::new(),
                highest: None,
                highest_exclusive: None,
                last_loss: None,
                log: Vec::new(),
                violation: None,
                void: false,
                grants: 0,
            }),
        }
    }

    pub fn nodes(&self) -> MutexGuard<'_, Vec<Node>> {
        self.nodes.lock().unwrap()
    }

    pub fn stores(&self) -> Vec<Arc<dyn LeaseStore>> {
        self.nodes().iter().map(|node| node.store.clone()).collect()
    }

    fn majority(&self) -> usize {
        self.nodes().len() / 2 + 1
    }

    fn truth(&self) -> MutexGuard<'_, Truth> {
        self.truth.lock().unwrap()
    }

    pub fn log(&self, line: String) {
        let at = self.start.elapsed().as_secs_f64();
        self.truth().log.push(format!("{at:8.3} {line}"));
    }

    pub fn over(&self) -> bool {
        let truth = self.truth();
        truth.violation.is_some() || truth.void
    }

    pub fn verdict(&self) -> Verdict {
        let mut truth = self.truth();
        Verdict {
            violation: truth.violation.take(),
            void: truth.void,
            grants: truth.grants,
            log: std::mem::take(&mut truth.log),
        }
    }

    fn violated(&self, what: String) {
        self.log(format!("VIOLATION {what}"));
        self.truth().violation.get_or_insert(what);
    }

    /// How many nodes, except `without`, have a vote of this lock id that lasts until the given time.
    fn votes(&self, lock_id: &LockId, until: Instant, without: Option<usize>) -> usize {
        let theirs = |text: &str| {
            text == lock_id.as_str()
                || text.strip_prefix(lock_id.as_str()).is_some_and(|rest| rest.starts_with('~'))
        };
        // Some clocks are half a per cent fast.
        let left = until.saturating_duration_since(Instant::now()).mul_f64(1.005);
        let nodes = self.nodes();
        let mut votes: HashMap<String, usize> = HashMap::new();
        for (_, node) in nodes.iter().enumerate().filter(|(at, _)| Some(*at) != without) {
            let query = Query::named(self.resource.name());
            let records = node.memory.inspect(&query).now_or_never().unwrap().unwrap();
            for holder in records.iter().flat_map(|record| &record.holders) {
                if theirs(holder.lock_id.as_str()) && holder.expires_in >= Some(left) {
                    *votes.entry(holder.lock_id.to_string()).or_default() += 1;
                }
            }
        }
        // A vote of an earlier generation is about to be withdrawn and does not count.
        votes.into_values().max().unwrap_or(0)
    }

    /// How many nodes, except `without`, know this token.
    fn know(&self, token: FencingToken, without: Option<usize>) -> usize {
        let nodes = self.nodes();
        let others = nodes.iter().enumerate().filter(|(at, _)| Some(*at) != without);
        others.filter(|(_, node)| node.memory.last_token(&self.resource) >= Some(token)).count()
    }

    /// Whether a node may lose its leases, and its records too, within what is tolerated: every holder has a majority without
    /// it, and so has the last token.
    pub fn may_lose(&self, node: usize, memory_too: bool) -> bool {
        let majority = self.majority();
        let truth = self.truth();
        let now = Instant::now();
        if truth.last_loss.is_some_and(|at| at.elapsed() < Duration::from_millis(600)) {
            return false;
        }
        let mut live = truth.beliefs.iter().filter(|belief| belief.until > now);
        live.all(|belief| self.votes(&belief.lock_id, belief.until, Some(node)) >= majority)
            && (!memory_too || truth.highest.is_none_or(|token| self.know(token, Some(node)) >= majority))
    }

    pub fn lost(&self) {
        self.truth().last_loss = Some(Instant::now());
    }

    /// Records a grant to a request that was sent at `sent`: the client holds until `until`.
    pub fn granted(
        &self,
        client: usize,
        lock_id: &LockId,
        token: FencingToken,
        exclusive: bool,
        sent: Instant,
        until: Instant,
    ) {
        let know = self.know(token, None);
        let votes = self.votes(lock_id, until, None);
        self.log(format!(
            "client {client} holds {lock_id} token {token}, asked {:?} ago, {votes} votes, {know} know",
            sent.elapsed()
        ));
        let now = Instant::now();
        let mut problem = None;
        {
            let mut truth = self.truth();
            if truth.void {
                return;
            }
            truth.grants += 1;
            let other_client = truth.beliefs.iter().find(|belief| {
                belief.until > now && belief.client != client && (belief.exclusive || exclusive)
            });
            if let Some(other_client) = other_client {
                problem = Some(format!("client {client} holds while client {} does", other_client.client));
            }
            // Concurrent readers may share a token; a writer's token is its own.
            let before = if exclusive { truth.highest } else { truth.highest_exclusive };
            if before >= Some(token) {
                problem = Some(format!("token {token} after {before:?}"));
            }
            let disturbed = truth.last_loss.is_some_and(|at| at >= sent);
            if know.min(votes) < self.majority() && problem.is_none() {
                if disturbed {
                    truth.void = true;
                } else if self.strict {
                    problem = Some(format!("{votes} nodes have the vote and {know} know token {token}"));
                }
            }
            truth.highest = truth.highest.max(Some(token));
            if exclusive {
                truth.highest_exclusive = truth.highest_exclusive.max(Some(token));
            }
            truth.beliefs.retain(|belief| belief.until > now && belief.client != client);
            truth.beliefs.push(Belief { client, lock_id: lock_id.clone(), exclusive, until });
        }
        if let Some(problem) = problem {
            self.violated(problem);
        }
    }

    /// Asserts that no node has a holder.
    pub fn must_be_free(&self) {
        let memories: Vec<MemoryStore> = self.nodes().iter().map(|node| node.memory.clone()).collect();
        for (at, memory) in memories.iter().enumerate() {
            let records = memory.inspect(&Query::default()).now_or_never().unwrap().unwrap();
            if let Some(holder) = records.iter().flat_map(|record| &record.holders).next() {
                self.violated(format!("{} is left on node {at}", holder.lock_id));
            }
        }
    }

    /// Records a confirmed renewal that was sent at `sent`: the client holds until `until`.
    pub fn renewed(&self, client: usize, lock_id: &LockId, sent: Instant, until: Instant) {
        let votes = self.votes(lock_id, until, None);
        let mut problem = None;
        {
            let mut truth = self.truth();
            if truth.void {
                return;
            }
            let disturbed = truth.last_loss.is_some_and(|at| at >= sent);
            if votes < self.majority() && disturbed {
                truth.void = true;
            } else if votes < self.majority() && self.strict {
                problem = Some(format!("client {client} renewed with {votes} votes"));
            }
            for belief in truth.beliefs.iter_mut().filter(|belief| belief.client == client) {
                belief.until = belief.until.max(until);
            }
        }
        if let Some(problem) = problem {
            self.violated(problem);
        }
    }

    pub fn ended(&self, client: usize) {
        self.truth().beliefs.retain(|belief| belief.client != client);
    }
}
