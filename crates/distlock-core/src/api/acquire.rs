//! Acquiring one lock: what a user asks for, the builders that become futures, and the claim that goes to the engine.

use std::future::IntoFuture;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_core::future::BoxFuture;
use futures_util::future::{Either, select};

use super::guard::{Guard, QueueHold};
use super::handle::Handle;
use super::locks::Locks;
use super::timeout::TimeLimit;
use crate::clock::sleep_until;
use crate::engine::Wait;
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::resource::{Kind, MAX_PERMITS, Resource, WRITER_WEIGHT};
use crate::store::{Claim, Fairness, Holder};

/// An acquisition that waits: `.await` it. Without a [time limit](Acquire::timeout) it waits for ever.
///
/// # Errors
/// [`ErrorKind::Timeout`] if another client held the lock until the time limit passed; the message names the holder where
/// the store knows it. [`ErrorKind::Unavailable`], [`ErrorKind::Denied`] and so on if the store failed, which is never
/// reported as contention.
///
/// # Cancel safety
/// Dropping the future at any point leaves nothing held and nothing waiting, also when a request was in flight.
#[derive(Debug)]
#[must_use = "nothing is acquired before it is awaited"]
pub struct Acquire {
    locks: Locks,
    request: Request,
    timeout: Option<Duration>,
}

impl Acquire {
    pub(crate) fn new(locks: Locks, request: Request) -> Self {
        Acquire { locks, request, timeout: None }
    }

    /// Waits at most this long, from the moment it is awaited; zero is one attempt, which may take a second. The limit holds
    /// whatever the store does: a store that does not answer by then is [`ErrorKind::Unavailable`], at most a
    /// quarter of a second after the limit. Clean-up continues in the background.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }
}

impl IntoFuture for Acquire {
    type Output = Result<Guard>;
    type IntoFuture = BoxFuture<'static, Result<Guard>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let limit = TimeLimit::starting_now(&self.locks, self.timeout);
            let handle = self.request.handle(&self.locks, &limit).await?;
            self.request.acquire(&handle, &limit).await
        })
    }
}

/// An attempt: `.await` it. `None` if the lock is held by another client, at once or until the
/// [time limit](TryAcquire::timeout).
///
/// # Errors
/// If the store failed. Contention is not an error.
///
/// # Cancel safety
/// As for [`Acquire`].
#[derive(Debug)]
#[must_use = "nothing is acquired before it is awaited"]
pub struct TryAcquire {
    locks: Locks,
    request: Request,
    timeout: Option<Duration>,
}

impl TryAcquire {
    pub(crate) fn new(locks: Locks, request: Request) -> Self {
        TryAcquire { locks, request, timeout: None }
    }

    /// Waits at most this long before it gives `None`; zero is one attempt.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }
}

impl IntoFuture for TryAcquire {
    type Output = Result<Option<Guard>>;
    type IntoFuture = BoxFuture<'static, Result<Option<Guard>>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let limit = match self.timeout {
                Some(timeout) => TimeLimit::starting_now(&self.locks, Some(timeout)),
                None => TimeLimit::one_request(&self.locks),
            };
            let handle = self.request.handle(&self.locks, &limit).await?;
            self.request.try_acquire(&handle, &limit).await
        })
    }
}

/// A lock that is asked for: one of those that [`Locks::acquire_all`] acquires. A plain name is a mutex.
#[derive(Clone, Debug)]
pub struct Request {
    kind: Kind,
    name: Arc<str>,
    weight: u32,
    capacity: u32,
    fair: bool,
    resizable: bool,
}

impl Request {
    fn new(kind: Kind, name: Arc<str>, weight: u32, capacity: u32) -> Self {
        Request { kind, name, weight, capacity, fair: false, resizable: false }
    }

    /// A mutex.
    #[must_use]
    pub fn mutex(name: impl Into<Arc<str>>) -> Self {
        Request::new(Kind::Mutex, name.into(), 1, 1)
    }

