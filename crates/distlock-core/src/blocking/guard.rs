//! Held locks of the blocking API.

use std::sync::Arc;
use std::time::Duration;

use super::runtime::Blocking;
use crate::error::Result;
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
