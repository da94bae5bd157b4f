//! Where work for the engine's task is left. Posting needs no runtime, spawns nothing and never blocks.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_core::future::BoxFuture;
use tokio::sync::{Notify, oneshot};

use super::held::Held;
use crate::error::Result;
use crate::store::{Claim, Lease};

/// A piece of work for the engine's task.
pub(crate) enum Mail {
    /// To be driven to its end; the engine does not stop before.
    Work(BoxFuture<'static, ()>),
    /// To be driven to its end as well, but for `shutdown` not to wait for.
    Stuck(BoxFuture<'static, ()>),
    /// To be driven as long as the engine lives.
    Background(BoxFuture<'static, ()>),
    /// A guard was dropped, or its release was given up half-way: release it.
    Release(Arc<Held>),
    /// Renew this hold now: a message says that its lock was broken.
    Renew(Arc<Held>),
    /// Whatever the store has under this lock id must go: nobody waits for it any more.
    Forget(Lease),
    /// The same for a claim that was withdrawn, which may have an entry in a wait queue.
    Withdraw(Claim),
    /// Release everything, and tell when it is done.
    ShutDown(oneshot::Sender<Result<()>>),
}

#[derive(Default)]
pub(crate) struct Desk {
    mail: Mutex<VecDeque<Mail>>,
    posted: Notify,
    /// Nobody is left who could post anything but what is under way.
    closed: AtomicBool,
    /// The task that read the mail is gone, and its runtime with it.
    dead: AtomicBool,
    /// The same for threads that wait without a runtime.
    ended: Mutex<bool>,
    end: Condvar,
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Mail>> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn post(&self, mail: Mail) {
        let mut queue = self.lock();
        // Looked at under the lock: a letter that came just after `die` emptied the desk would lie there for ever, and
        // with it whoever waits for its answer.
        if self.is_dead() {
            drop(queue);
            // Only leases that expire are left behind; the futures in the mail go with their runtime.
            return;
        }
        queue.push_back(mail);
        drop(queue);
        self.posted.notify_one();
    }

    /// Wakes the task without mail: the schedule changed.
    pub(crate) fn nudge(&self) {
        self.posted.notify_one();
    }

    pub(crate) fn take(&self) -> VecDeque<Mail> {
        std::mem::take(&mut *self.lock())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Resolves when something was posted since the last time.
    pub(crate) async fn changed(&self) {
        self.posted.notified().await;
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.posted.notify_one();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// From now on nothing is driven, and what is posted is dropped.
    pub(crate) fn die(&self) {
        self.dead.store(true, Ordering::SeqCst);
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.end.notify_all();
    }

    /// Drops what was posted before the end.
    pub(crate) fn empty(&self) {
        let left = self.take();
        drop(left);
    }

    /// Blocks the thread until the task is gone, this long at most.
    pub(crate) fn wait_for_end(&self, limit: Duration) {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.end.wait_timeout_while(ended, limit, |ended| !*ended);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk").field("closed", &self.is_closed()).finish_non_exhaustive()
    }
}
