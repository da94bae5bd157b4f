//! A held lock.

use std::fmt;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::{CancellationToken, DropGuard};

use crate::clock::{Moment, sleep_until};
use crate::engine::{Engine, Held, ReleaseFailure, RenewFailure};
use crate::error::{Error, ErrorKind, Result};
use crate::resource::{FencingToken, LockId, Resource};
use crate::store::LossReason;

/// A lock that is held: owned, `'static`, released when it is dropped.
///
/// It is renewed in the background for as long as it lives. If it cannot be renewed in time, or the store says that it is
/// no longer ours, it is *lost*: [`is_lost`](Guard::is_lost) says so from that moment on, before the store may grant the
/// lock to another client. If the runtime ends that the [`Locks`](crate::Locks) were connected on, it is lost at once, as
/// [`LossReason::RuntimeGone`]: nothing renews or releases it then, and the store frees it at its expiry.
#[must_use = "dropping a guard releases the lock"]
pub struct Guard {
    engine: Arc<Engine>,
    held: Option<Arc<Held>>,
    /// Boxed: few guards have one, and every guard would be twice as large.
    queue: Option<Box<QueueHold>>,
}

/// The head of a fair mutex's queue, kept while the mutex is wanted or held. Losing it costs order, not exclusion: the
/// mutex itself excludes.
#[derive(Debug)]
pub(crate) struct QueueHold {
    engine: Arc<Engine>,
    held: Option<Arc<Held>>,
    /// Ends the task that watches the mutex.
    watch: Option<DropGuard>,
}

impl QueueHold {
    pub(crate) fn new(engine: Arc<Engine>, held: Arc<Held>) -> Self {
        QueueHold { engine, held: Some(held), watch: None }
    }

    /// Releases the queue head when the mutex is lost. Otherwise the next waiter would wait for as long as the lost guard
    /// lives.
    fn ends_with(&mut self, mutex: &Arc<Held>) {
        if let Some(queue_head) = &self.held {
            let watch = CancellationToken::new();
            self.engine.undo_on_loss(mutex, queue_head, watch.clone());
            self.watch = Some(watch.drop_guard());
        }
    }

    /// Releases the queue head and waits for the answer, so that a client that asks after a release finds the queue empty.
    /// The mutex is released already, so a failure here is no failure of the release.
    async fn release(mut self) {
        if let Some(held) = &self.held {
            let _ = self.engine.release(held).await;
        }
        self.held = None;
    }
}

impl Drop for QueueHold {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.engine.undo(held);
        }
    }
}

impl Guard {
    pub(crate) fn new(engine: Arc<Engine>, held: Arc<Held>, queue: Option<QueueHold>) -> Self {
        let queue = queue.map(|mut queue| {
            queue.ends_with(&held);
            Box::new(queue)
        });
        Guard { engine, held: Some(held), queue }
    }

    /// Only `release`, `undo` and `drop` take the hold, and they consume the guard.
    fn held(&self) -> &Arc<Held> {
        match &self.held {
            Some(held) => held,
            None => unreachable!("the hold is taken only when the guard is consumed"),
        }
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    fn clock(&self) -> &dyn crate::Clock {
        &*self.engine.shared.clock
    }

    /// The fencing token: higher than that of every earlier holder. Pass it to the resource that the lock protects.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.held().token
    }

    /// What is held.
    #[must_use]
    pub fn resource(&self) -> &Resource {
        &self.held().resource
    }

    /// The id under which the store has it.
    #[must_use]
    pub fn lock_id(&self) -> &LockId {
        self.held().known_lock_id()
    }

