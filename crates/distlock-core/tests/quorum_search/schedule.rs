//! One random schedule: clients, faults and time, all from one seed.

use std::sync::Arc;
use std::time::Duration;

use distlock_core::faults::{Fault, Verb};
use distlock_core::memory::MemoryStore;
use distlock_core::store::{Attempt, Claim, Inbox, Lease, LeaseStore, Renewal, Waiting};
use distlock_core::{Kind, LockId, WRITER_WEIGHT};
use tokio::time::{Instant, sleep};

use crate::world::{Verdict, World};

const EXPIRY: Duration = Duration::from_secs(1);
/// So long that nothing expires within a schedule.
const LONG_EXPIRY: Duration = Duration::from_secs(200);
const LENGTH: Duration = Duration::from_secs(5);

/// Which faults a schedule may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Losses {
    /// No more than the quorum tolerates.
    Bearable,
    /// Any.
    Unbounded,
}

pub type Build = fn(&World) -> Arc<dyn LeaseStore>;

#[derive(Clone, Copy)]
pub struct Plan {
    pub build: Build,
    pub losses: Losses,
    pub kind: Kind,
    /// Check the nodes' records too, and not only the clients' holds.
    pub strict: bool,
    /// All clients release in the end, nothing expires, and nothing may be left.
    pub leaks: bool,
}

impl Plan {
    fn expiry(&self) -> Duration {
        if self.leaks { LONG_EXPIRY } else { EXPIRY }
    }

    /// Until when a client holds: with the engine's margin of one per cent and two milliseconds.
    fn believed(&self, sent: Instant) -> Instant {
        sent + self.expiry() - self.expiry() / 100 - Duration::from_millis(2)
    }
}

/// Runs the schedule of a seed on a runtime of its own, in virtual time.
pub fn run(seed: u64, plan: Plan) -> Verdict {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    // The pause after split votes is random too.
    fastrand::seed(seed);
    runtime.block_on(async {
        let mut rng = fastrand::Rng::with_seed(seed);
        let nodes = if rng.bool() { 3 } else { 5 };
        let skew = if rng.bool() { Duration::from_secs(3000) } else { Duration::from_millis(20) };
        let world = Arc::new(World::new(&mut rng, nodes, plan.kind, skew, plan.strict));
        let clients: Vec<_> = (0..rng.usize(2..=4))
            .map(|client| {
                let client = Client { number: client, world: world.clone(), plan, rng: rng.fork(), next: 0 };
                tokio::spawn(client.live())
            })
            .collect();
        let faulting = tokio::spawn(inject_faults(world.clone(), rng.fork(), plan.losses));
        faulting.await.unwrap();
        for client in clients {
            client.await.unwrap();
        }
        if plan.leaks {
            sleep(Duration::from_secs(15)).await;
            world.must_be_free();
        }
        world.verdict()
    })
}

fn going_on(world: &World, start: Instant) -> bool {
    start.elapsed() < LENGTH && !world.over()
}

struct Client {
    number: usize,
    world: Arc<World>,
    plan: Plan,
    rng: fastrand::Rng,
    next: u32,
}

impl Client {
    async fn live(mut self) {
        let start = Instant::now();
        let mut store = (self.plan.build)(&self.world);
        while going_on(&self.world, start) {
            sleep(millis(&mut self.rng, 0..200)).await;
            if self.rng.u32(0..20) == 0 {
                // Each client is another process.
                store = (self.plan.build)(&self.world);
            }
            let claim = self.claim();
            if let Some((sent, lease)) = self.acquire(&*store, &claim).await {
                self.hold(&*store, sent, lease).await;
            }
        }
    }

    fn claim(&mut self) -> Claim {
        self.next += 1;
        let shared = self.plan.kind == Kind::RwLock && self.rng.u32(0..3) > 0;
        let inbox = Inbox::new(format!("client-{}", self.number));
        Claim::new(
            self.world.resource.clone(),
            LockId::from_stored(format!("c{}#{}", self.number, self.next)),
            self.plan.expiry(),
        )
        .with_weight(if shared || self.plan.kind == Kind::Mutex { 1 } else { WRITER_WEIGHT })
        .with_capacity(if self.plan.kind == Kind::Mutex { 1 } else { WRITER_WEIGHT })
        .with_waiting(self.rng.bool().then(|| Waiting::new(inbox, self.plan.expiry(), 1)))
    }

    /// Asks a few times under one lock id, as a waiter does, and withdraws if it is not granted.
    async fn acquire(&mut self, store: &dyn LeaseStore, claim: &Claim) -> Option<(Instant, Lease)> {
        for _ in 0..self.rng.u32(1..8) {
            let sent = Instant::now();
            let answer = store.try_acquire(std::slice::from_ref(claim)).await;
            match answer.and_then(|mut answers| answers.remove(0)) {
                Ok(Attempt::Granted { token, .. }) => {
                    let until = self.plan.believed(sent);
                    if until <= Instant::now() {
                        // Expired on arrival; asks again, as the engine does.
                        self.world
                            .log(format!("client {} was granted {} too late", self.number, claim.lock_id));
                        continue;
                    }
                    let exclusive = claim.weight == claim.capacity;
                    self.world.granted(self.number, &claim.lock_id, token, exclusive, sent, until);
                    return Some((sent, Lease::of(claim, token)));
                }
                Ok(_) => {}
                Err(error) => self.world.log(format!("client {} {:?}", self.number, error.kind())),
            }
            let longest = if self.rng.bool() { 20 } else { 200 };
            sleep(millis(&mut self.rng, 0..longest)).await;
        }
        self.release(store, &Lease::of(claim, distlock_core::FencingToken::new(0))).await;
        None
    }

