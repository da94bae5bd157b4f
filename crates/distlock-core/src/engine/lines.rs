//! The lines of this process: those who want the same lock record stand in one line, and only the first of
//! them talks to the store. Whoever holds the lock keeps the first place until it is released or lost, so that
//! a hand-over inside a process is one release and one acquire.
//!
//! A line also knows what the store has said to the one in front: it holds the lock, it was told "busy" a moment ago, or
//! it has no answer. Only the first two are contention for those behind; the last may be a store that is down.

use std::collections::HashMap;
use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::oneshot;

use super::held::Held;
use super::waiters::Queue;
pub(super) use super::waiters::Turn;
use crate::clock::Moment;
use crate::error::Error;
use crate::resource::Resource;

/// For how long the store's last "busy" counts: longer than a waiter takes to ask again, and short enough that a store
/// which went down since is not mistaken for a lock that is held.
pub(super) const RECENT: Duration = Duration::from_secs(2);

type Waiting = HashMap<Resource, Line>;

/// All lines. A resource is in the map as long as somebody has its first place.
#[derive(Debug, Default)]
pub(crate) struct Lines(Mutex<Waiting>);

/// The first place and who stands behind it. Most resources have no queue, and need no allocation.
#[derive(Debug, Default)]
struct Line {
    /// Who holds the lock; nothing while the one in front is asking for it.
    holder: Weak<Held>,
    queue: Option<Box<Queue>>,
}

/// The first place in a line. Dropping it lets the next one in.
#[derive(Debug)]
pub(crate) struct Place {
    lines: Option<Arc<Lines>>,
    resource: Resource,
    /// Set where the one before us woke another process: it would be unfair to overtake it.
    pub(crate) no_overtaking: bool,
}

/// What entering a line gives.
pub(crate) enum Entry {
    /// Nobody was there.
    First(Place),
    /// Another one is in front; word comes later, and a place is passed on if the receiver is gone by then.
    Behind(oneshot::Receiver<Turn>),
    /// Contended, as far as the store has said.
    Busy,
    /// The store has said nothing of late: ask it, and tell the others what it said.
    Probe(Probe),
}

impl Lines {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the line for a resource, to wait.
    pub(crate) fn enter(self: &Arc<Self>, resource: &Resource) -> Entry {
        match self.lock().entry(resource.clone()) {
            Occupied(mut line) => Entry::Behind(line.get_mut().queue.get_or_insert_default().wait()),
            Vacant(free) => {
                free.insert(Line::default());
                Entry::First(self.place(resource, false))
            }
        }
    }

    /// Joins the line to learn whether the lock is contended; to ask the store itself (`may_probe`) if that is unknown.
    pub(crate) fn enter_once(self: &Arc<Self>, resource: &Resource, now: Moment, may_probe: bool) -> Entry {
        loop {
            let holder = match self.lock().entry(resource.clone()) {
                Vacant(free) => {
                    free.insert(Line::default());
                    return Entry::First(self.place(resource, false));
                }
                Occupied(mut line) => {
                    if line.get().holder.strong_count() == 0 {
                        return self.learn(line.get_mut(), resource, now, may_probe);
                    }
                    Weak::clone(&line.get().holder)
                }
            };
            // Without the lock: a hold that turns out to be lost, or whose last owner this is, passes its place on.
            let held = holder.upgrade().is_some_and(|held| held.loss_at(now).is_none() && held.is_held());
            if held {
                return Entry::Busy;
            }
            let mut lines = self.lock();
            match lines.get_mut(resource) {
                // It is being released: the place or the answer to the next waiter tells more.
                Some(line) if line.holder.ptr_eq(&holder) => {
                    return self.learn(line, resource, now, may_probe);
                }
                _ => {}
            }
        }
    }

    fn learn(self: &Arc<Self>, line: &mut Line, resource: &Resource, now: Moment, may_probe: bool) -> Entry {
        let queue = line.queue.get_or_insert_default();
        if queue.busy.is_some_and(|busy| now.since(busy) <= RECENT) {
            return Entry::Busy;
        }
        if may_probe && !queue.probing {
            queue.probing = true;
            return Entry::Probe(Probe { lines: Some(Arc::clone(self)), resource: resource.clone() });
        }
        Entry::Behind(queue.wait_once())
    }

    /// The error of the last attempt, if it failed.
    pub(crate) fn failing(&self, resource: &Resource) -> Option<Error> {
        self.lock().get(resource)?.queue.as_ref()?.failing.clone()
    }

