//! The local wait queue: the tasks of this process that want the same lock record. Only the head of the queue talks to
//! the store. A holder stays at the head until it has released or lost the lock, so a handoff inside the process is one
//! release and one acquire.
//!
//! The queue also remembers what the store last said to the head: granted, busy, or nothing. Only the first two are
//! contention for the waiters behind it. No answer may mean that the store is down.

mod waiters;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::oneshot;

use self::waiters::LocalWaiters;
use super::held::Held;
use crate::clock::Moment;
use crate::error::Error;
use crate::resource::Resource;

/// For how long the store's last "busy" counts: longer than a waiter takes to ask again, and short enough that a store
/// that went down since is not mistaken for a held lock.
pub(super) const RECENT: Duration = Duration::from_secs(2);

/// The queues of all resources.
#[derive(Debug, Default)]
pub(crate) struct LocalQueues(Mutex<Queues>);

/// The heads, and the tasks behind them. Most queues have no waiters, and a process may have a hundred thousand: then a queue is
/// a name and a pointer. Only mutexes have local queues, so the name is enough.
#[derive(Debug, Default)]
struct Queues {
    /// The hold of each head. Empty while the head is still acquiring. A name is here for as long as its queue has a head.
    holders: HashMap<Arc<str>, Weak<Held>>,
    /// Only of names that have a head.
    waiters: HashMap<Arc<str>, LocalWaiters>,
}