    /// Whether it is lost. Correct from the first moment after a pause of any length, a suspend included. A lost guard
    /// stays lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.held().loss(self.clock()).is_some()
    }

    /// Why it is lost, if it is.
    #[must_use]
    pub fn loss(&self) -> Option<LossReason> {
        self.held().loss(self.clock()).cloned()
    }

    /// The same for many guards with one look at the clock.
    pub(crate) fn loss_at(&self, now: Moment) -> Option<&LossReason> {
        self.held().loss_at(now)
    }

    /// Resolves when it is lost, and says why. Never resolves otherwise.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn lost(&self) -> LossReason {
        let held = self.held();
        loop {
            if let Some(reason) = held.loss(self.clock()) {
                return reason.clone();
            }
            tokio::select! {
                biased;
                () = held.signal().cancelled() => {}
                () = sleep_until(self.clock(), held.deadline()) => {}
            }
        }
    }

    /// A token that is cancelled when the guard is lost, for the code that does the work. The background task cancels it,
    /// or the end of the background task's runtime.
    #[must_use]
    pub fn cancellation_token(&self) -> CancellationToken {
        self.held().signal().child_token()
    }

    /// How long it is surely ours without another renewal; zero when it is lost, `None` where it lives with a
    /// session that has no time limit.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        if self.is_lost() {
            return Some(Duration::ZERO);
        }
        match self.held().deadline() {
            Moment::NEVER => None,
            deadline => Some(deadline.since(self.clock().now())),
        }
    }

    /// A copy of the open file that the lock lives with, on stores whose locks are the kernel's (files) and on `GET_LOCK`; `None` on
    /// others. A process that has a copy keeps the lock held if this process dies, until it closes the copy: for a supervisor
    /// that ends the work done under the lock. A release frees the lock whatever copies there are.
    ///
    /// On `GET_LOCK`, a copy makes the next client on this machine wait as clients on other machines do: for the heartbeat time-out
    /// at most.
    #[cfg(unix)]
    #[must_use]
    pub fn descriptor(&self) -> Option<std::os::fd::OwnedFd> {
        self.engine.shared.backend.store().descriptor(self.lock_id())
    }

    /// Does the work while the lock is held: if the lock is lost first, the work is cancelled by dropping it.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] if the lock was lost before the work was done. What the work did until then is not undone: the
    /// fencing token protects the resource.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work; the guard stays held.
    ///
    /// ```
    /// # use distlock_core::{Locks, memory::MemoryStore, store::Backend};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> distlock_core::Result<()> {
    /// # let locks = Locks::new(Backend::lease(MemoryStore::new()))?;
    /// let guard = locks.mutex("report").acquire().await?;
    /// let rows = guard.run(async { 42 }).await?;
    /// # assert_eq!(rows, 42); Ok(()) }
    /// ```
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output> {
        tokio::select! {
            biased;
            reason = self.lost() => Err(self.lost_error(&reason)),
            output = work => Ok(output),
        }
    }

    /// Renews the lock now, for its whole expiry: for guards without automatic renewal
    /// ([`Options::auto_extend`](crate::Options::auto_extend)), and to be sure of the whole expiry before a step that must not
    /// be interrupted. With automatic renewal it is one renewal more. Where the lock lives with a session (see
    /// [`time_left`](Guard::time_left)), the session's own heartbeat renews it: nothing is sent, and this says whether it is
    /// still held.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use distlock_core::{Locks, Options, memory::MemoryStore, store::Backend};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> distlock_core::Result<()> {
    /// # let locks = Locks::new(Backend::lease(MemoryStore::new()))?;
    /// let plain_lease = Options::new().auto_extend(false);
    /// let guard = locks.mutex("import").options(plain_lease).acquire().await?;
    /// for _page in 0..3 {
    ///     guard.renew().await?;
    ///     // … work that takes less than the expiry
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] if it is lost, or the store says that it is not ours any more. [`ErrorKind::Unavailable`] and so on
    /// if the store failed: the guard stays held until its deadline, and another call may succeed.
    /// [`ErrorKind::InvalidInput`] after the [longest hold](crate::Options::max_hold).
    ///
    /// # Cancel safety
    /// If the future is dropped, the request goes on in the background, and its answer counts.
    pub async fn renew(&self) -> Result<()> {
        if let Some(queue_head) = self.queue.as_ref().and_then(|queue| queue.held.as_ref()) {
            // The queue of a fair mutex. Losing it costs order, not exclusion.
            let (lock, _) = tokio::join!(self.engine.renew(self.held()), self.engine.renew(queue_head));
            return lock.map_err(|failure| self.renew_error(failure));
        }
        self.engine.renew(self.held()).await.map_err(|failure| self.renew_error(failure))
    }

    fn renew_error(&self, failure: RenewFailure) -> Error {
        match failure {
            RenewFailure::Lost(reason) => self.lost_error(&reason),
            RenewFailure::Failed(error) => {
                error.doing("renew").about(self.resource()).on(Arc::clone(&self.engine.shared.store_name))
            }
        }
    }

    pub(crate) fn hold(&self) -> &Arc<Held> {
        self.held()
    }

    pub(crate) fn lost_error(&self, reason: &LossReason) -> Error {
        Error::new(ErrorKind::Lost, format!("the lock was lost: {reason}"))
            .about(self.resource())
            .on(Arc::clone(&self.engine.shared.store_name))
            .advise("stop the work, and let the resource refuse the old token")
    }

    /// Releases the lock and waits for the store's answer. With a least hold time it waits for that first.
    ///
    /// # Errors
    /// [`ReleaseError::Lost`] if it was lost before; [`ReleaseError::Unknown`] if the store did not confirm: then it is
    /// released in the background, or expires after the time given.
    ///
    /// # Cancel safety
    /// If the future is dropped, the lock is released in the background.
    pub async fn release(mut self) -> Result<(), ReleaseError> {
        let held = Arc::clone(self.held());
        let ended = self.engine.release(&held).await;
        self.held = None;
        if let Some(queue) = self.queue.take() {
            queue.release().await;
        }
        ended.map_err(|failure| match failure {
            ReleaseFailure::Lost(reason) => ReleaseError::Lost {
                error: Error::new(
                    ErrorKind::Lost,
                    format!("the lock was lost before it was released: {reason}"),
                )
                .about(&held.resource)
                .on(Arc::clone(&self.engine.shared.store_name)),
                reason,
            },
            ReleaseFailure::Unknown { until, error } => ReleaseError::Unknown { until, error },
        })
    }

    /// The longest time that a release takes: the least hold time, and a request each for the lock and its queue.
    pub(crate) fn longest_release(&self) -> Duration {
        let options = &self.held().options;
        options.get_hold_at_least().saturating_add(options.get_request_timeout() * 2)
    }

    /// Releases in the background a lock that the user never got: one of several of which another could not be acquired.
    /// At once, since the least hold time is for work that was begun.
    pub(crate) fn undo(mut self) {
        if let Some(held) = self.held.take() {
            self.engine.undo(held);
        }
    }

    /// Forgets the guard without releasing the lock: it stays held, and is renewed, as long as the engine and its runtime
    /// live. For a lock that is to be held until the process ends.
    pub fn leak(self) -> FencingToken {
        let guard = ManuallyDrop::new(self);
        guard.token()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.engine.release_later(held);
        }
        // After the lock, so that the next waiter finds the lock free.
        drop(self.queue.take());
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("resource", self.resource())
            .field("token", &self.token().get())
            .field("lost", &self.is_lost())
            .finish_non_exhaustive()
    }
}

/// Why a lock was not released, or not surely.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ReleaseError {
    /// It was lost before.
    Lost {
        /// Why.
        reason: LossReason,
        /// The same as an error.
        error: Error,
    },
    /// The store did not confirm the release, which is retried in the background.
    Unknown {
        /// The lock has expired after this long at the latest.
        until: Duration,
        /// What went wrong.
        error: Error,
    },
}

impl From<ReleaseError> for Error {
    fn from(error: ReleaseError) -> Self {
        match error {
            ReleaseError::Lost { error, .. } | ReleaseError::Unknown { error, .. } => error,
        }
    }
}

impl fmt::Display for ReleaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReleaseError::Lost { error, .. } => error.fmt(f),
            ReleaseError::Unknown { until, error } => {
                error.fmt(f)?;
                write!(f, "; the release is retried, and the lock expires within {until:?}")
            }
        }
    }
}

impl std::error::Error for ReleaseError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // The text of the error is part of ours.
            ReleaseError::Lost { error, .. } | ReleaseError::Unknown { error, .. } => error.source(),
        }
    }
}