    /// A fair mutex.
    #[must_use]
    pub fn fair_mutex(name: impl Into<Arc<str>>) -> Self {
        Request { fair: true, ..Request::mutex(name) }
    }

    /// A reader-writer lock, to read.
    #[must_use]
    pub fn read(name: impl Into<Arc<str>>) -> Self {
        Request::new(Kind::RwLock, name.into(), 1, WRITER_WEIGHT)
    }

    /// A reader-writer lock, to write.
    #[must_use]
    pub fn write(name: impl Into<Arc<str>>) -> Self {
        Request::new(Kind::RwLock, name.into(), WRITER_WEIGHT, WRITER_WEIGHT)
    }

    /// `wanted` of the `permits` of a semaphore.
    #[must_use]
    pub fn permits(name: impl Into<Arc<str>>, permits: u32, wanted: u32) -> Self {
        Request::new(Kind::Semaphore, name.into(), wanted, permits)
    }

    /// Permits of a semaphore whose number may differ from client to client; see
    /// [`Semaphore::resizable`](crate::Semaphore::resizable).
    #[must_use]
    pub fn resizable(self) -> Self {
        Request { resizable: true, ..self }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The order in which several are acquired, and what makes two of them the same resource.
    pub(crate) fn key(&self) -> (Kind, &str) {
        (self.kind, &self.name)
    }

    /// Finds everything that is wrong with it and its options, before anything is sent.
    pub(crate) fn check_input(&self, options: &Options) -> Result<Resource> {
        let resource =
            Resource::new(self.kind, Arc::clone(&self.name)).map_err(|error| error.doing("acquire"))?;
        let complete = |error: Error| error.doing("acquire").about(&resource);
        options.check().map_err(complete)?;
        if self.kind == Kind::Semaphore {
            self.check_permits().map_err(complete)?;
        }
        Ok(resource)
    }

    /// The same, and whether the store has it.
    pub(crate) fn check(&self, locks: &Handle) -> Result<Resource> {
        let resource = self.check_input(&locks.options)?;
        locks.engine.require(self.kind)?;
        let most = locks.capabilities().max_permits;
        if self.kind == Kind::Semaphore && self.capacity > most {
            let what =
                format!("a semaphore has at most {most} permits here, and {} are named", self.capacity);
            let unsupported = Error::new(ErrorKind::Unsupported, what).advise("use another store for it");
            return Err(unsupported.doing("acquire").about(&resource).on(locks.store().to_owned()));
        }
        if !locks.options.get_hold_at_least().is_zero() && !locks.capabilities().minimum_hold {
            let unsupported = locks.capabilities().unsupported("minimum hold times");
            return Err(unsupported.doing("acquire").about(&resource).on(locks.store().to_owned()));
        }
        if self.needs_queue(locks) {
            locks.engine.require(Kind::FairQueue)?;
        }
        Ok(resource)
    }

    /// A handle to the running engine. What is wrong with the request is found before a connection is made for it.
    async fn handle(&self, locks: &Locks, limit: &TimeLimit) -> Result<Handle> {
        if let Some(handle) = locks.started_handle() {
            return Ok(handle);
        }
        self.check_input(&locks.options)?;
        Box::pin(locks.handle(limit)).await
    }

    fn check_permits(&self) -> Result<()> {
        let Request { weight, capacity, .. } = *self;
        let problem = if capacity == 0 || capacity > MAX_PERMITS {
            format!("a semaphore of {capacity} permits is not between 1 and {MAX_PERMITS}")
        } else if weight == 0 {
            "no permits are asked for".to_owned()
        } else if weight > capacity {
            format!("{weight} permits are asked for, and there are {capacity} in all")
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::InvalidInput, problem)
            .advise("ask for at least one permit and at most all of them"))
    }

    /// A fair mutex needs a queue of its own in front, unless the server queues by itself.
    fn needs_queue(&self, locks: &Handle) -> bool {
        self.fair && locks.capabilities().fairness != Fairness::Native
    }

