//! One run: executes the plan of a seed and returns the outcome.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use distlock_core::{Locks, Options, Resource};
use fastrand::Rng;

use crate::client::{User, backend};
use crate::link::Link;
use crate::observations::{End, Observations, Op};
use crate::plan::{Event, Mode, Plan};
use crate::rules;
use crate::runtimes::{ClientRuntime, MainRuntime, ShortLivedRuntime};
use crate::trace::{Trace, Violation};
use crate::world::{Process, SimClock, World};

/// More steps than any run that ends needs.
const MAX_STEPS: u64 = 400_000;

/// The outcome of a run.
#[derive(Debug)]
pub struct Outcome {
    pub violation: Option<Violation>,
    pub trace: Vec<String>,
    pub grants: u64,
    pub steps: u64,
}

/// One process of a client, from its start to its end.
pub(crate) struct Client {
    pub(crate) process: Arc<Process>,
    pub(crate) runtime: Option<ClientRuntime>,
    pub(crate) locks: Option<Locks>,
    pub(crate) links: Vec<Link>,
}

pub(crate) struct Simulation {
    pub(crate) clients: Vec<Client>,
    visitor: Option<ShortLivedRuntime>,
    main_runtime: MainRuntime,
    pub(crate) world: Arc<World>,
    rng: Rng,
    generations: usize,
    steps: u64,
}

/// Runs a seed.
pub fn run(seed: u64, mode: Mode, keep_trace: bool) -> Outcome {
    // The engine draws its jitter from the generator of the thread.
    fastrand::seed(seed);
    let plan = Plan::draw(seed, mode);
    let main_runtime = MainRuntime::new();
    let world = World::new(seed, plan.clone(), main_runtime.handle(), Trace::new(keep_trace, mode.only));
    world.note(|| format!("{plan:?}"));
    let rng = Rng::with_seed(seed ^ 0xc11e47);
    let mut simulation =
        Simulation { clients: Vec::new(), visitor: None, main_runtime, world, rng, generations: 0, steps: 0 };
    for slot in 0..plan.clients {
        simulation.start(slot);
    }
    simulation.play();
    if !simulation.world.is_over() {
        simulation.finish();
    }
    simulation.outcome()
}

impl Simulation {
    fn outcome(mut self) -> Outcome {
        self.visitor = None;
        // The remaining clients must not be driven any more.
        for client in &mut self.clients {
            client.process.dead.store(true, SeqCst);
            client.runtime = None;
        }
        let guards: Vec<_> = self.world.observed().holds.iter().map(|hold| Arc::clone(&hold.guard)).collect();
        for guard in guards {
            drop(guard.lock().unwrap().take());
        }
        let grants = self.world.observed().grants;
        let mut trace = self.world.trace.lock().unwrap();
        let violation = trace.violation.take();
        Outcome { violation, trace: std::mem::take(&mut trace.lines), grants, steps: self.steps }
    }

    /// Starts a client's process.
    fn start(&mut self, slot: usize) {
        self.generations += 1;
        let generation = self.generations;
        let process = Arc::new(Process { slot, generation, ..Process::default() });
        let clock = SimClock::new(&self.world.now, 1.0 + (self.rng.f64() - 0.5) * 0.006);
        clock.jump(Duration::from_secs(self.rng.u64(0..1_000_000)), false);
        let links: Vec<Link> = (0..self.world.plan.nodes)
            .map(|node| Link::new(Arc::clone(&self.world), Arc::clone(&process), node))
            .collect();
        let runtime = ClientRuntime::new();
        let locks = {
            let _inside = runtime.inner().enter();
            Locks::builder(backend(&links, &clock))
                .clock(Arc::new(clock))
                .label(process.to_string())
                .options(Options::new().request_timeout(self.world.plan.request_timeout).unwrap())
                .build()
                .unwrap()
        };
        for task in 0..self.world.plan.tasks {
            let guest = self.world.plan.guests && task % 2 == 1;
            let user = self.user(&process, &locks, guest, false);
            if guest {
                self.world.main.spawn(user.live());
            } else {
                runtime.inner().spawn(user.live());
            }
        }
        self.world.main_work.store(true, SeqCst);
        process.has_message.store(true, SeqCst);
        self.world.note(|| format!("{process} starts"));
        self.clients.push(Client { process, runtime: Some(runtime), locks: Some(locks), links });
    }

    fn user(&mut self, process: &Arc<Process>, locks: &Locks, guest: bool, visitor: bool) -> User {
        User {
            world: Arc::clone(&self.world),
            process: Arc::clone(process),
            locks: locks.clone(),
            rng: self.rng.fork(),
            guest,
            visitor,
        }
    }

