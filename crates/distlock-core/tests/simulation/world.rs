//! The state that all actors share: the time, the servers, the clients' processes and the observations.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use distlock_core::memory::MemoryStore;
use distlock_core::store::{LeaseStore, Query, Record, Store, Wake};
use distlock_core::{Clock, LockId, Moment, Resource};
use fastrand::Rng;
use futures_util::FutureExt;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::observations::Observations;
use crate::plan::{Outage, Plan};
use crate::planted::Planted;
use crate::trace::Trace;

/// A clock that follows the simulated time at its own rate and may jump.
#[derive(Clone)]
pub struct SimClock {
    now: Arc<AtomicU64>,
    rate: f64,
    ahead: Arc<AtomicI64>,
}

impl SimClock {
    pub fn new(now: &Arc<AtomicU64>, rate: f64) -> Self {
        // An hour after its origin, so that it can be moved back.
        SimClock { now: Arc::clone(now), rate, ahead: Arc::new(AtomicI64::new(3_600_000_000_000)) }
    }

    pub fn jump(&self, by: Duration, back: bool) {
        let by = by.as_nanos() as i64;
        self.ahead.fetch_add(if back { -by } else { by }, SeqCst);
    }
}

impl Clock for SimClock {
    fn now(&self) -> Moment {
        let elapsed = (self.now.load(SeqCst) as f64 * self.rate) as i64;
        Moment::from_nanos(u64::try_from(elapsed + self.ahead.load(SeqCst)).unwrap_or(0))
    }
}

impl fmt::Debug for SimClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimClock")
    }
}

/// One server: its clock, its memory store, and the store with the planted defect, if any.
pub struct Server {
    pub clock: SimClock,
    memory: Mutex<(MemoryStore, Option<Planted>)>,
    /// The highest token of its counter before it was lost.
    forgotten: AtomicU64,
    /// What a replica has got of it.
    replica: Mutex<Option<(MemoryStore, Option<Planted>)>>,
}

impl Server {
    fn new(clock: SimClock, plan: &Plan, sent: &Arc<AtomicU64>) -> Self {
        let memory = Mutex::new(Server::empty(&clock, plan, sent));
        Server { memory, forgotten: AtomicU64::new(0), replica: Mutex::default(), clock }
    }

    fn empty(clock: &SimClock, plan: &Plan, sent: &Arc<AtomicU64>) -> (MemoryStore, Option<Planted>) {
        let memory = MemoryStore::with_clock(Arc::new(clock.clone()));
        let memory = match plan.counter {
            Some(retention) => memory.with_one_counter(retention),
            None => memory,
        };
        let planted =
            plan.defect.map(|defect| Planted::new(memory.clone(), clock.clone(), defect, Arc::clone(sent)));
        (memory, planted)
    }

    pub fn store(&self) -> Arc<dyn LeaseStore> {
        match &*self.memory.lock().unwrap() {
            (memory, None) => Arc::new(memory.clone()),
            (_, Some(planted)) => Arc::new(planted.clone()),
        }
    }

    /// A wake-up at the moment of its delivery.
    pub fn delivered(&self, wake: Wake) -> Wake {
        match &self.memory.lock().unwrap().1 {
            None => wake,
            Some(planted) => planted.delivered(wake),
        }
    }

    pub fn memory(&self) -> MemoryStore {
        self.memory.lock().unwrap().0.clone()
    }

    /// Whether its token counter may be lost: its clock is past all tokens. A grant takes longer than a microsecond, and a
    /// fail-over or a restart much longer; but a clock that was set back may be behind.
    pub fn may_forget(&self) -> bool {
        let counter = self.memory().counter().unwrap_or(0);
        counter.max(self.forgotten.load(SeqCst)) < self.clock.now().as_nanos() / 1_000
    }

    /// Whether its clock may jump. It is set back only if its counter was not lost since the last grant, or if the clock stays
    /// past all tokens.
    pub fn may_jump(&self, by: Duration, back: bool) -> bool {
        if !back {
            self.remember_counter();
            return true;
        }
        let forgotten = self.forgotten.load(SeqCst);
        self.memory().counter().is_some_and(|counter| counter >= forgotten)
            || forgotten < self.clock.now().before(by).as_nanos() / 1_000
    }

    /// Before the counter is lost.
    fn remember_counter(&self) {
        self.forgotten.fetch_max(self.memory().counter().unwrap_or(0), SeqCst);
    }

    /// Loses the token counter.
    pub fn lose_counter(&self) {
        self.remember_counter();
        let memory = self.memory.lock().unwrap();
        memory.0.lose_counter();
        if let Some(planted) = &memory.1 {
            planted.lose_counter();
        }
    }

    /// Copies everything to the replica.
    pub fn replicate(&self) {
        let memory = self.memory.lock().unwrap();
        let copy = memory.0.copy();
        let planted = memory.1.as_ref().map(|planted| planted.copied_to(copy.clone()));
        *self.replica.lock().unwrap() = Some((copy, planted));
    }

    /// Goes on with what the replica has. False if there is none.
    pub fn fail_over(&self) -> bool {
        let Some(replica) = self.replica.lock().unwrap().take() else { return false };
        self.remember_counter();
        *self.memory.lock().unwrap() = replica;
        true
    }

    /// All records with holders or waiters.
    pub fn records(&self, query: &Query) -> Vec<Record> {
        self.memory().inspect(query).now_or_never().unwrap().unwrap()
    }
}

