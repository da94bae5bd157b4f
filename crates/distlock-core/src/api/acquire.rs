//! Asking for a lock: the builders that become futures.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use futures_core::future::BoxFuture;

use super::guard::{Guard, TurnHold};
use super::locks::Locks;
use crate::engine::{Ask, Wait};
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::resource::{Kind, Resource};
use crate::store::Fairness;

/// What is asked for, before it is checked.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) kind: Kind,
    pub(crate) name: Arc<str>,
    pub(crate) weight: u32,
    pub(crate) capacity: u32,
    pub(crate) fair: bool,
    pub(crate) options: Arc<Options>,
}

/// A target that was checked: only the store can refuse it.
pub(crate) struct Checked {
    /// The place at the head of a fair mutex's queue, which is acquired first.
    turn: Option<Ask>,
    ask: Ask,
}

impl Checked {
    /// Takes it, waiting as asked. `Ok(None)`: it was busy until then.
    pub(crate) async fn acquire(&self, locks: &Locks, wait: Wait) -> Result<Option<Guard>> {
        let engine = &locks.engine;
        let turn = match &self.turn {
            None => None,
            Some(turn) => match engine.acquire(turn, wait).await? {
                Some(held) => Some(TurnHold::new(Arc::clone(engine), held)),
                None => return Ok(None),
            },
        };
        let held = engine.acquire(&self.ask, wait).await?;
        Ok(held.map(|held| Guard::new(Arc::clone(engine), held, turn)))
    }
}

impl Target {
    /// Finds everything that is wrong with it before anything is sent.
    pub(crate) fn check(&self, locks: &Locks) -> Result<Checked> {
        let resource = self.resource()?;
        locks.engine.require(self.kind)?;
        let turn = if self.fair && locks.capabilities().fairness != Fairness::Native {
            locks.engine.require(Kind::FairQueue)?;
            Some(Ask {
                resource: Resource::new(Kind::FairQueue, Arc::clone(&self.name))?,
                weight: 1,
                capacity: 1,
                no_overtaking: true,
                options: Arc::clone(&self.options),
            })
        } else {
            None
        };
        let ask = Ask {
            resource,
            weight: self.weight,
            capacity: self.capacity,
            no_overtaking: self.fair,
            options: Arc::clone(&self.options),
        };
        Ok(Checked { turn, ask })
    }

    fn resource(&self) -> Result<Resource> {
        let resource =
            Resource::new(self.kind, Arc::clone(&self.name)).map_err(|error| error.doing("acquire"))?;
        self.options.check().map_err(|error| error.doing("acquire").about(&resource))?;
        if self.kind == Kind::Semaphore {
            let problem = if self.capacity == 0 || self.capacity > crate::resource::MAX_PERMITS {
                Some(format!(
                    "a semaphore of {} permits is not between 1 and {}",
                    self.capacity,
                    crate::resource::MAX_PERMITS
                ))
            } else if self.weight == 0 {
                Some("no permits are asked for".to_owned())
            } else if self.weight > self.capacity {
                Some(format!("{} permits are asked for, and there are {} in all", self.weight, self.capacity))
            } else {
                None
            };
            if let Some(problem) = problem {
                return Err(Error::new(ErrorKind::InvalidInput, problem)
                    .doing("acquire")
                    .about(&resource)
                    .advise("ask for at least one permit and at most all of them"));
            }
        }
        Ok(resource)
    }

    /// Checks it and takes it, waiting as asked. `Ok(None)`: it was busy until then.
    async fn acquire(&self, locks: &Locks, wait: Wait) -> Result<Option<Guard>> {
        self.check(locks)?.acquire(locks, wait).await
    }

    pub(crate) fn timed_out(&self, locks: &Locks, after: Duration) -> Error {
        let error = Error::new(ErrorKind::Timeout, format!("somebody else held it for the whole {after:?}"))
            .doing("acquire")
            .on(locks.store().to_owned())
            .advise("wait longer, or find the holder with `distlock show`");
        match Resource::new(self.kind, Arc::clone(&self.name)) {
            Ok(resource) => error.about(&resource),
            Err(_) => error,
        }
    }
}

/// The wait that a time limit means: zero is one attempt.
pub(crate) fn wait_of(locks: &Locks, timeout: Option<Duration>) -> Wait {
    match timeout {
        None => Wait::Forever,
        Some(Duration::ZERO) => Wait::Once,
        Some(limit) => Wait::Until(locks.engine.shared.clock.now().after(limit)),
    }
}

/// An acquisition that waits: `.await` it. Without a time limit it waits for ever.
///
/// # Errors
/// [`ErrorKind::Timeout`] if somebody else held the lock until the time limit passed;
/// [`ErrorKind::Unavailable`], [`ErrorKind::Denied`] and so on if the store failed: never mistaken for contention.
///
/// # Cancel safety
/// Dropping the future at any point leaves nothing held and nothing waiting, also when a request was on the wire.
#[derive(Debug)]
#[must_use = "nothing is acquired before it is awaited"]
pub struct Acquire {
    locks: Locks,
    target: Target,
    timeout: Option<Duration>,
}

impl Acquire {
    pub(crate) fn new(locks: Locks, target: Target) -> Self {
        Acquire { locks, target, timeout: None }
    }

    /// Waits at most this long, from the moment it is awaited; zero is one attempt.
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
            let wait = wait_of(&self.locks, self.timeout);
            match self.target.acquire(&self.locks, wait).await? {
                Some(guard) => Ok(guard),
                None => Err(self.target.timed_out(&self.locks, self.timeout.unwrap_or_default())),
            }
        })
    }
}

/// An attempt: `.await` it. `None` if somebody else has the lock, at once or after the time limit.
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
    target: Target,
    timeout: Duration,
}

impl TryAcquire {
    pub(crate) fn new(locks: Locks, target: Target) -> Self {
        TryAcquire { locks, target, timeout: Duration::ZERO }
    }

    /// Waits at most this long before it gives `None`.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }
}

impl IntoFuture for TryAcquire {
    type Output = Result<Option<Guard>>;
    type IntoFuture = BoxFuture<'static, Result<Option<Guard>>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let wait = wait_of(&self.locks, Some(self.timeout));
            self.target.acquire(&self.locks, wait).await
        })
    }
}