    /// The current process of a client.
    fn current(&self, slot: usize) -> Option<usize> {
        self.clients.iter().rposition(|client| client.process.slot == slot && client.process.works())
    }

    /// Runs all ready tasks at one moment, until none is ready.
    pub(crate) fn settle(&mut self) {
        let mut rounds: u32 = if self.world.plan.guests || self.visitor.is_some() { 2 } else { 1 };
        let mut all = true;
        loop {
            self.main_runtime.settle();
            for client in &self.clients {
                let Some(runtime) = &client.runtime else { continue };
                if !client.process.is_stalled() && (client.process.has_message.swap(false, SeqCst) || all) {
                    runtime.settle(&self.main_runtime);
                }
            }
            if let Some(visitor) = &mut self.visitor {
                visitor.settle(self.world.time());
            }
            all = rounds > 1;
            rounds = rounds.saturating_sub(1);
            let has_message = |client: &Client| {
                client.runtime.is_some()
                    && !client.process.is_stalled()
                    && client.process.has_message.load(SeqCst)
            };
            let more = self.world.main_work.swap(false, SeqCst) || self.clients.iter().any(has_message);
            if self.world.is_over() || (!more && !all) {
                return;
            }
        }
    }

    /// Moves time to the next timer, `until` at the latest, and runs all ready tasks.
    pub(crate) fn step(&mut self, until: Duration) {
        self.steps += 1;
        if self.steps > MAX_STEPS {
            self.world.violated(rules::LIVENESS, "the run does not end".to_owned());
        }
        let until = match &self.visitor {
            Some(_) => until.min(self.world.time() + Duration::from_millis(2)),
            None => until,
        };
        let now = self.main_runtime.advance(until);
        self.world.now.store(now.as_nanos() as u64, SeqCst);
        self.settle();
    }

    pub(crate) fn advance_to(&mut self, moment: Duration) {
        while self.world.time() < moment && !self.world.is_over() {
            self.step(moment);
        }
    }

    /// The phase with faults.
    fn play(&mut self) {
        self.settle();
        let events = self.world.plan.events.clone();
        let length = self.world.plan.length;
        for (at, event) in events.into_iter().filter(|(at, _)| *at < length) {
            self.advance_to(at);
            if self.world.is_over() {
                return;
            }
            self.apply(event);
            self.settle();
        }
        self.advance_to(length);
    }

    fn apply(&mut self, event: Event) {
        let world = Arc::clone(&self.world);
        world.note(|| format!("{event:?}"));
        let now = world.time();
        match event {
            Event::Stall { client, length, hold_messages } => {
                let Some(at) = self.current(client) else { return };
                let process = &self.clients[at].process;
                process.stalled.store(true, SeqCst);
                process.holds_messages.store(hold_messages, SeqCst);
                world.observed().stalls.push((client, now, now + length));
            }
            Event::Resume { client } => {
                let over =
                    world.observed().stalls.iter().all(|(slot, _, end)| *slot != client || *end <= now);
                if over {
                    self.resume(client);
                }
            }
            Event::Outage { client, node, length, sort } => {
                world.outages.lock().unwrap()[client][node] = Some((now + length, sort));
                world.observed().outages.push((client, node, now, now + length));
            }
            Event::Crash { client } => self.end(client, true),
            Event::RuntimeEnd { client } => self.end(client, false),
            Event::ShutDown { client } => self.shut_down(client),
            Event::StreamsEnd { client } => {
                self.clients
                    .iter()
                    .filter(|c| c.process.slot == client)
                    .flat_map(|c| &c.links)
                    .for_each(Link::end_stream);
                self.clients.iter().for_each(|client| client.process.has_message.store(true, SeqCst));
            }
            Event::ServerJump { node, by, back } => {
                let server = &world.servers[node];
                // By the counter before the clock moves: it may expire then.
                if world.plan.counter.is_some() && !server.may_jump(by, back) {
                    return;
                }
                if back {
                    world.observed().moved_back += by;
                } else {
                    self.forgets(node);
                }
                world.servers[node].clock.jump(by, back);
            }
            Event::Restart { node } => {
                if world.plan.counter.is_none() {
                    self.forget_tokens(node);
                } else if !world.servers[node].may_forget() {
                    return;
                }
                self.forgets(node);
                world.restart(node);
                self.disconnect(node);
            }
            Event::CounterLost { node } => {
                if world.servers[node].may_forget() {
                    world.servers[node].lose_counter();
                }
            }
            Event::Replicated { node } => world.servers[node].replicate(),
            Event::FailOver { node } => self.fail_over(node),
            Event::Break { name } => self.break_locks(name),
            Event::Visit { client } => {
                let Some(at) = self.current(client).filter(|_| self.visitor.is_none()) else { return };
                let (process, locks) =
                    (Arc::clone(&self.clients[at].process), self.clients[at].locks.clone());
                let Some(locks) = locks.filter(|_| !process.shut_down.load(SeqCst) && !process.is_stalled())
                else {
                    return;
                };
                let mut user = self.user(&process, &locks, true, true);
                let visitor = ShortLivedRuntime::new(now);
                visitor.inner().spawn(async move { user.acquire_once().await });
                self.visitor = Some(visitor);
            }
            Event::VisitEnd => self.end_visit(),
        }
    }