    /// The one in front holds the lock.
    pub(crate) fn holds(&self, held: &Arc<Held>) {
        let mut lines = self.lock();
        let Some(line) = lines.get_mut(&held.lease.resource) else { return };
        line.holder = Arc::downgrade(held);
        if let Some(queue) = &mut line.queue {
            queue.answered(None);
        }
    }

    fn place(self: &Arc<Self>, resource: &Resource, no_overtaking: bool) -> Place {
        Place { lines: Some(Arc::clone(self)), resource: resource.clone(), no_overtaking }
    }

    fn next(self: &Arc<Self>, resource: &Resource, no_overtaking: bool) {
        let mut lines = self.lock();
        let Some(line) = lines.get_mut(resource) else { return };
        line.holder = Weak::new();
        while let Some(waiter) = line.queue.as_mut().and_then(|queue| queue.next()) {
            match waiter.send(Turn::First(self.place(resource, no_overtaking))) {
                Ok(()) => return,
                // That waiter gave up. Its place must not pass itself on here: the map is locked.
                Err(Turn::First(mut unwanted)) => unwanted.lines = None,
                Err(_) => {}
            }
        }
        lines.remove(resource);
    }

    fn with_queue(&self, resource: &Resource, change: impl FnOnce(&mut Queue)) {
        if let Some(queue) = self.lock().get_mut(resource).and_then(|line| line.queue.as_mut()) {
            change(queue);
        }
    }
}

impl Place {
    /// Stays in the line, of whose place somebody else takes care from now on.
    pub(crate) fn keep(mut self) -> Option<Arc<Lines>> {
        self.lines.take()
    }

    /// The place that was kept.
    pub(crate) fn again(lines: &Arc<Lines>, resource: &Resource) -> Place {
        lines.place(resource, false)
    }

    /// Lets the next one in, and tells it whether another process was woken.
    pub(crate) fn hand_on(mut self, woke: bool) {
        if let Some(lines) = self.lines.take() {
            lines.next(&self.resource, woke);
        }
    }

    /// The store said "busy" to us.
    pub(crate) fn busy(&self, now: Moment) {
        if let Some(lines) = &self.lines
            && let Some(line) = lines.lock().get_mut(&self.resource)
        {
            line.queue.get_or_insert_default().answered(Some(now));
        }
    }

    /// The store failed us, and we try again.
    pub(crate) fn failed(&self, error: &Error) {
        if let Some(lines) = &self.lines {
            lines.with_queue(&self.resource, |queue| queue.failed(error));
        }
    }

    /// The store failed us for the last time. Waiters behind us that have seen as many failures are told too, instead of
    /// trying as often and as long, one after the other.
    pub(crate) fn give_up(self, error: &Error) {
        self.failed(error);
        if let Some(lines) = &self.lines {
            lines.with_queue(&self.resource, |queue| queue.tell_outage(error));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(lines) = self.lines.take() {
            lines.next(&self.resource, false);
        }
    }
}

/// An attempt past the one in front, made by one of those behind for all of them. Dropped without an answer, it is left
/// to the next.
#[derive(Debug)]
pub(crate) struct Probe {
    lines: Option<Arc<Lines>>,
    resource: Resource,
}

impl Probe {
    /// The store answered, at this moment: the lock is held, by another client or by us.
    pub(crate) fn answered(mut self, now: Moment) {
        let Some(lines) = self.lines.take() else { return };
        let mut lines = lines.lock();
        let Some(line) = lines.get_mut(&self.resource) else { return };
        if let Some(queue) = &mut line.queue {
            queue.probing = false;
            // A hold that the one in front got meanwhile says more.
            queue.answered((line.holder.strong_count() == 0).then_some(now));
        }
    }

    /// The store failed.
    pub(crate) fn failed(mut self, error: &Error) {
        self.end(|| Turn::Failed(error.clone()));
    }

