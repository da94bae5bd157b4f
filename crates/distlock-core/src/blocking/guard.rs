//! Held locks of the blocking API.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::runtime::Blocking;
use crate::error::{Error, ErrorKind, Result};
use crate::resource::{FencingToken, LockId, Resource};
use crate::store::LossReason;

/// A lock that is held, and extended in the background. Dropping it releases it before the drop returns, after the
/// least hold time if there is one, unless the store does not answer within the request time-out: then it goes on in
/// the background. A thread-local may drop it too.
#[derive(Debug)]
#[must_use = "dropping a guard releases the lock"]
pub struct Guard {
    /// There until it is released.
    inner: Option<crate::Guard>,
    blocking: Arc<Blocking>,
}

impl Guard {
    pub(super) fn new(blocking: Arc<Blocking>, inner: crate::Guard) -> Self {
        Guard { inner: Some(inner), blocking }
    }

    fn inner(&self) -> &crate::Guard {
        match &self.inner {
            Some(inner) => inner,
            None => unreachable!("taken only by release and drop"),
        }
    }

    /// The fencing token; see [`crate::Guard::token`].
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.inner().token()
    }

    /// What is held.
    #[must_use]
    pub fn resource(&self) -> &Resource {
        self.inner().resource()
    }

    /// The id under which the store has it.
    #[must_use]
    pub fn lock_id(&self) -> &LockId {
        self.inner().lock_id()
    }

    /// Whether it is lost; see [`crate::Guard::is_lost`]. Long work asks this between its steps.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.inner().is_lost()
    }

    /// Why it is lost, if it is.
    #[must_use]
    pub fn loss(&self) -> Option<LossReason> {
        self.inner().loss()
    }

    /// How long it is surely ours; see [`crate::Guard::time_left`].
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        self.inner().time_left()
    }

    /// Blocks until it is lost, this long at most. `None`: it is still held.
    ///
    /// # Errors
    /// Inside an async runtime.
    pub fn wait_lost(&self, limit: Duration) -> Result<Option<LossReason>> {
        self.blocking.wait(async { tokio::time::timeout(limit, self.inner().lost()).await.ok() })
    }

    /// A token that is cancelled when the guard is lost; see [`crate::Guard::cancellation_token`].
    #[must_use]
    pub fn cancellation_token(&self) -> CancellationToken {
        self.inner().cancellation_token()
    }

    /// Renews it now; see [`crate::Guard::renew`].
    ///
    /// # Errors
    /// As there; inside an async runtime.
    pub fn renew(&self) -> Result<()> {
        self.blocking.wait(self.inner().renew())?
    }

    /// Does the work on this thread while the lock is held. A thread cannot be stopped from outside: the work gets a token that is
    /// cancelled when the lock is lost, and looks at it between its steps.
    ///
    /// ```
    /// # use distlock_core::{blocking, memory::MemoryStore, store::Backend};
    /// # fn main() -> distlock_core::Result<()> {
    /// # let locks = blocking::Locks::open(async { Ok(Backend::lease(MemoryStore::new())) })?;
    /// let guard = locks.mutex("report").acquire()?;
    /// let rows = guard.run(|lost| (0..10).take_while(|_| !lost.is_cancelled()).count())?;
    /// # assert_eq!(rows, 10); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if the lock was lost before the work was done; its result is dropped then. If the
    /// lock is lost already, the work is not begun.
    pub fn run<T>(&self, work: impl FnOnce(&CancellationToken) -> T) -> Result<T> {
        self.check_held()?;
        let output = work(&self.cancellation_token());
        self.check_held()?;
        Ok(output)
    }

    fn check_held(&self) -> Result<()> {
        self.loss().map_or(Ok(()), |reason| Err(self.inner().lost_error(&reason)))
    }

    /// Gives it back and tells how it ended.
    ///
    /// # Errors
    /// As for [`crate::Guard::release`].
    pub fn release(mut self) -> Result<()> {
        match self.inner.take() {
            Some(inner) => Ok(self.blocking.wait(inner.release())??),
            None => Ok(()),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            let (engine, limit) = (Arc::clone(inner.engine()), inner.longest_release());
            self.blocking.wait_in_background(&engine, limit, async move {
                let _ = inner.release().await;
            });
        }
    }
}

/// The guards of [`Locks::acquire_all`](super::Locks::acquire_all).
#[derive(Debug)]
#[must_use = "dropping the guards releases the locks"]
pub struct GuardSet {
    guards: Vec<Guard>,
}

impl GuardSet {
    pub(super) fn new(blocking: Arc<Blocking>, inner: crate::GuardSet) -> Self {
        let guards =
            inner.into_guards().into_iter().map(|guard| Guard::new(Arc::clone(&blocking), guard)).collect();
        GuardSet { guards }
    }

    /// The guards, ordered by kind and name.
    pub fn guards(&self) -> &[Guard] {
        &self.guards
    }

    /// Whether any of them is lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.guards.iter().any(Guard::is_lost)
    }

    /// The guard of this name; see [`crate::GuardSet::guard`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if the set has none, or several kinds of this name.
    pub fn guard(&self, name: &str) -> Result<&Guard> {
        let mut named = self.guards.iter().filter(|guard| guard.resource().name() == name);
        match (named.next(), named.next()) {
            (Some(guard), None) => Ok(guard),
            (found, _) => {
                let which = if found.is_none() { "no lock" } else { "several locks" };
                Err(Error::new(ErrorKind::InvalidInput, format!("the set has {which} named {name:?}"))
                    .advise("see guards() for those it has"))
            }
        }
    }

    /// The fencing token of the lock of this name.
    ///
    /// # Errors
    /// As for [`guard`](GuardSet::guard).
    pub fn token(&self, name: &str) -> Result<FencingToken> {
        self.guard(name).map(Guard::token)
    }

    /// Renews all of them.
    ///
    /// # Errors
    /// The first error, which names its lock; the others are renewed nevertheless.
    pub fn renew(&self) -> Result<()> {
        self.guards.iter().map(Guard::renew).fold(Ok(()), Result::and)
    }

    /// Gives all of them back.
    ///
    /// # Errors
    /// The first error; the other guards are released too.
    pub fn release(self) -> Result<()> {
        let mut ended = Ok(());
        for guard in self.guards.into_iter().rev() {
            ended = ended.and(guard.release());
        }
        ended
    }
}
