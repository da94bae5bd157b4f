//! What a granted lock is: the guard.

use std::fmt;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::{CancellationToken, DropGuard};

use crate::clock::{Moment, sleep_until};
use crate::engine::{Engine, Held, ReleaseFailure};
use crate::error::{Error, ErrorKind, Result};
use crate::resource::{FencingToken, LockId, Resource};
use crate::store::LossReason;

/// A lock that is held: owned, `'static`, released when it is dropped.
///
/// It is extended in the background for as long as it lives. If it cannot be extended in time, or the store says
/// that it is not ours any more, it is *lost*: [`is_lost`](Guard::is_lost) says so from that moment on, before
/// the store may grant the lock to another client. It is lost at once, as [`LossReason::RuntimeGone`], if the runtime ends
/// that the [`Locks`](crate::Locks) were connected on: nothing renews or releases it then, and the store frees it at its
/// expiry.
#[must_use = "dropping a guard releases the lock"]
pub struct Guard {
    engine: Arc<Engine>,
    held: Option<Arc<Held>>,
    /// Boxed, since few guards have one and every guard would be twice as large.
    turn: Option<Box<TurnHold>>,
}

/// The place at the head of a fair mutex's queue, kept while the mutex is wanted or held. Losing it costs order,
/// not exclusion: that is the mutex's own.
#[derive(Debug)]
pub(crate) struct TurnHold {
    engine: Arc<Engine>,
    held: Option<Arc<Held>>,
    /// Ends whatever watches the mutex for this turn.
    watch: Option<DropGuard>,
}

impl TurnHold {
    pub(crate) fn new(engine: Arc<Engine>, held: Arc<Held>) -> Self {
        TurnHold { engine, held: Some(held), watch: None }
    }

    /// Gives the turn back when the mutex is lost: it would keep the next one waiting for as long as the lost guard
    /// lives.
    fn ends_with(&mut self, mutex: &Arc<Held>) {
        if let Some(turn) = &self.held {
            let watch = CancellationToken::new();
            self.engine.undo_on_loss(mutex, turn, watch.clone());
            self.watch = Some(watch.drop_guard());
        }
    }

    /// Gives the turn back and waits for it, so that whoever asks after a release finds nobody there. How it ended
    /// matters to nobody.
    async fn release(mut self) {
        if let Some(held) = &self.held {
            let _ = self.engine.release(held).await;
        }
        self.held = None;
    }
}

impl Drop for TurnHold {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.engine.undo(held);
        }
    }
}

impl Guard {
    pub(crate) fn new(engine: Arc<Engine>, held: Arc<Held>, turn: Option<TurnHold>) -> Self {
        let turn = turn.map(|mut turn| {
            turn.ends_with(&held);
            Box::new(turn)
        });
        Guard { engine, held: Some(held), turn }
    }

    /// The hold is there from the beginning to `release` or `drop`, which take the guard itself.
    fn held(&self) -> &Arc<Held> {
        match &self.held {
            Some(held) => held,
            None => unreachable!("a guard without its hold is never handed out"),
        }
    }

    fn clock(&self) -> &dyn crate::Clock {
        &*self.engine.shared.clock
    }

    /// The fencing token: higher than that of every earlier holder. Give it to what the lock protects.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.held().lease.token
    }

    /// What is held.
    #[must_use]
    pub fn resource(&self) -> &Resource {
        &self.held().lease.resource
    }

    /// The id under which the store has it.
    #[must_use]
    pub fn lock_id(&self) -> &LockId {
        &self.held().lease.lock_id
    }

    /// Whether it is lost. Right in the first moment after a pause of any length, a suspend included; and once it
    /// says so, it says so for ever.
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
                () = held.signal().cancelled() => {}
                () = sleep_until(self.clock(), held.deadline()) => {}
            }
        }
    }

    /// A token that is cancelled when the guard is lost, to be handed to whatever does the work. It is cancelled by the
    /// task that renews the lock, and at once when the runtime of that task ends.
    #[must_use]
    pub fn cancellation_token(&self) -> CancellationToken {
        self.held().signal().child_token()
    }

    /// How long it is surely ours without a further extension; zero when it is lost, `None` where it lives with a
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

    /// A copy of the open file that the lock lives with, on stores whose locks are the kernel's (files); `None` on others.
    /// A process that has a copy keeps the lock held if this process dies, until it closes the copy: for a supervisor
    /// that ends what was done under the lock. A release frees the lock whatever copies there are.
    #[cfg(unix)]
    #[must_use]
    pub fn descriptor(&self) -> Option<std::os::fd::OwnedFd> {
        self.engine.shared.backend.store().descriptor(self.lock_id())
    }

    /// Does the work while the lock is held: if the lock is lost first, the work is cancelled by dropping it.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] if the lock was lost before the work was done. What the work did until then is done:
    /// the fencing token is what protects the resource.
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

    fn lost_error(&self, reason: &LossReason) -> Error {
        Error::new(ErrorKind::Lost, format!("the lock was lost: {reason}"))
            .about(self.resource())
            .on(Arc::clone(&self.engine.shared.store_name))
            .advise("stop the work, and let the resource refuse the old token")
    }

    /// Gives the lock back and tells how it ended. With a least hold time it waits for that first.
    ///
    /// # Errors
    /// [`ReleaseError::Lost`] if it was lost before; [`ReleaseError::Unknown`] if the store did not confirm: it is
    /// released in the background, or ends by itself after the time told.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the release to the background.
    pub async fn release(mut self) -> Result<(), ReleaseError> {
        let held = Arc::clone(self.held());
        let ended = self.engine.release(&held).await;
        self.held = None;
        if let Some(turn) = self.turn.take() {
            turn.release().await;
        }
        ended.map_err(|failure| match failure {
            ReleaseFailure::Lost(reason) => ReleaseError::Lost {
                error: Error::new(
                    ErrorKind::Lost,
                    format!("the lock was lost before it was released: {reason}"),
                )
                .about(&held.lease.resource)
                .on(Arc::clone(&self.engine.shared.store_name)),
                reason,
            },
            ReleaseFailure::Unknown { until, error } => ReleaseError::Unknown { until, error },
        })
    }

    /// How long a release takes at the longest: the least hold time, the lock's request, and its turn's.
    pub(crate) fn longest_release(&self) -> Duration {
        let options = &self.held().options;
        options.get_hold_at_least().saturating_add(options.get_request_timeout() * 2)
    }

    /// Gives back in the background what the user never got: one of several that were asked for together. The least
    /// hold time is for work that was begun.
    pub(crate) fn undo(mut self) {
        if let Some(held) = self.held.take() {
            self.engine.undo(held);
        }
    }

    /// Lets go of the guard without releasing: the lock stays held, and extended, as long as the engine and its
    /// runtime live. For a lock that is to be held until the process ends.
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
        // The turn goes after the lock, so that who is next finds it free.
        drop(self.turn.take());
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

/// How a release ended, if not with the lock given back by us.
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
    /// The store did not confirm the release. It is tried again in the background.
    Unknown {
        /// After this long it has ended by itself at the latest.
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
                write!(f, "{error}; it is tried again, and the lock ends by itself within {until:?}")
            }
        }
    }
}

impl std::error::Error for ReleaseError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ReleaseError::Lost { error, .. } | ReleaseError::Unknown { error, .. } => Some(error),
        }
    }
}
