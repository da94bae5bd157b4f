//! The users of a client: they acquire locks in every way that the API has, hold them and release them.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use distlock_core::store::LeaseStore;
use distlock_core::{Error, ErrorKind, Guard, Kind, Locks, Request, Resource, WRITER_WEIGHT};
use fastrand::Rng;
use futures_core::future::BoxFuture;
use futures_util::FutureExt;
use std::panic::AssertUnwindSafe;
use tokio::time::sleep;

use crate::observations::{End, Hold, Op, Wait};
use crate::plan::Choice;
use crate::rules;
use crate::runtimes::DropAfter;
use crate::trace_format::shown;
use crate::world::{Process, World};

/// The permits of every semaphore.
const PERMITS: u32 = 3;

pub struct User {
    pub world: Arc<World>,
    pub process: Arc<Process>,
    pub locks: Locks,
    pub rng: Rng,
    /// Runs outside the runtime of its client.
    pub guest: bool,
    /// Runs on a runtime that ends soon.
    pub visitor: bool,
}

/// The lock to acquire.
#[derive(Clone, Debug)]
struct LockSpec {
    kind: Kind,
    name: String,
    weight: u32,
    capacity: u32,
    fair: bool,
}

impl LockSpec {
    fn request(&self) -> Request {
        match self.kind {
            Kind::RwLock if self.weight == 1 => Request::read(self.name.as_str()),
            Kind::RwLock => Request::write(self.name.as_str()),
            Kind::Semaphore => Request::permits(self.name.as_str(), self.capacity, self.weight),
            _ if self.fair => Request::fair_mutex(self.name.as_str()),
            _ => Request::mutex(self.name.as_str()),
        }
    }

    fn resources(&self) -> Vec<Resource> {
        let mut all = Vec::new();
        if self.fair {
            all.push(Resource::new(Kind::FairQueue, self.name.as_str()).unwrap());
        }
        all.push(Resource::new(self.kind, self.name.as_str()).unwrap());
        all
    }

    /// A future of guards. None means contention.
    fn acquire(
        &self,
        locks: &Locks,
        choice: &Choice,
        wait: Wait,
    ) -> BoxFuture<'static, Result<Vec<Guard>, Error>> {
        let locks = locks.with_options(choice.options.clone());
        let spec = self.clone();
        Box::pin(async move {
            let name = spec.name.as_str();
            let (acquire, attempt) = match spec.kind {
                Kind::RwLock if spec.weight == 1 => {
                    (locks.rw_lock(name).read(), locks.rw_lock(name).try_read())
                }
                Kind::RwLock => (locks.rw_lock(name).write(), locks.rw_lock(name).try_write()),
                Kind::Semaphore => {
                    let semaphore = locks.semaphore(name, spec.capacity);
                    (semaphore.acquire_many(spec.weight), semaphore.try_acquire_many(spec.weight))
                }
                _ => {
                    let mutex = locks.mutex(name);
                    let mutex = if spec.fair { mutex.fair() } else { mutex };
                    (mutex.acquire(), mutex.try_acquire())
                }
            };
            match wait {
                Wait::Try => Ok(attempt.await?.into_iter().collect()),
                Wait::Limit(limit) => match acquire.timeout(limit).await {
                    Err(error) if error.kind() == ErrorKind::Timeout => Ok(Vec::new()),
                    guard => guard.map(|guard| vec![guard]),
                },
                Wait::Forever => acquire.await.map(|guard| vec![guard]),
            }
        })
    }
}

impl User {
    pub async fn live(mut self) {
        while !self.world.stop.is_cancelled() {
            let pause = Duration::from_millis(self.rng.u64(0..=self.world.plan.pause));
            tokio::select! {
                biased;
                () = self.world.stop.cancelled() => return,
                () = sleep(pause) => {}
            }
            self.acquire_once().await;
            if self.process.shut_down.load(SeqCst) {
                return;
            }
        }
    }

    fn spec(&mut self) -> LockSpec {
        let plan = &self.world.plan;
        let all: u32 = plan.kinds[..4].iter().sum();
        let mut drawn = self.rng.u32(0..all);
        let kind = plan.kinds[..4].iter().position(|odds| {
            let hit = drawn < *odds;
            drawn = drawn.saturating_sub(*odds);
            hit
        });
        let private = self.rng.u32(0..100) < plan.private;
        let name = match private {
            true => format!("p{}-{}", self.process.slot, self.rng.u32(0..3)),
            false => format!("n{}", self.rng.usize(0..plan.names)),
        };
        let spec = |kind, weight, capacity, fair| LockSpec { kind, name, weight, capacity, fair };
        match kind {
            Some(1) if self.rng.u32(0..3) > 0 => spec(Kind::RwLock, 1, WRITER_WEIGHT, false),
            Some(1) => spec(Kind::RwLock, WRITER_WEIGHT, WRITER_WEIGHT, false),
            Some(2) => spec(Kind::Semaphore, self.rng.u32(1..=PERMITS), PERMITS, false),
            Some(3) => spec(Kind::Mutex, 1, 1, true),
            _ => spec(Kind::Mutex, 1, 1, false),
        }
    }

    fn wait(&mut self) -> Wait {
        match self.rng.u32(0..4) {
            0 => Wait::Try,
            1 => Wait::Limit(Duration::from_millis(self.rng.u64(1..=3_000))),
            _ => Wait::Forever,
        }
    }

