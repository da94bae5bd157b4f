//! The lines of this process: those who want the same lock record stand in one line, and only the first of
//! them talks to the store. Whoever holds the lock keeps the first place until it is released or lost, so that
//! a hand-over inside a process is one release and one acquire.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::resource::Resource;

/// Who stands behind the first place; none, and no allocation, for most resources.
type Line = Option<Box<VecDeque<oneshot::Sender<Place>>>>;
type Waiting = HashMap<Resource, Line>;

/// All lines. A resource is in the map as long as somebody has its first place.
#[derive(Debug, Default)]
pub(crate) struct Lines(Mutex<Waiting>);

/// The first place in a line. Dropping it lets the next one in.
#[derive(Debug)]
pub(crate) struct Place {
    lines: Option<Arc<Lines>>,
    resource: Resource,
    /// Set where the one before us woke another process: it would be unfair to overtake it.
    pub(crate) in_turn: bool,
}

/// What entering a line gives.
pub(crate) enum Entry {
    /// Nobody was there.
    First(Place),
    /// Somebody is; the place comes later, or is passed on if the receiver is gone by then.
    Behind(oneshot::Receiver<Place>),
}

impl Lines {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the line for a resource.
    pub(crate) fn enter(self: &Arc<Self>, resource: &Resource) -> Entry {
        let mut lines = self.lock();
        if let Some(line) = lines.get_mut(resource) {
            let (sender, receiver) = oneshot::channel();
            line.get_or_insert_default().push_back(sender);
            return Entry::Behind(receiver);
        }
        lines.insert(resource.clone(), None);
        Entry::First(self.place(resource, false))
    }

    fn place(self: &Arc<Self>, resource: &Resource, in_turn: bool) -> Place {
        Place { lines: Some(Arc::clone(self)), resource: resource.clone(), in_turn }
    }

    fn next(self: &Arc<Self>, resource: &Resource, in_turn: bool) {
        let mut lines = self.lock();
        let Some(line) = lines.get_mut(resource) else { return };
        while let Some(waiter) = line.as_mut().and_then(|line| line.pop_front()) {
            match waiter.send(self.place(resource, in_turn)) {
                Ok(()) => return,
                // That waiter gave up. Its place must not pass itself on here: the map is locked.
                Err(mut unwanted) => unwanted.lines = None,
            }
        }
        lines.remove(resource);
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
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(lines) = self.lines.take() {
            lines.next(&self.resource, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::Kind;

    fn behind(entry: Entry) -> oneshot::Receiver<Place> {
        match entry {
            Entry::Behind(receiver) => receiver,
            Entry::First(_) => panic!("expected to stand behind somebody"),
        }
    }

    #[test]
    fn places_are_handed_on_in_order_and_past_those_who_left() {
        let lines = Arc::new(Lines::default());
        let resource = Resource::new(Kind::Mutex, "a").unwrap();
        let Entry::First(first) = lines.enter(&resource) else { panic!("the line is empty") };
        let left = behind(lines.enter(&resource));
        let mut second = behind(lines.enter(&resource));
        let mut third = behind(lines.enter(&resource));
        drop(left);
        first.hand_on(true);
        let place = second.try_recv().unwrap();
        assert!(place.in_turn && third.try_recv().is_err());
        drop(place);
        assert!(!third.try_recv().unwrap().in_turn);
        assert!(matches!(lines.enter(&resource), Entry::First(_)));
    }

    #[test]
    fn a_place_that_was_sent_but_never_received_is_passed_on() {
        let lines = Arc::new(Lines::default());
        let resource = Resource::new(Kind::Mutex, "a").unwrap();
        let Entry::First(first) = lines.enter(&resource) else { panic!("the line is empty") };
        let second = behind(lines.enter(&resource));
        let mut third = behind(lines.enter(&resource));
        drop(first);
        drop(second);
        assert!(third.try_recv().is_ok());
    }
}