    /// Holds and renews for a while; then releases or dies.
    async fn hold(&mut self, store: &dyn LeaseStore, sent: Instant, lease: Lease) {
        let mut until = self.plan.believed(sent);
        let longest = if self.rng.bool() { 4 } else { 16 };
        for _ in 0..self.rng.u32(0..longest) {
            sleep(millis(&mut self.rng, 0..300)).await;
            if Instant::now() >= until {
                break;
            }
            let sent = Instant::now();
            match store.renew(std::slice::from_ref(&lease)).await.and_then(|mut answers| answers.remove(0)) {
                // A late answer does not revive the hold.
                Ok(Renewal::Renewed) if Instant::now() < until => {
                    until = self.plan.believed(sent);
                    self.world.renewed(self.number, &lease.lock_id, sent, until);
                }
                Ok(Renewal::Renewed) => break,
                Ok(Renewal::NotYours) => {
                    self.world.log(format!("client {} lost it", self.number));
                    break;
                }
                Err(_) => {}
            }
        }
        self.world.ended(self.number);
        if !self.plan.leaks && self.rng.u32(0..6) == 0 {
            self.world.log(format!("client {} dies as a holder", self.number));
            return;
        }
        self.release(store, &lease).await;
    }

    async fn release(&mut self, store: &dyn LeaseStore, lease: &Lease) {
        self.world.log(format!("client {} releases {}", self.number, lease.lock_id));
        let tries = if self.plan.leaks { u32::MAX } else { 2 };
        for _ in 0..tries {
            let answer = store.release(std::slice::from_ref(lease)).await;
            if answer.and_then(|mut answers| answers.remove(0)).is_ok() {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
}

fn millis(rng: &mut fastrand::Rng, range: std::ops::Range<u64>) -> Duration {
    Duration::from_millis(rng.u64(range))
}

async fn inject_faults(world: Arc<World>, mut rng: fastrand::Rng, losses: Losses) {
    let start = Instant::now();
    let count = world.nodes().len();
    // Some schedules have many faults, some have long outages of few nodes, some have hardly any.
    let (pace, calm) = (rng.u64(50..600), rng.u32(1..12));
    while going_on(&world, start) {
        sleep(millis(&mut rng, 5..pace)).await;
        let node = rng.usize(0..count);
        match rng.u32(0..13 + calm) {
            0 | 1 => {
                world.log(format!("node {node} down"));
                world.nodes()[node].faults.set_down(true);
            }
            11 | 12 => swap_outage(&world, &mut rng),
            13.. => {
                world.log(format!("node {node} recovers"));
                world.nodes()[node].faults.heal();
            }
            2 | 3 => {
                let fault = any_fault(&mut rng);
                world.log(format!("node {node} always {fault:?}"));
                world.nodes()[node].faults.always_all(fault);
            }
            4..=7 => {
                let (verb, fault) = (any_verb(&mut rng), any_fault(&mut rng));
                let calls = rng.usize(1..4);
                world.log(format!("node {node} next {calls} {verb:?} {fault:?}"));
                world.nodes()[node].faults.next(verb, calls, fault);
            }
            8 | 9 => lose_memory(&world, node, losses),
            10 => jump(&world, node, &mut rng, losses),
        }
    }
    for node in world.nodes().iter() {
        node.faults.heal();
    }
}

/// Takes any minority down, and all others up.
fn swap_outage(world: &World, rng: &mut fastrand::Rng) {
    let nodes = world.nodes();
    let mut order: Vec<usize> = (0..nodes.len()).collect();
    rng.shuffle(&mut order);
    let down = rng.usize(0..=(nodes.len() - 1) / 2);
    for (at, node) in order.iter().enumerate() {
        nodes[*node].faults.heal();
        nodes[*node].faults.set_down(at < down);
    }
    drop(nodes);
    world.log(format!("only nodes {:?} down", &order[..down]));
}

fn lose_memory(world: &World, node: usize, losses: Losses) {
    if losses == Losses::Bearable && !world.may_lose(node, true) {
        return;
    }
    world.log(format!("node {node} forgets everything"));
    world.lost();
    let mut nodes = world.nodes();
    let empty = MemoryStore::with_clock(Arc::new(nodes[node].clock.clone()));
    nodes[node].faults.replace(Arc::new(empty.clone()));
    nodes[node].memory = empty;
}

fn jump(world: &World, node: usize, rng: &mut fastrand::Rng, losses: Losses) {
    let by = millis(rng, 1..3000);
    if rng.bool() {
        world.log(format!("node {node} clock back by {by:?}"));
        world.nodes()[node].clock.jump_back(by);
        return;
    }
    if losses == Losses::Bearable && !world.may_lose(node, false) {
        return;
    }
    world.log(format!("node {node} clock forward by {by:?}"));
    world.lost();
    world.nodes()[node].clock.jump(by);
}

fn any_verb(rng: &mut fastrand::Rng) -> Verb {
    [Verb::Acquire, Verb::Renew, Verb::Release][rng.usize(0..3)]
}

fn any_fault(rng: &mut fastrand::Rng) -> Fault {
    let fault = match rng.u32(0..8) {
        0 => Fault::fail(),
        1 | 2 => Fault::lost_reply(),
        3 => Fault::hang_before(),
        4 => Fault::hang_after(),
        _ => Fault::none(),
    };
    let fault = if rng.bool() { fault.delay_before(millis(rng, 0..120)) } else { fault };
    if rng.bool() { fault.delay_after(millis(rng, 0..120)) } else { fault }
}