impl Queues {
    /// Makes the caller the head of the queue, if it is empty.
    fn begin(&mut self, resource: &Resource) -> bool {
        match self.holders.entry(resource.shared_name()) {
            Entry::Vacant(free) => {
                free.insert(Weak::new());
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    fn waiters_of(&mut self, resource: &Resource) -> Option<&mut LocalWaiters> {
        match self.waiters.is_empty() {
            true => None,
            false => self.waiters.get_mut(resource.name()),
        }
    }

    /// The waiters of a queue that has a head.
    fn waiters_or_new(&mut self, resource: &Resource) -> &mut LocalWaiters {
        self.waiters.entry(resource.shared_name()).or_default()
    }

    fn end(&mut self, resource: &Resource) {
        self.holders.remove(resource.name());
        if !self.waiters.is_empty() {
            self.waiters.remove(resource.name());
        }
    }
}

/// The head of a queue. Dropping it passes the head to the next waiter.
#[derive(Debug)]
pub(crate) struct QueueHead {
    queues: Option<Arc<LocalQueues>>,
    resource: Resource,
    /// Set if the previous release woke a waiter of another process, which must not be overtaken.
    pub(crate) no_overtaking: bool,
}

/// The result of joining a queue.
pub(crate) enum Joined {
    /// The queue was empty.
    Head(QueueHead),
    /// Another task is at the head. A message follows. If the receiver is dropped by then, the head passes on.
    Waiting(oneshot::Receiver<QueueMessage>),
    /// Contended, by the store's last answer or because this process holds the lock.
    Busy,
    /// The store has not answered recently: ask it, and share the answer.
    Probe(Probe),
}

/// What a waiter is told.
#[derive(Debug)]
pub(crate) enum QueueMessage {
    /// It is the head now.
    Head(QueueHead),
    /// The store said "busy", or this process holds the lock.
    Busy,
    /// The store failed too often.
    Failed(Error),
    /// The probe was cancelled: join again.
    Retry,
}

impl LocalQueues {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the queue of a resource to wait.
    pub(crate) fn join(self: &Arc<Self>, resource: &Resource) -> Joined {
        let mut queues = self.lock();
        match queues.begin(resource) {
            true => Joined::Head(self.head(resource, false)),
            false => Joined::Waiting(queues.waiters_or_new(resource).wait()),
        }
    }

    /// Joins the queue to learn whether the lock is contended. If that is unknown and `may_probe` is set, the caller asks
    /// the store itself.
    pub(crate) fn join_once(self: &Arc<Self>, resource: &Resource, now: Moment, may_probe: bool) -> Joined {
        loop {
            let mut queues = self.lock();
            if queues.begin(resource) {
                return Joined::Head(self.head(resource, false));
            }
            let holder = queues.holders.get(resource.name()).map(Weak::clone).unwrap_or_default();
            if holder.strong_count() == 0 {
                return self.last_answer(&mut queues, resource, now, may_probe);
            }
            drop(queues);
            // Without the lock: a hold that is found lost here, or whose last reference this is, passes the head on.
            let held = holder.upgrade().is_some_and(|held| held.loss_at(now).is_none() && held.is_held());
            if held {
                return Joined::Busy;
            }
            let mut queues = self.lock();
            // It is being released. The next waiter's answer, or the head, tells more.
            if queues.holders.get(resource.name()).is_some_and(|now| now.ptr_eq(&holder)) {
                return self.last_answer(&mut queues, resource, now, may_probe);
            }
        }
    }

    /// For a queue that has a head.
    fn last_answer(
        self: &Arc<Self>,
        queues: &mut Queues,
        resource: &Resource,
        now: Moment,
        may_probe: bool,
    ) -> Joined {
        let waiters = queues.waiters_or_new(resource);
        if waiters.busy.is_some_and(|busy| now.since(busy) <= RECENT) {
            return Joined::Busy;
        }
        // A head that waits for its next attempt will not say anything soon.
        if (may_probe || waiters.head_is_idle) && !waiters.probing {
            waiters.probing = true;
            return Joined::Probe(Probe { queues: Some(Arc::clone(self)), resource: resource.clone() });
        }
        Joined::Waiting(waiters.wait_once())
    }

    /// The error of the head's last attempt, if it failed.
    pub(crate) fn last_error(&self, resource: &Resource) -> Option<Error> {
        self.lock().waiters_of(resource)?.last_error.clone()
    }

    /// Records that the head holds the lock.
    pub(crate) fn acquired(&self, held: &Arc<Held>) {
        let mut queues = self.lock();
        let Some(holder) = queues.holders.get_mut(held.resource.name()) else { return };
        *holder = Arc::downgrade(held);
        if let Some(waiters) = queues.waiters_of(&held.resource) {
            waiters.answered(None);
        }
    }

    /// The hold of the head, if the head holds the lock.
    pub(crate) fn holder(&self, resource: &Resource) -> Option<Arc<Held>> {
        // Upgraded without the lock: dropping the last reference passes the head on.
        let holder = self.lock().holders.get(resource.name()).map(Weak::clone);
        holder.and_then(|holder| holder.upgrade())
    }

    /// The head of a queue that this process already occupies, for the hold that kept it.
    pub(crate) fn head_of_hold(self: &Arc<Self>, resource: &Resource) -> QueueHead {
        self.head(resource, false)
    }

    fn head(self: &Arc<Self>, resource: &Resource, no_overtaking: bool) -> QueueHead {
        QueueHead { queues: Some(Arc::clone(self)), resource: resource.clone(), no_overtaking }
    }

    fn pass_head(self: &Arc<Self>, resource: &Resource, no_overtaking: bool) {
        let mut queues = self.lock();
        while let Some(waiter) = queues.waiters_of(resource).and_then(LocalWaiters::next) {
            match waiter.send(QueueMessage::Head(self.head(resource, no_overtaking))) {
                Ok(()) => {
                    if let Some(holder) = queues.holders.get_mut(resource.name()) {
                        *holder = Weak::new();
                    }
                    return;
                }
                // That waiter was cancelled. Its head must not pass itself on here, while the map is locked.
                Err(QueueMessage::Head(mut unwanted)) => unwanted.queues = None,
                Err(_) => {}
            }
        }
        queues.end(resource);
    }

    fn with_waiters(&self, resource: &Resource, change: impl FnOnce(&mut LocalWaiters)) {
        if let Some(waiters) = self.lock().waiters_of(resource) {
            change(waiters);
        }
    }
}

impl QueueHead {
    /// Stays in the queue. The hold that keeps it passes the head on later.
    pub(crate) fn keep(mut self) -> bool {
        self.queues.take().is_some()
    }

    /// Passes the head on. `woke`: the release woke a waiter of another process.
    pub(crate) fn release_to_next(mut self, woke: bool) {
        if let Some(queues) = self.queues.take() {
            queues.pass_head(&self.resource, woke);
        }
    }

    /// Records that the head asks the store again.
    pub(crate) fn asks_again(&self) {
        if let Some(queues) = &self.queues {
            queues.with_waiters(&self.resource, |waiters| waiters.head_is_idle = false);
        }
    }

    /// Records that the store answered "busy". The head waits before it asks again.
    pub(crate) fn busy(&self, now: Moment) {
        if let Some(queues) = &self.queues {
            let mut queues = queues.lock();
            if queues.holders.contains_key(self.resource.name()) {
                let waiters = queues.waiters_or_new(&self.resource);
                waiters.answered(Some(now));
                waiters.head_is_idle = true;
            }
        }
    }

    /// Records that the store failed and that the head will try again.
    pub(crate) fn failed(&self, error: &Error) {
        if let Some(queues) = &self.queues {
            queues.with_waiters(&self.resource, |waiters| waiters.failed(error));
        }
    }

    /// Records that the store failed for the last time. Waiters that have seen enough failures get the error too, instead
    /// of repeating all attempts one after the other.
    pub(crate) fn fail_waiters(self, error: &Error) {
        self.failed(error);
        if let Some(queues) = &self.queues {
            queues.with_waiters(&self.resource, |waiters| waiters.report_outage(error));
        }
    }
}

impl Drop for QueueHead {
    fn drop(&mut self) {
        if let Some(queues) = self.queues.take() {
            queues.pass_head(&self.resource, false);
        }
    }
}

/// One attempt past the head, made by one waiter for all of them. If it is dropped without an answer, another waiter may
/// probe.
#[derive(Debug)]
pub(crate) struct Probe {
    queues: Option<Arc<LocalQueues>>,
    resource: Resource,
}

impl Probe {
    /// Shares the store's answer: the lock is held, by another client or by the probing task.
    pub(crate) fn answered(mut self, now: Moment) {
        let Some(queues) = self.queues.take() else { return };
        let mut queues = queues.lock();
        let Some(holder) = queues.holders.get(self.resource.name()) else { return };
        // A hold that the head acquired meanwhile is newer.
        let busy = (holder.strong_count() == 0).then_some(now);
        if let Some(waiters) = queues.waiters_of(&self.resource) {
            waiters.probing = false;
            waiters.answered(busy);
        }
    }

    pub(crate) fn failed(mut self, error: &Error) {
        self.end(|| QueueMessage::Failed(error.clone()));
    }

    fn end(&mut self, message: impl Fn() -> QueueMessage) {
        if let Some(queues) = self.queues.take() {
            queues.with_waiters(&self.resource, |waiters| {
                waiters.probing = false;
                waiters.tell_single_attempts(message);
            });
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.end(|| QueueMessage::Retry);
    }
}

#[cfg(test)]
mod tests;