    fn end(&mut self, turn: impl Fn() -> Turn) {
        if let Some(lines) = self.lines.take() {
            lines.with_queue(&self.resource, |queue| {
                queue.probing = false;
                queue.tell_attempts(turn);
            });
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.end(|| Turn::Again);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::resource::Kind;

    fn resource() -> Resource {
        Resource::new(Kind::Mutex, "a").unwrap()
    }

    fn first(entry: Entry) -> Place {
        match entry {
            Entry::First(place) => place,
            _ => panic!("expected an empty line"),
        }
    }

    fn behind(entry: Entry) -> oneshot::Receiver<Turn> {
        match entry {
            Entry::Behind(receiver) => receiver,
            _ => panic!("expected to stand behind another"),
        }
    }

    fn place(receiver: &mut oneshot::Receiver<Turn>) -> Option<Place> {
        match receiver.try_recv() {
            Ok(Turn::First(place)) => Some(place),
            _ => None,
        }
    }

    #[test]
    fn places_are_handed_on_in_order_and_past_those_who_left() {
        let (lines, resource) = (Arc::new(Lines::default()), resource());
        let front = first(lines.enter(&resource));
        let left = behind(lines.enter(&resource));
        let mut second = behind(lines.enter(&resource));
        let mut third = behind(lines.enter(&resource));
        drop(left);
        front.hand_on(true);
        let handed = place(&mut second).unwrap();
        assert!(handed.no_overtaking && third.try_recv().is_err());
        drop(handed);
        assert!(!place(&mut third).unwrap().no_overtaking);
        first(lines.enter(&resource));
    }

    #[test]
    fn a_place_that_was_sent_but_never_received_is_passed_on() {
        let (lines, resource) = (Arc::new(Lines::default()), resource());
        let front = first(lines.enter(&resource));
        let second = behind(lines.enter(&resource));
        let mut third = behind(lines.enter(&resource));
        drop(front);
        drop(second);
        assert!(third.try_recv().is_ok());
    }

    #[test]
    fn attempts_behind_a_waiter_without_an_answer_are_told_with_the_first_one() {
        let (lines, resource, now) = (Arc::new(Lines::default()), resource(), Moment::from_nanos(1));
        let front = first(lines.enter_once(&resource, now, true));
        let mut told = behind(lines.enter_once(&resource, now, false));
        assert!(told.try_recv().is_err());
        front.busy(now);
        assert!(matches!(told.try_recv(), Ok(Turn::Busy)));
        assert!(matches!(lines.enter_once(&resource, now.after(RECENT), true), Entry::Busy));
        let later = now.after(RECENT + Duration::from_nanos(1));
        let Entry::Probe(probe) = lines.enter_once(&resource, later, true) else {
            panic!("expected a probe")
        };
        // One asks at a time, for all.
        let (mut one, mut two) =
            (behind(lines.enter_once(&resource, later, true)), behind(lines.enter(&resource)));
        drop(probe);
        assert!(matches!(one.try_recv(), Ok(Turn::Again)) && two.try_recv().is_err());
        let Entry::Probe(probe) = lines.enter_once(&resource, later, true) else {
            panic!("expected a probe")
        };
        probe.answered(later);
        assert!(matches!(lines.enter_once(&resource, later, true), Entry::Busy));
        drop(front);
        assert!(place(&mut two).is_some());
    }

    #[test]
    fn an_outage_is_told_to_waiters_who_saw_all_of_it() {
        let (lines, resource) = (Arc::new(Lines::default()), resource());
        let error = Error::new(ErrorKind::Unavailable, "down");
        let front = first(lines.enter(&resource));
        let mut early = behind(lines.enter(&resource));
        front.failed(&error);
        assert!(lines.failing(&resource).is_some());
        front.busy(Moment::from_nanos(1));
        assert!(lines.failing(&resource).is_none());
        front.failed(&error);
        let mut late = behind(lines.enter(&resource));
        front.give_up(&error);
        assert!(matches!(early.try_recv(), Ok(Turn::Failed(_))));
        let next = place(&mut late).unwrap();
        assert!(lines.failing(&resource).is_none(), "the next one asks for itself");
        drop(next);
        first(lines.enter(&resource));
    }

    #[test]
    fn those_who_left_take_no_room() {
        let (lines, resource, now) = (Arc::new(Lines::default()), resource(), Moment::from_nanos(1));
        let _front = first(lines.enter(&resource));
        let kept = behind(lines.enter(&resource));
        for _ in 0..10_000 {
            drop(lines.enter(&resource));
            drop(lines.enter_once(&resource, now, false));
        }
        let all = lines.lock();
        let queue = all.get(&resource).and_then(|line| line.queue.as_ref()).unwrap();
        assert!(queue.len() <= 64, "{}", queue.len());
        drop(kept);
    }
}
