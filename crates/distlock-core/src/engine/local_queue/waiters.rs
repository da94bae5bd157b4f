//! The tasks behind the head of one local wait queue.

use std::collections::VecDeque;

use tokio::sync::oneshot;

use super::QueueMessage;
use crate::clock::Moment;
use crate::error::Error;

/// After this many failed attempts in a row a waiter gets the error: one more than a stale connection costs.
const OUTAGE: u32 = 2;
const FIRST_SWEEP: usize = 16;

/// The tasks behind the head of one queue, and what they know about the head.
#[derive(Debug, Default)]
pub(super) struct LocalWaiters {
    pub(super) waiting: VecDeque<LocalWaiter>,
    /// Single attempts. They need only the store's next answer, and delay no waiter.
    pub(super) once: VecDeque<oneshot::Sender<QueueMessage>>,
    /// When the store last said "busy" to the head or to a probe.
    pub(super) busy: Option<Moment>,
    /// The error of the head's last attempt, if it failed.
    pub(super) last_error: Option<Error>,
    /// How many attempts have failed in total.
    failures: u32,
    /// How many had failed when the store last answered.
    failures_before: u32,
    /// A waiter is asking the store itself.
    pub(super) probing: bool,
    /// The head has its answer, and has not asked again.
    pub(super) head_is_idle: bool,
    sweep_at: usize,
}

#[derive(Debug)]
pub(super) struct LocalWaiter {
    /// How many attempts had failed when it joined.
    failures: u32,
    sender: oneshot::Sender<QueueMessage>,
}

impl LocalWaiters {
    pub(super) fn wait(&mut self) -> oneshot::Receiver<QueueMessage> {
        self.sweep();
        let (sender, receiver) = oneshot::channel();
        self.waiting.push_back(LocalWaiter { failures: self.failures, sender });
        receiver
    }

    pub(super) fn wait_once(&mut self) -> oneshot::Receiver<QueueMessage> {
        self.sweep();
        let (sender, receiver) = oneshot::channel();
        self.once.push_back(sender);
        receiver
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.once.len()
    }

    /// Removes cancelled waiters whenever the queue has doubled since the last sweep.
    pub(super) fn sweep(&mut self) {
        if self.len() >= self.sweep_at.max(FIRST_SWEEP) {
            self.waiting.retain(|waiter| !waiter.sender.is_closed());
            self.once.retain(|sender| !sender.is_closed());
            self.sweep_at = 2 * self.len();
        }
    }

    /// The next head: waiters in the order in which they joined, then single attempts.
    pub(super) fn next(&mut self) -> Option<oneshot::Sender<QueueMessage>> {
        (self.busy, self.last_error, self.head_is_idle) = (None, None, false);
        match self.waiting.pop_front() {
            Some(waiter) => Some(waiter.sender),
            None => self.once.pop_front(),
        }
    }

    /// Records an answer of the store: "busy" at a moment, or granted.
    pub(super) fn answered(&mut self, busy: Option<Moment>) {
        (self.busy, self.last_error) = (busy, None);
        self.failures_before = self.failures;
        self.tell_single_attempts(|| QueueMessage::Busy);
    }

    pub(super) fn tell_single_attempts(&mut self, message: impl Fn() -> QueueMessage) {
        for sender in self.once.drain(..) {
            let _ = sender.send(message());
        }
    }

    pub(super) fn failed(&mut self, error: &Error) {
        self.failures = self.failures.wrapping_add(1);
        self.last_error = Some(error.clone());
    }

    /// Sends the error to the waiters that would have got it by now, had they asked the store themselves.
    pub(super) fn report_outage(&mut self, error: &Error) {
        for waiter in std::mem::take(&mut self.waiting) {
            if self.failures.wrapping_sub(waiter.failures.max(self.failures_before)) >= OUTAGE {
                let _ = waiter.sender.send(QueueMessage::Failed(error.clone()));
            } else {
                self.waiting.push_back(waiter);
            }
        }
    }
}
