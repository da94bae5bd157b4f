//! The local wait queue: the tasks of this process that want the same lock record. Only the head of the queue talks to
//! the store. A holder stays at the head until it has released or lost the lock, so a handoff inside the process is one
//! release and one acquire.
//!
//! The queue also remembers what the store last said to the head: granted, busy, or nothing. Only the first two are
//! contention for the waiters behind it. No answer may mean that the store is down.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::oneshot;

use super::held::Held;
use crate::clock::Moment;
use crate::error::Error;
use crate::resource::Resource;

/// For how long the store's last "busy" counts: longer than a waiter takes to ask again, and short enough that a store
/// that went down since is not mistaken for a held lock.
pub(super) const RECENT: Duration = Duration::from_secs(2);
/// After this many failed attempts in a row a waiter gets the error: one more than a stale connection costs.
const OUTAGE: u32 = 2;
const FIRST_SWEEP: usize = 16;

type QueueMap = HashMap<Resource, LocalQueue>;

/// The queues of all resources. A resource is in the map for as long as its queue has a head.
#[derive(Debug, Default)]
pub(crate) struct LocalQueues(Mutex<QueueMap>);

/// The queue of one resource. Most have no waiters, and need no allocation for them.
#[derive(Debug, Default)]
struct LocalQueue {
    /// The hold of the head. Empty while the head is still acquiring.
    holder: Weak<Held>,
    waiters: Option<Box<LocalWaiters>>,
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
    fn lock(&self) -> MutexGuard<'_, QueueMap> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the queue of a resource to wait.
    pub(crate) fn join(self: &Arc<Self>, resource: &Resource) -> Joined {
        match self.lock().entry(resource.clone()) {
            Entry::Occupied(mut queue) => {
                Joined::Waiting(queue.get_mut().waiters.get_or_insert_default().wait())
            }
            Entry::Vacant(free) => {
                free.insert(LocalQueue::default());
                Joined::Head(self.head(resource, false))
            }
        }
    }

    /// Joins the queue to learn whether the lock is contended. If that is unknown and `may_probe` is set, the caller asks
    /// the store itself.
    pub(crate) fn join_once(self: &Arc<Self>, resource: &Resource, now: Moment, may_probe: bool) -> Joined {
        loop {
            let holder = match self.lock().entry(resource.clone()) {
                Entry::Vacant(free) => {
                    free.insert(LocalQueue::default());
                    return Joined::Head(self.head(resource, false));
                }
                Entry::Occupied(mut queue) => {
                    if queue.get().holder.strong_count() == 0 {
                        return self.last_answer(queue.get_mut(), resource, now, may_probe);
                    }
                    Weak::clone(&queue.get().holder)
                }
            };
            // Without the lock: a hold that is found lost here, or whose last reference this is, passes the head on.
            let held = holder.upgrade().is_some_and(|held| held.loss_at(now).is_none() && held.is_held());
            if held {
                return Joined::Busy;
            }
            let mut queues = self.lock();
            match queues.get_mut(resource) {
                // It is being released. The next waiter's answer, or the head, tells more.
                Some(queue) if queue.holder.ptr_eq(&holder) => {
                    return self.last_answer(queue, resource, now, may_probe);
                }
                _ => {}
            }
        }
    }

    fn last_answer(
        self: &Arc<Self>,
        queue: &mut LocalQueue,
        resource: &Resource,
        now: Moment,
        may_probe: bool,
    ) -> Joined {
        let waiters = queue.waiters.get_or_insert_default();
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
        self.lock().get(resource)?.waiters.as_ref()?.last_error.clone()
    }

    /// Records that the head holds the lock.
    pub(crate) fn acquired(&self, held: &Arc<Held>) {
        let mut queues = self.lock();
        let Some(queue) = queues.get_mut(&held.lease.resource) else { return };
        queue.holder = Arc::downgrade(held);
        if let Some(waiters) = &mut queue.waiters {
            waiters.answered(None);
        }
    }

    /// The hold of the head, if the head holds the lock.
    pub(crate) fn holder(&self, resource: &Resource) -> Option<Arc<Held>> {
        // Upgraded without the lock: dropping the last reference passes the head on.
        let holder = self.lock().get(resource).map(|queue| Weak::clone(&queue.holder));
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
        let Some(queue) = queues.get_mut(resource) else { return };
        queue.holder = Weak::new();
        while let Some(waiter) = queue.waiters.as_mut().and_then(|waiters| waiters.next()) {
            match waiter.send(QueueMessage::Head(self.head(resource, no_overtaking))) {
                Ok(()) => return,
                // That waiter was cancelled. Its head must not pass itself on here, while the map is locked.
                Err(QueueMessage::Head(mut unwanted)) => unwanted.queues = None,
                Err(_) => {}
            }
        }
        queues.remove(resource);
    }

