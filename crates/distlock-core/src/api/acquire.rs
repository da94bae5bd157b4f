//! Acquiring one lock: the builders that become futures.

use std::future::IntoFuture;
use std::time::Duration;

use futures_core::future::BoxFuture;

use super::guard::Guard;
use super::locks::Locks;
use super::request::Request;
use super::timeout::TimeLimit;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::Result;

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
            self.request.check_input(&self.locks.options)?;
            let handle = self.locks.handle(&limit).await?;
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
            self.request.check_input(&self.locks.options)?;
            let handle = self.locks.handle(&limit).await?;
            self.request.try_acquire(&handle, &limit).await
        })
    }
}
