//! What the users of a client do: acquire this and that, in every way that the API has, hold it, give it back.

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

use crate::check::{End, Hold, Op, Wait};
use crate::plan::Choice;
use crate::rules;
use crate::shown::shown;
use crate::stage::DropAfter;
use crate::world::{Process, World};

/// The permits of every semaphore.
const PERMITS: u32 = 3;

pub struct User {
    pub world: Arc<World>,
    pub process: Arc<Process>,
    pub locks: Locks,
    pub rng: Rng,
    /// Not on the runtime of its client.
    pub guest: bool,
    /// On a runtime that ends soon.
    pub visitor: bool,
}

/// What is asked for.
#[derive(Clone, Debug)]
struct Want {
    kind: Kind,
    name: String,
    weight: u32,
    capacity: u32,
    fair: bool,
}

impl Want {
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

    /// A future of guards; no guards are contention.
    fn acquire(
        &self,
        locks: &Locks,
        choice: &Choice,
        wait: Wait,
    ) -> BoxFuture<'static, Result<Vec<Guard>, Error>> {
        let locks = locks.with_options(choice.options.clone());
        let want = self.clone();
        Box::pin(async move {
            let name = want.name.as_str();
            let (acquire, attempt) = match want.kind {
                Kind::RwLock if want.weight == 1 => {
                    (locks.rw_lock(name).read(), locks.rw_lock(name).try_read())
                }
                Kind::RwLock => (locks.rw_lock(name).write(), locks.rw_lock(name).try_write()),
                Kind::Semaphore => {
                    let semaphore = locks.semaphore(name, want.capacity);
                    (semaphore.acquire_many(want.weight), semaphore.try_acquire_many(want.weight))
                }
                _ => {
                    let mutex = locks.mutex(name);
                    let mutex = if want.fair { mutex.fair() } else { mutex };
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

    fn want(&mut self) -> Want {
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
        let want = |kind, weight, capacity, fair| Want { kind, name, weight, capacity, fair };
        match kind {
            Some(1) if self.rng.u32(0..3) > 0 => want(Kind::RwLock, 1, WRITER_WEIGHT, false),
            Some(1) => want(Kind::RwLock, WRITER_WEIGHT, WRITER_WEIGHT, false),
            Some(2) => want(Kind::Semaphore, self.rng.u32(1..=PERMITS), PERMITS, false),
            Some(3) => want(Kind::Mutex, 1, 1, true),
            _ => want(Kind::Mutex, 1, 1, false),
        }
    }

    fn wait(&mut self) -> Wait {
        match self.rng.u32(0..4) {
            0 => Wait::Try,
            1 => Wait::Limit(Duration::from_millis(self.rng.u64(1..=3_000))),
            _ => Wait::Forever,
        }
    }

    /// One acquisition from its beginning to the end of what it got.
    pub async fn acquire_once(&mut self) {
        let several = self.rng.u32(0..8) < self.world.plan.kinds[4];
        let mut wants = vec![self.want()];
        if several {
            let other = self.want();
            if (other.kind, &other.name) != (wants[0].kind, &wants[0].name) {
                wants.push(other);
            }
        }
        let choices = &self.world.plan.choices;
        let choice = choices[self.rng.usize(0..choices.len())].clone();
        let wait = self.wait();
        let drop_after = (self.rng.u32(0..100) < self.world.plan.drops).then(|| self.rng.u32(0..6));
        let future = match &wants[..] {
            [want] => want.acquire(&self.locks, &choice, wait),
            _ => self.acquire_all(&wants, &choice, wait),
        };
        let op = self.begin(&wants, wait, &choice);
        let outcome = AssertUnwindSafe(DropAfter::new(future, drop_after)).catch_unwind().await;
        let (end, guards) = match outcome {
            Err(_) => (End::Panicked, Vec::new()),
            Ok(None) => (End::Dropped, Vec::new()),
            Ok(Some(Err(error))) => (End::Failed(error), Vec::new()),
            Ok(Some(Ok(guards))) if guards.is_empty() => (End::Busy, guards),
            Ok(Some(Ok(guards))) => (End::Granted, guards),
        };
        self.world.note(|| format!("{} op {op} {}", self.process, shown_end(&end)));
        let holds = self.told(op, &wants, guards);
        rules::op_ended(&self.world, op, end);
        self.hold(holds).await;
    }

    fn acquire_all(
        &self,
        wants: &[Want],
        choice: &Choice,
        wait: Wait,
    ) -> BoxFuture<'static, Result<Vec<Guard>, Error>> {
        let all = self.locks.acquire_all(wants.iter().map(Want::request)).options(choice.options.clone());
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

    fn begin(&self, wants: &[Want], wait: Wait, choice: &Choice) -> usize {
        let resources: Vec<Resource> = wants.iter().flat_map(Want::resources).collect();
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
        let op = self.world.check().op_starts(&self.world, op);
        self.world.note(|| {
            let expiry = choice.options.get_expiry();
            format!("{} op {op} asks for {what}, {wait:?}, expiry {expiry:?}", self.process)
        });
        op
    }

    /// Writes down what was granted, and holds it against what others have.
    fn told(&self, op: usize, wants: &[Want], guards: Vec<Guard>) -> Vec<usize> {
        let mut numbers = Vec::new();
        if let Some(lost) = guards.iter().find(|guard| guard.is_lost()) {
            self.world.violated(rules::GRANTED_LOST, format!("op {op}: {lost:?}"));
        }
        for guard in guards {
            let resource = guard.resource().clone();
            let op_now = self.world.check().ops[op].clone();
            let same = |want: &&Want| want.kind == resource.kind() && want.name == resource.name();
            let want = wants.iter().find(same).unwrap();
            let hold = Hold {
                op,
                process: Arc::clone(&self.process),
                weight: want.weight,
                capacity: want.capacity,
                lock_id: guard.lock_id().clone(),
                token: guard.token().get(),
                signal: guard.cancellation_token(),
                left: guard.time_left().unwrap_or_default(),
                guard: Arc::new(Mutex::new(Some(guard))),
                asked: op_now.started,
                told: self.world.time(),
                ended: None,
                exempt: op_now.exempt,
                broken: None,
                resource: resource.clone(),
            };
            self.world.note(|| {
                format!("{} holds {resource} as {} token {}", self.process, shown(&hold.lock_id), hold.token)
            });
            let mut checker = self.world.check();
            let problem = checker.granted(&self.world, hold);
            numbers.push(checker.holds.len() - 1);
            drop(checker);
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

/// Makes the store that a client sees: one link, or a quorum of links.
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