    /// One acquisition, from its beginning to the release of its guards.
    pub async fn acquire_once(&mut self) {
        let several = self.rng.u32(0..8) < self.world.plan.kinds[4];
        let mut specs = vec![self.spec()];
        if several {
            let other = self.spec();
            if (other.kind, &other.name) != (specs[0].kind, &specs[0].name) {
                specs.push(other);
            }
        }
        let choices = &self.world.plan.choices;
        let choice = choices[self.rng.usize(0..choices.len())].clone();
        let wait = self.wait();
        let drop_after = (self.rng.u32(0..100) < self.world.plan.drops).then(|| self.rng.u32(0..6));
        let future = match &specs[..] {
            [spec] => spec.acquire(&self.locks, &choice, wait),
            _ => self.acquire_all(&specs, &choice, wait),
        };
        let op = self.begin(&specs, wait, &choice);
        let outcome = AssertUnwindSafe(DropAfter::new(future, drop_after)).catch_unwind().await;
        let (end, guards) = match outcome {
            Err(_) => (End::Panicked, Vec::new()),
            Ok(None) => (End::Dropped, Vec::new()),
            Ok(Some(Err(error))) => (End::Failed(error), Vec::new()),
            Ok(Some(Ok(guards))) if guards.is_empty() => (End::Busy, guards),
            Ok(Some(Ok(guards))) => (End::Granted, guards),
        };
        self.world.note(|| format!("{} op {op} {}", self.process, shown_end(&end)));
        let holds = self.record_grants(op, &specs, guards);
        rules::op_ended(&self.world, op, end);
        self.hold(holds).await;
    }

    fn acquire_all(
        &self,
        specs: &[LockSpec],
        choice: &Choice,
        wait: Wait,
    ) -> BoxFuture<'static, Result<Vec<Guard>, Error>> {
        let all = self.locks.acquire_all(specs.iter().map(LockSpec::request)).options(choice.options.clone());
        let all = match wait {
            Wait::Try => all.timeout(Duration::ZERO),
            Wait::Limit(limit) => all.timeout(limit),
            Wait::Forever => all,
        };
        Box::pin(async move {
            match all.await {
                Err(error) if error.kind() == ErrorKind::Timeout => Ok(Vec::new()),
                guards => guards.map(distlock_core::GuardSet::into_guards),
            }
        })
    }

    fn begin(&self, specs: &[LockSpec], wait: Wait, choice: &Choice) -> usize {
        let resources: Vec<Resource> = specs.iter().flat_map(LockSpec::resources).collect();
        let what = resources.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let op = Op {
            process: Arc::clone(&self.process),
            resources,
            wait,
            choice: choice.clone(),
            started: self.world.time(),
            ended: None,
            exempt: false,
            in_use: false,
            guest: self.guest,
            visitor: self.visitor,
        };
        let op = self.world.observed().op_starts(&self.world, op);
        self.world.note(|| {
            let expiry = choice.options.get_expiry();
            format!("{} op {op} asks for {what}, {wait:?}, expiry {expiry:?}", self.process)
        });
        op
    }

    /// Records what was granted, and checks it against the other holds.
    fn record_grants(&self, op: usize, specs: &[LockSpec], guards: Vec<Guard>) -> Vec<usize> {
        let mut numbers = Vec::new();
        if let Some(lost) = guards.iter().find(|guard| guard.is_lost()) {
            self.world.violated(rules::GRANTED_LOST, format!("op {op}: {lost:?}"));
        }
        for guard in guards {
            let resource = guard.resource().clone();
            let op_now = self.world.observed().ops[op].clone();
            let same = |spec: &&LockSpec| spec.kind == resource.kind() && spec.name == resource.name();
            let spec = specs.iter().find(same).unwrap();
            let hold = Hold {
                op,
                process: Arc::clone(&self.process),
                weight: spec.weight,
                capacity: spec.capacity,
                lock_id: guard.lock_id().clone(),
                token: guard.token().get(),
                signal: guard.cancellation_token(),
                left: guard.time_left().unwrap_or_default(),
                guard: Arc::new(Mutex::new(Some(guard))),
                asked: op_now.started,
                granted_at: self.world.time(),
                ended: None,
                exempt: op_now.exempt,
                broken: None,
                resource: resource.clone(),
            };
            self.world.note(|| {
                format!("{} holds {resource} as {} token {}", self.process, shown(&hold.lock_id), hold.token)
            });
            let mut observed = self.world.observed();
            let problem = observed.granted(&self.world, hold);
            numbers.push(observed.holds.len() - 1);
            drop(observed);
            if let Some(problem) = problem {
                self.world.violated(rules::TOKENS, problem);
            }
            rules::exclusion(&self.world, &resource);
        }
        numbers
    }
}

pub fn shown_end(end: &End) -> String {
    match end {
        End::Failed(error) => format!("failed: {error}"),
        other => format!("{other:?}"),
    }
}

/// The store of a client: one link, or a quorum of links.
pub fn backend(links: &[crate::link::Link], clock: &crate::world::SimClock) -> distlock_core::store::Backend {
    use distlock_core::quorum::{Quorum, QuorumOptions};
    use distlock_core::store::Backend;
    if let [link] = links {
        return Backend::lease(link.clone());
    }
    let nodes = links.iter().map(|link| Arc::new(link.clone()) as Arc<dyn LeaseStore>).collect();
    let options = QuorumOptions::new().clock(Arc::new(clock.clone()));
    Backend::lease(Quorum::with_options(nodes, options).unwrap())
}
