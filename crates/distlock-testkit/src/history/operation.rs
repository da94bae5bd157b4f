//! Operations: all events of one request, assembled.

use std::collections::{BTreeMap, HashMap};

use super::event::{Event, EventKind};

/// One request and its result.
#[derive(Debug)]
pub(super) struct Operation<'h> {
    pub(super) resource: &'h str,
    pub(super) weight: u32,
    pub(super) capacity: u32,
    pub(super) requested: &'h Event,
    pub(super) grant: Option<Grant<'h>>,
    /// Refused or cancelled.
    pub(super) ended_without_grant: bool,
}

/// The part of an operation from its grant on.
#[derive(Debug)]
pub(super) struct Grant<'h> {
    pub(super) event: &'h Event,
    pub(super) lock_id: &'h str,
    pub(super) token: u64,
    /// The first and the last event that report held.
    pub(super) held: Option<(&'h Event, &'h Event)>,
    pub(super) lost: Option<&'h Event>,
    pub(super) releasing: Option<&'h Event>,
    /// An event that reports held after a loss or a release.
    pub(super) held_after_loss: Option<&'h Event>,
}

/// When an actor was killed and paused.
#[derive(Debug, Default)]
pub(super) struct ActorLifetime {
    pub(super) killed: Option<u64>,
    /// When each pause began and ended.
    pub(super) pauses: Vec<(u64, Option<u64>)>,
}

impl<'h> Operation<'h> {
    /// Ends the hold at a forced release. If the request was in flight then, it is unknown whether it was granted before or
    /// after, so its hold is ignored.
    fn end_at_break(&mut self, broken: &'h Event) {
        let Some(grant) = &mut self.grant else { return };
        if self.requested.at <= broken.at && grant.event.at >= broken.at {
            grant.held = None;
        }
        if let Some((first, last)) = grant.held
            && (first.at..last.at).contains(&broken.at)
        {
            grant.held = Some((first, broken));
        }
    }

    /// Whether the two can never be held at the same time.
    pub(super) fn excludes(&self, other: &Operation<'_>) -> bool {
        let both = u64::from(self.weight) + u64::from(other.weight);
        both > u64::from(self.capacity.min(other.capacity))
    }
}

impl<'h> Grant<'h> {
    pub(super) fn interval(&self) -> Option<(u64, u64)> {
        self.held.map(|(first, last)| (first.at, last.at))
    }

    fn add_held(&mut self, event: &'h Event) {
        if self.lost.or(self.releasing).is_some() {
            self.held_after_loss.get_or_insert(event);
        }
        self.held = match self.held {
            None => Some((event, event)),
            Some((first, _)) => Some((first, event)),
        };
    }
}

/// The operations of a run.
pub(super) struct Operations<'h> {
    pub(super) operations: Vec<Operation<'h>>,
    pub(super) lifetimes: HashMap<&'h str, ActorLifetime>,
    /// Events that belong to no recorded request.
    pub(super) unmatched: Vec<&'h Event>,
}

impl<'h> Operations<'h> {
    /// Assembles the operations from events sorted by time.
    pub(super) fn assemble(events: &'h [Event]) -> Self {
        let mut requests: BTreeMap<(&str, u64), Vec<&Event>> = BTreeMap::new();
        let mut lifetimes: HashMap<&str, ActorLifetime> = HashMap::new();
        let mut breaks: Vec<(&str, &Event)> = Vec::new();
        for event in events {
            if let EventKind::Broken { resource } = &event.kind {
                breaks.push((resource, event));
            } else if event.request == 0 {
                let lifetime = lifetimes.entry(&event.actor).or_default();
                match event.kind {
                    EventKind::Killed => lifetime.killed = Some(event.at),
                    EventKind::Paused => lifetime.pauses.push((event.at, None)),
                    EventKind::Resumed => {
                        if let Some(pause) = lifetime.pauses.last_mut() {
                            pause.1 = Some(event.at);
                        }
                    }
                    _ => {}
                }
            } else {
                requests.entry((&event.actor, event.request)).or_default().push(event);
            }
        }
        let mut operations = Vec::new();
        let mut unmatched = Vec::new();
        for events in requests.into_values() {
            match operation(&events) {
                Some(mut operation) => {
                    let resource = operation.resource;
                    for (_, broken) in breaks.iter().filter(|(broken, _)| *broken == resource) {
                        operation.end_at_break(broken);
                    }
                    operations.push(operation);
                }
                None => unmatched.extend(events),
            }
        }
        Operations { operations, lifetimes, unmatched }
    }
}

/// Assembles one operation; `None` if its events are inconsistent.
fn operation<'h>(events: &[&'h Event]) -> Option<Operation<'h>> {
    let (requested, rest) = events.split_first()?;
    let EventKind::Requested { resource, weight, capacity } = &requested.kind else { return None };
    let mut operation = Operation {
        resource,
        weight: *weight,
        capacity: *capacity,
        requested,
        grant: None,
        ended_without_grant: false,
    };
    for event in rest {
        match (&event.kind, &mut operation.grant) {
            (EventKind::Granted { lock_id, token, held }, None) => {
                operation.grant = Some(Grant {
                    event,
                    lock_id,
                    token: *token,
                    held: held.then_some((*event, *event)),
                    lost: None,
                    releasing: None,
                    held_after_loss: None,
                });
            }
            (EventKind::Held, Some(grant)) => grant.add_held(event),
            (EventKind::Releasing { held }, Some(grant)) => {
                if *held {
                    grant.add_held(event);
                }
                grant.releasing.get_or_insert(event);
            }
            (EventKind::Lost { .. }, Some(grant)) => {
                grant.lost.get_or_insert(event);
            }
            (EventKind::Released { .. }, Some(_)) => {}
            (EventKind::Refused { .. } | EventKind::Cancelled, None) => operation.ended_without_grant = true,
            _ => return None,
        }
    }
    Some(operation)
}