/// The process of a client, as the simulation controls it.
#[derive(Debug, Default)]
pub struct Process {
    pub slot: usize,
    pub generation: usize,
    pub stalled: AtomicBool,
    /// While it is stalled, messages wait outside, and arrive after the timers that have fired.
    pub holds_messages: AtomicBool,
    pub resumed: Notify,
    /// Killed: it has no effect any more.
    pub dead: AtomicBool,
    /// Its runtime has ended.
    pub ended: AtomicBool,
    pub shut_down: AtomicBool,
    /// A message for it arrived.
    pub has_message: AtomicBool,
}

impl Process {
    pub fn is_stalled(&self) -> bool {
        self.stalled.load(SeqCst)
    }

    pub fn is_dead(&self) -> bool {
        self.dead.load(SeqCst)
    }

    /// Whether its engine may still run.
    pub fn works(&self) -> bool {
        !self.is_dead() && !self.ended.load(SeqCst)
    }

    /// Waits until a message may be delivered.
    pub async fn enter(&self) {
        while self.is_stalled() && self.holds_messages.load(SeqCst) {
            self.resumed.notified().await;
        }
        self.has_message.store(true, SeqCst);
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "c{}.{}", self.slot, self.generation)
    }
}

/// The outages of one client's links, by node: until when, and how.
type Links = Vec<Option<(Duration, Outage)>>;

pub struct World {
    pub plan: Plan,
    pub now: Arc<AtomicU64>,
    pub main: Handle,
    pub servers: Vec<Server>,
    /// When the request that a server is applying was sent, by that server's clock.
    pub sent: Arc<AtomicU64>,
    pub rng: Mutex<Rng>,
    /// The outages of all links.
    pub outages: Mutex<Vec<Links>>,
    /// The main runtime has ready tasks.
    pub main_work: AtomicBool,
    /// No more faults.
    pub healed: AtomicBool,
    /// Users begin no new operation, and end the current one.
    pub stop: CancellationToken,
    pub trace: Mutex<Trace>,
    observed: Mutex<Observations>,
}

impl World {
    pub fn new(seed: u64, plan: Plan, main: Handle, trace: Trace) -> Arc<Self> {
        let mut rng = Rng::with_seed(seed ^ 0x5eed);
        let (now, sent) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let servers = (0..plan.nodes)
            .map(|_| {
                let clock = SimClock::new(&now, 1.0 + (rng.f64() - 0.5) * 0.006);
                if plan.nodes > 1 && rng.bool() {
                    clock.jump(Duration::from_millis(rng.u64(0..600_000)), false);
                }
                Server::new(clock, &plan, &sent)
            })
            .collect();
        Arc::new(World {
            outages: Mutex::new(vec![vec![None; plan.nodes]; plan.clients]),
            observed: Mutex::new(Observations::new(&plan)),
            plan,
            now,
            main,
            servers,
            sent,
            rng: Mutex::new(rng),
            main_work: AtomicBool::new(false),
            healed: AtomicBool::new(false),
            stop: CancellationToken::new(),
            trace: Mutex::new(trace),
        })
    }

    pub fn time(&self) -> Duration {
        Duration::from_nanos(self.now.load(SeqCst))
    }

    pub fn rng(&self) -> MutexGuard<'_, Rng> {
        self.rng.lock().unwrap()
    }

    pub fn observed(&self) -> MutexGuard<'_, Observations> {
        self.observed.lock().unwrap()
    }

    /// Writes a line, if the trace is kept.
    pub fn note(&self, line: impl FnOnce() -> String) {
        let mut trace = self.trace.lock().unwrap();
        if trace.is_kept() {
            trace.line(self.time(), &line());
        }
    }

    pub fn violated(&self, rule: &'static str, text: String) {
        self.trace.lock().unwrap().violated(self.time(), rule, text);
    }

    pub fn is_over(&self) -> bool {
        self.trace.lock().unwrap().violation.is_some()
    }

    pub fn is_healed(&self) -> bool {
        self.healed.load(SeqCst)
    }

    pub fn restart(&self, node: usize) {
        let server = &self.servers[node];
        server.remember_counter();
        *server.memory.lock().unwrap() = Server::empty(&server.clock, &self.plan, &self.sent);
    }

    pub fn majority(&self) -> usize {
        self.plan.nodes / 2 + 1
    }

    /// On how many nodes, except one, a lock id holds for at least this much longer.
    pub fn votes(&self, resource: &Resource, lock_id: &LockId, left: Duration, without: usize) -> usize {
        let ours = |text: &str| {
            text.strip_prefix(lock_id.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('~'))
        };
        let others = self.servers.iter().enumerate().filter(|(node, _)| *node != without);
        others
            .filter(|(_, server)| {
                let records = server.records(&Query::named(resource.name()));
                let mut holders =
                    records.iter().filter(|record| record.kind == resource.kind()).flat_map(|r| &r.holders);
                holders.any(|holder| {
                    ours(holder.lock_id.as_str()) && holder.expires_in >= Some(left.mul_f64(1.01))
                })
            })
            .count()
    }

    /// Whether a resource has a holder, by the servers' records.
    pub fn is_held(&self, resource: &Resource) -> bool {
        self.servers.iter().any(|server| {
            let records = server.records(&Query::named(resource.name()));
            records.iter().any(|record| record.kind == resource.kind() && !record.holders.is_empty())
        })
    }

    /// Whether a resource has a holder or a waiter, by the servers' records.
    pub fn is_in_use(&self, resource: &Resource) -> bool {
        self.servers.iter().any(|server| {
            let records = server.records(&Query::named(resource.name()));
            records.iter().any(|record| record.kind == resource.kind())
        })
    }
}
