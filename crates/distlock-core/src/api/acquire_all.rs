//! Acquiring several locks: all or none, without deadlock.

use std::future::IntoFuture;
use std::time::Duration;

use futures_core::future::BoxFuture;

use super::acquire::Request;
use super::guard::Guard;
use super::guard_set::GuardSet;
use super::handle::Handle;
use super::locks::Locks;
use super::timeout::TimeLimit;
use crate::clock::Moment;
use crate::engine::Wait;
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;

/// Acquires several locks: `.await` it. Made by [`Locks::acquire_all`].
///
/// All requests are checked before anything is sent. If a lock is lost while the next ones are waited for, all are released
/// and acquired again, within the time limit if there is one: the returned set is held as a whole.
///
/// # Errors
/// As for [`Acquire`](super::Acquire); [`ErrorKind::InvalidInput`] if one resource is named twice, which would wait for
/// itself; [`ErrorKind::Lost`] if a lock was lost meanwhile and the time limit allows no other try. If a request fails,
/// the locks acquired before it are released.
///
/// # Cancel safety
/// Dropping the future at any point leaves nothing held.
#[derive(Debug)]
#[must_use = "nothing is acquired before it is awaited"]
pub struct AcquireAll {
    locks: Locks,
    requests: Vec<Request>,
    timeout: Option<Duration>,
}

impl AcquireAll {
    pub(crate) fn new(locks: Locks, requests: Vec<Request>) -> Self {
        AcquireAll { locks, requests, timeout: None }
    }

    /// One time limit for all of them together; zero is one attempt for each.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// Other options than those of the [`Locks`]: what they name changes.
    pub fn options(mut self, options: Options) -> Self {
        self.locks = self.locks.with_options(options);
        self
    }

    /// Puts the requests in the order in which every client acquires them, and checks them. A client that waits holds
    /// only locks that are earlier in that order, so no two wait for each other.
    fn sort_and_check(&mut self) -> Result<()> {
        self.requests.sort_by(|a, b| a.key().cmp(&b.key()));
        if let Some(pair) = self.requests.windows(2).find(|pair| pair[0].key() == pair[1].key()) {
            let (kind, name) = pair[0].key();
            return Err(Error::new(ErrorKind::InvalidInput, format!("the {kind} {name:?} is named twice"))
                .doing("acquire all")
                .advise("name each resource once: it would wait for itself"));
        }
        self.requests.iter().try_for_each(|request| request.check_input(&self.locks.options).map(drop))
    }

    /// Acquires all of them, waiting as asked. `Ok(None)`: `contention` says that it is no error, and one was contended.
    async fn acquire(mut self, limit: TimeLimit, contention: Contention) -> Result<Option<GuardSet>> {
        self.sort_and_check().map_err(|error| error.on(self.locks.store().to_owned()))?;
        let handle = self.locks.handle(&limit).await?;
        self.requests.iter().try_for_each(|request| request.check(&handle).map(drop))?;
        let clock = self.locks.clock();
        loop {
            match self.acquire_once(&handle, &limit, contention).await? {
                Outcome::All(set) => return Ok(Some(set)),
                Outcome::Contended => return Ok(None),
                Outcome::Lost(lost) if limit.wait == Wait::Once || limit.wait.over(clock.now()) => {
                    return Err(lost);
                }
                Outcome::Lost(_) => {}
            }
        }
    }

    /// Acquires all of them once. Unless all are acquired, all are released.
    async fn acquire_once(
        &self,
        locks: &Handle,
        limit: &TimeLimit,
        contention: Contention,
    ) -> Result<Outcome> {
        let clock = self.locks.clock();
        let mut acquired = Acquired(Vec::with_capacity(self.requests.len()));
        for request in &self.requests {
            acquired.0.push(match contention {
                Contention::IsAnError => request.acquire(locks, limit).await?,
                Contention::IsAnAnswer => match request.try_acquire(locks, limit).await? {
                    Some(guard) => guard,
                    None => return Ok(Outcome::Contended),
                },
            });
            // The rest would be waited for in vain.
            if let Some(lost) = acquired.loss(clock.now()) {
                return Ok(Outcome::Lost(lost.doing("acquire all").on(locks.store().to_owned())));
            }
        }
        Ok(Outcome::All(GuardSet::new(std::mem::take(&mut acquired.0))))
    }
}

impl IntoFuture for AcquireAll {
    type Output = Result<GuardSet>;
    type IntoFuture = BoxFuture<'static, Result<GuardSet>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let limit = TimeLimit::starting_now(&self.locks, self.timeout);
            match self.acquire(limit, Contention::IsAnError).await? {
                Some(set) => Ok(set),
                None => Err(Error::new(ErrorKind::Internal, "contention without a time-out")),
            }
        })
    }
}

/// An attempt to acquire several locks: `.await` it. `None` if one of them is held by another client, at once or until the
/// [time limit](TryAcquireAll::timeout); none is held then. Made by [`Locks::try_acquire_all`].
///
/// # Errors
/// As for [`AcquireAll`], but contention is not an error.
///
/// # Cancel safety
/// Dropping the future at any point leaves nothing held.
#[derive(Debug)]
#[must_use = "nothing is acquired before it is awaited"]
pub struct TryAcquireAll(AcquireAll);

impl TryAcquireAll {
    pub(crate) fn new(locks: Locks, requests: Vec<Request>) -> Self {
        TryAcquireAll(AcquireAll::new(locks, requests))
    }

    /// Waits at most this long for all of them together before it gives `None`; zero is one attempt for each.
    pub fn timeout(self, limit: Duration) -> Self {
        TryAcquireAll(self.0.timeout(limit))
    }

    /// Other options than those of the [`Locks`]: what they name changes.
    pub fn options(self, options: Options) -> Self {
        TryAcquireAll(self.0.options(options))
    }
}

impl IntoFuture for TryAcquireAll {
    type Output = Result<Option<GuardSet>>;
    type IntoFuture = BoxFuture<'static, Result<Option<GuardSet>>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let limit = match self.0.timeout {
                Some(timeout) => TimeLimit::starting_now(&self.0.locks, Some(timeout)),
                None => TimeLimit::one_request(&self.0.locks),
            };
            self.0.acquire(limit, Contention::IsAnAnswer).await
        })
    }
}

/// What a lock that is held by another client means.
#[derive(Clone, Copy, Debug)]
enum Contention {
    IsAnError,
    IsAnAnswer,
}

/// How one round ended.
enum Outcome {
    All(GuardSet),
    Contended,
    /// One was lost while the others were waited for.
    Lost(Error),
}

/// The guards acquired so far. Dropping it undoes them, last first.
struct Acquired(Vec<Guard>);

impl Acquired {
    /// The first guard that is lost, as an error.
    fn loss(&self, now: Moment) -> Option<Error> {
        self.0.iter().find_map(|guard| {
            let reason = guard.loss_at(now)?;
            let what = format!("it was lost while the others were waited for: {reason}");
            let error = Error::new(ErrorKind::Lost, what).about(guard.resource());
            Some(error.advise("set a longer expiry, or leave automatic extension on"))
        })
    }
}

impl Drop for Acquired {
    fn drop(&mut self) {
        self.0.drain(..).rev().for_each(Guard::undo);
    }
}