    pub(crate) fn resume(&mut self, slot: usize) {
        let Some(at) = self.current(slot) else { return };
        let client = &self.clients[at];
        if !client.process.stalled.swap(false, SeqCst) {
            return;
        }
        let world = Arc::clone(&self.world);
        world.note(|| format!("{} resumes", client.process));
        // The first check of its guards, before any of its tasks runs.
        let ours: Vec<Resource> = {
            let observed = world.observed();
            let live = observed.live_holds().filter(|hold| Arc::ptr_eq(&hold.process, &client.process));
            live.map(|hold| hold.resource.clone()).collect()
        };
        for resource in &ours {
            rules::exclusion(&world, resource);
        }
        if client.process.holds_messages.load(SeqCst)
            && let Some(runtime) = &client.runtime
        {
            runtime.settle(&self.main_runtime);
        }
        client.process.resumed.notify_waiters();
        client.process.has_message.store(true, SeqCst);
        world.main_work.store(true, SeqCst);
    }

    /// Kills a process, or ends its runtime.
    fn end(&mut self, slot: usize, killed: bool) {
        let Some(at) = self.current(slot) else { return };
        let process = Arc::clone(&self.clients[at].process);
        process.dead.store(killed, SeqCst);
        process.ended.store(true, SeqCst);
        self.world.observed().gone.push(Arc::clone(&process));
        if self.visitor.is_some() {
            self.end_visit();
        }
        drop(self.clients[at].runtime.take());
        self.clients[at].locks = None;
        self.end_operations(|op| Arc::ptr_eq(&op.process, &process) && (killed || !op.guest), killed);
        process.stalled.store(false, SeqCst);
        process.resumed.notify_waiters();
        self.world.main_work.store(true, SeqCst);
        self.start(slot);
    }

    /// Ends the acquisitions of an ended runtime; with the whole process, their guards too.
    fn end_operations(&self, which: impl Fn(&Op) -> bool, guards_too: bool) {
        let now = self.world.time();
        let mut observed = self.world.observed();
        let mine = |observed: &Observations, op: usize| which(&observed.ops[op]);
        for op in observed.live_ops.clone().into_iter().filter(|op| mine(&observed, *op)).collect::<Vec<_>>()
        {
            observed.end_op(op, now, End::Vanished);
        }
        let holds =
            observed.live_holds.clone().into_iter().filter(|hold| mine(&observed, observed.holds[*hold].op));
        let holds: Vec<usize> = holds.filter(|_| guards_too).collect();
        let guards: Vec<_> = holds.into_iter().map(|hold| observed.end_hold(hold, now)).collect();
        drop(observed);
        drop(guards);
    }

    pub(crate) fn end_visit(&mut self) {
        if self.visitor.take().is_none() {
            return;
        }
        self.end_operations(|op| op.visitor, true);
        self.clients.iter().for_each(|client| client.process.has_message.store(true, SeqCst));
        self.world.main_work.store(true, SeqCst);
    }

    fn shut_down(&mut self, slot: usize) {
        let Some(at) = self.current(slot) else { return };
        let client = &self.clients[at];
        let (Some(runtime), Some(locks)) = (&client.runtime, client.locks.clone()) else { return };
        if client.process.is_stalled() || client.process.shut_down.swap(true, SeqCst) {
            return;
        }
        let (world, process) = (Arc::clone(&self.world), Arc::clone(&client.process));
        world.observed().shuts_down(&process, world.time());
        runtime.inner().spawn(async move {
            let begun = world.time();
            let ended = locks.shutdown().await;
            world.note(|| format!("{process} is shut down: {ended:?}"));
            let took = world.time() - begun;
            let stalled = world.observed().stalled_for(process.slot, begun, world.time());
            if took > Duration::from_secs(12) + stalled {
                world.violated(rules::LIVENESS, format!("the shutdown of {process} takes {took:?}"));
            }
        });
        client.process.has_message.store(true, SeqCst);
        self.start(slot);
    }
}
