//! The command channel of the background task. Sending needs no runtime, spawns nothing and never blocks.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_core::future::BoxFuture;
use tokio::sync::{Notify, oneshot};

use super::held::Held;
use super::pending_releases::PendingRelease;
use crate::error::Result;
use crate::store::{Claim, Lease};

/// A command for the background task.
pub(crate) enum Command {
    /// Drive this future to completion. The engine does not stop before it completes.
    Work(BoxFuture<'static, ()>),
    /// Like [`Command::Work`], but `shutdown` does not wait for it.
    Stuck(BoxFuture<'static, ()>),
    /// Drive this future for as long as the engine runs.
    Background(BoxFuture<'static, ()>),
    /// Release a hold: its guard was dropped, or a caller cancelled the release. Pending unless it is still to be held.
    Release(Arc<Held>, Option<PendingRelease>),
    /// Renew this hold now: a wake-up says that its lock was broken.
    Renew(Arc<Held>),
    /// Remove everything that the store has under this lock id. No caller wants it any more.
    Forget(Lease, Option<PendingRelease>),
    /// Like [`Command::Forget`], for a withdrawn claim that may have an entry in a wait queue.
    Withdraw(Claim, Option<PendingRelease>),
    /// Release everything and report when that is done.
    ShutDown(oneshot::Sender<Result<()>>),
}

#[derive(Default)]
pub(crate) struct CommandChannel {
    queue: Mutex<VecDeque<Command>>,
    notify: Notify,
    /// The last `Engine` was dropped. Only work that is already in flight still sends commands.
    closed: AtomicBool,
    /// The background task has ended, alone or with its runtime.
    dead: AtomicBool,
    /// The same as `dead`, for threads that block without a runtime.
    ended: Mutex<bool>,
    end: Condvar,
}

impl CommandChannel {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Command>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a command, or drops it if the background task has ended. Leases left behind then expire.
    pub(crate) fn send(&self, command: Command) {
        let mut queue = self.lock();
        // Checked under the lock: a command queued after `drain` would stay for ever, and so would its caller.
        if self.is_dead() {
            // Dropped after the lock is released, since dropping a command may send another one.
            drop(queue);
            return;
        }
        queue.push_back(command);
        drop(queue);
        self.notify.notify_one();
    }

    /// Wakes the background task without a command, because the schedule changed.
    pub(crate) fn wake(&self) {
        self.notify.notify_one();
    }

    pub(crate) fn take(&self) -> VecDeque<Command> {
        std::mem::take(&mut *self.lock())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Resolves when a command or a wake-up was sent since the last call.
    pub(crate) async fn changed(&self) {
        self.notify.notified().await;
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.notify.notify_one();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Marks the background task as ended. Later commands are dropped.
    pub(crate) fn mark_dead(&self) {
        self.dead.store(true, Ordering::SeqCst);
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.end.notify_all();
    }

    /// Drops the commands that were sent before the end, without holding the lock.
    pub(crate) fn drain(&self) {
        let left = self.take();
        drop(left);
    }

    /// Blocks the thread until the background task has ended, or until `limit` has passed.
    pub(crate) fn wait_for_end(&self, limit: Duration) {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.end.wait_timeout_while(ended, limit, |ended| !*ended);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }
}

impl std::fmt::Debug for CommandChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CommandChannel").field("closed", &self.is_closed()).finish_non_exhaustive()
    }
}