    fn claim(&self, locks: &Handle, resource: Resource) -> Claim {
        let claim = locks.engine.claim(resource, &locks.options);
        let mut claim = claim
            .with_weight(self.weight)
            .with_capacity(self.capacity)
            .with_no_overtaking(self.fair)
            .with_hold_at_least(locks.options.get_hold_at_least());
        claim.resizes = self.resizable && self.kind == Kind::Semaphore;
        claim
    }

    /// Acquires, waiting as asked. `Ok(None)`: it was contended until then.
    ///
    /// # Cancel safety
    /// Dropping the future at any point leaves nothing held and nothing waiting.
    pub(crate) async fn try_acquire(&self, locks: &Handle, limit: &TimeLimit) -> Result<Option<Guard>> {
        let resource = self.check(locks)?;
        let clock = &*locks.engine.shared.clock;
        let attempt = pin!(self.attempt(locks, resource.clone(), limit.wait));
        let outcome = limit.enforce(clock, attempt).await;
        outcome.map_err(|error| error.doing("acquire").about(&resource).on(locks.store().to_owned()))
    }

    async fn attempt(&self, locks: &Handle, resource: Resource, wait: Wait) -> Result<Option<Guard>> {
        let (engine, options) = (&locks.engine, &locks.options);
        let started = engine.shared.clock.now();
        let queue = if self.needs_queue(locks) {
            let queue = Resource::new(Kind::FairQueue, Arc::clone(&self.name))?;
            let mut claim = engine.claim(queue, options).with_no_overtaking(true);
            match Box::pin(engine.acquire(&mut claim, options, wait, started)).await? {
                Some(held) => Some(QueueHold::new(Arc::clone(engine), held)),
                None => return Ok(None),
            }
        } else {
            None
        };
        let mut claim = self.claim(locks, resource);
        let held = engine.acquire(&mut claim, options, wait, started).await?;
        Ok(held.map(|held| Guard::new(Arc::clone(engine), held, queue)))
    }

    /// Acquires, or fails with [`ErrorKind::Timeout`] at the time limit. The error names the holders if the store told
    /// them in time: they are looked up beside the wait, shortly before the limit, and the limit is not exceeded for it.
    ///
    /// # Cancel safety
    /// As for [`try_acquire`](Request::try_acquire).
    pub(crate) async fn acquire(&self, locks: &Handle, limit: &TimeLimit) -> Result<Guard> {
        let acquiring = pin!(self.try_acquire(locks, limit));
        let (outcome, holders) = match limit.lookup_at() {
            None => (acquiring.await?, Vec::new()),
            Some(moment) => {
                // Boxed: acquisitions without a limit need no room for it.
                let lookup = Box::pin(async {
                    sleep_until(&*locks.engine.shared.clock, moment).await;
                    self.holders(locks).await
                });
                match select(acquiring, lookup).await {
                    Either::Left((outcome, _)) => (outcome?, Vec::new()),
                    Either::Right((holders, acquiring)) => (acquiring.await?, holders),
                }
            }
        };
        outcome.ok_or_else(|| self.timed_out(locks, limit.duration, &holders))
    }

    /// The holders, for a message: none if the store does not tell, or if enough waiters ask already.
    async fn holders(&self, locks: &Handle) -> Vec<Holder> {
        let Ok(_permit) = locks.engine.shared.holder_lookups.try_acquire() else { return Vec::new() };
        locks.holders(self.kind, Arc::clone(&self.name)).await.unwrap_or_default()
    }

    fn timed_out(&self, locks: &Handle, after: Duration, holders: &[Holder]) -> Error {
        let error = Error::timed_out(after, holders).on(locks.store().to_owned());
        match Resource::new(self.kind, Arc::clone(&self.name)) {
            Ok(resource) => error.about(&resource),
            Err(_) => error,
        }
    }
}

impl From<&str> for Request {
    fn from(name: &str) -> Self {
        Request::mutex(name)
    }
}

impl From<String> for Request {
    fn from(name: String) -> Self {
        Request::mutex(name)
    }
}

impl From<&String> for Request {
    fn from(name: &String) -> Self {
        Request::mutex(name.as_str())
    }
}