    fn with_waiters(&self, resource: &Resource, change: impl FnOnce(&mut LocalWaiters)) {
        if let Some(waiters) = self.lock().get_mut(resource).and_then(|queue| queue.waiters.as_mut()) {
            change(waiters);
        }
    }
}

impl QueueHead {
    /// Stays in the queue. The hold that gets the result passes the head on later.
    pub(crate) fn keep(mut self) -> Option<Arc<LocalQueues>> {
        self.queues.take()
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
        if let Some(queues) = &self.queues
            && let Some(queue) = queues.lock().get_mut(&self.resource)
        {
            let waiters = queue.waiters.get_or_insert_default();
            waiters.answered(Some(now));
            waiters.head_is_idle = true;
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
        let Some(queue) = queues.get_mut(&self.resource) else { return };
        if let Some(waiters) = &mut queue.waiters {
            waiters.probing = false;
            // A hold that the head acquired meanwhile is newer.
            waiters.answered((queue.holder.strong_count() == 0).then_some(now));
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

/// The tasks behind the head of one queue, and what they know about the head.
#[derive(Debug, Default)]
struct LocalWaiters {
    waiting: VecDeque<LocalWaiter>,
    /// Single attempts. They need only the store's next answer, and delay no waiter.
    once: VecDeque<oneshot::Sender<QueueMessage>>,
    /// When the store last said "busy" to the head or to a probe.
    busy: Option<Moment>,
    /// The error of the head's last attempt, if it failed.
    last_error: Option<Error>,
    /// How many attempts have failed in total.
    failures: u32,
    /// How many had failed when the store last answered.
    failures_before: u32,
    /// A waiter is asking the store itself.
    probing: bool,
    /// The head has its answer, and has not asked again.
    head_is_idle: bool,
    sweep_at: usize,
}

#[derive(Debug)]
struct LocalWaiter {
    /// How many attempts had failed when it joined.
    failures: u32,
    sender: oneshot::Sender<QueueMessage>,
}

impl LocalWaiters {
    fn wait(&mut self) -> oneshot::Receiver<QueueMessage> {
        self.sweep();
        let (sender, receiver) = oneshot::channel();
        self.waiting.push_back(LocalWaiter { failures: self.failures, sender });
        receiver
    }

    fn wait_once(&mut self) -> oneshot::Receiver<QueueMessage> {
        self.sweep();
        let (sender, receiver) = oneshot::channel();
        self.once.push_back(sender);
        receiver
    }

    fn len(&self) -> usize {
        self.waiting.len() + self.once.len()
    }

    /// Removes cancelled waiters whenever the queue has doubled since the last sweep.
    fn sweep(&mut self) {
        if self.len() >= self.sweep_at.max(FIRST_SWEEP) {
            self.waiting.retain(|waiter| !waiter.sender.is_closed());
            self.once.retain(|sender| !sender.is_closed());
            self.sweep_at = 2 * self.len();
        }
    }

    /// The next head: waiters in the order in which they joined, then single attempts.
    fn next(&mut self) -> Option<oneshot::Sender<QueueMessage>> {
        (self.busy, self.last_error, self.head_is_idle) = (None, None, false);
        match self.waiting.pop_front() {
            Some(waiter) => Some(waiter.sender),
            None => self.once.pop_front(),
        }
    }

    /// Records an answer of the store: "busy" at a moment, or granted.
    fn answered(&mut self, busy: Option<Moment>) {
        (self.busy, self.last_error) = (busy, None);
        self.failures_before = self.failures;
        self.tell_single_attempts(|| QueueMessage::Busy);
    }

    fn tell_single_attempts(&mut self, message: impl Fn() -> QueueMessage) {
        for sender in self.once.drain(..) {
            let _ = sender.send(message());
        }
    }

    fn failed(&mut self, error: &Error) {
        self.failures = self.failures.wrapping_add(1);
        self.last_error = Some(error.clone());
    }

    /// Sends the error to the waiters that would have got it by now, had they asked the store themselves.
    fn report_outage(&mut self, error: &Error) {
        for waiter in std::mem::take(&mut self.waiting) {
            if self.failures.wrapping_sub(waiter.failures.max(self.failures_before)) >= OUTAGE {
                let _ = waiter.sender.send(QueueMessage::Failed(error.clone()));
            } else {
                self.waiting.push_back(waiter);
            }
        }
    }
}

#[cfg(test)]
mod tests;
