//! Those who stand behind the first place of a line, and what they know of the one in front.

use std::collections::VecDeque;

use tokio::sync::oneshot;

use super::lines::Place;
use crate::clock::Moment;
use crate::error::Error;

/// After this many failed attempts in a row a waiter is told of the outage: one more than a stale connection costs.
const OUTAGE: u32 = 2;
const FIRST_SWEEP: usize = 16;

/// Behind the first place of one line.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiters: VecDeque<Waiter>,
    /// Attempts that need no more than the store's next answer: they are told with it, and hold up no waiter.
    once: VecDeque<oneshot::Sender<Turn>>,
    /// When the store last said "busy" to the one in front, or to a probe.
    pub(super) busy: Option<Moment>,
    /// The last attempt of the one in front failed.
    pub(super) failing: Option<Error>,
    /// How many attempts failed so far, and how many had when the store last answered.
    failures: u32,
    failures_before: u32,
    /// One of those behind is asking the store itself.
    pub(super) probing: bool,
    sweep_at: usize,
}

#[derive(Debug)]
struct Waiter {
    /// How many attempts had failed when it came.
    failures: u32,
    sender: oneshot::Sender<Turn>,
}

/// What a waiter behind the front is told.
#[derive(Debug)]
pub(crate) enum Turn {
    /// The first place.
    First(Place),
    /// The store said "busy", or this process holds the lock.
    Busy,
    /// The store failed those in front too often.
    Failed(Error),
    /// The probe was given up: look again.
    Again,
}

impl Queue {
    pub(super) fn wait(&mut self) -> oneshot::Receiver<Turn> {
        self.sweep();
        let (sender, receiver) = oneshot::channel();
        self.waiters.push_back(Waiter { failures: self.failures, sender });
        receiver
    }

    pub(super) fn wait_once(&mut self) -> oneshot::Receiver<Turn> {
        self.sweep();
        let (sender, receiver) = oneshot::channel();
        self.once.push_back(sender);
        receiver
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.waiters.len() + self.once.len()
    }

    /// Removes those who left, whenever there are twice as many as were found the last time.
    fn sweep(&mut self) {
        if self.waiters.len() + self.once.len() >= self.sweep_at.max(FIRST_SWEEP) {
            self.waiters.retain(|waiter| !waiter.sender.is_closed());
            self.once.retain(|sender| !sender.is_closed());
            self.sweep_at = 2 * (self.waiters.len() + self.once.len());
        }
    }

    /// Who gets the first place: waiters in the order in which they came, then attempts.
    pub(super) fn next(&mut self) -> Option<oneshot::Sender<Turn>> {
        (self.busy, self.failing) = (None, None);
        match self.waiters.pop_front() {
            Some(waiter) => Some(waiter.sender),
            None => self.once.pop_front(),
        }
    }

    /// The store answered: it said "busy" at a moment, or granted.
    pub(super) fn answered(&mut self, busy: Option<Moment>) {
        (self.busy, self.failing) = (busy, None);
        self.failures_before = self.failures;
        self.tell_attempts(|| Turn::Busy);
    }

    pub(super) fn tell_attempts(&mut self, turn: impl Fn() -> Turn) {
        for sender in self.once.drain(..) {
            let _ = sender.send(turn());
        }
    }

    /// An attempt of the one in front failed.
    pub(super) fn failed(&mut self, error: &Error) {
        self.failures = self.failures.wrapping_add(1);
        self.failing = Some(error.clone());
    }

    /// Tells the outage to those who would have been told by now, had they asked themselves.
    pub(super) fn tell_outage(&mut self, error: &Error) {
        for waiter in std::mem::take(&mut self.waiters) {
            if self.failures.wrapping_sub(waiter.failures.max(self.failures_before)) >= OUTAGE {
                let _ = waiter.sender.send(Turn::Failed(error.clone()));
            } else {
                self.waiters.push_back(waiter);
            }
        }
    }
}
