//! All lines about one request, put together.

use std::collections::{BTreeMap, HashMap};

use super::event::{Event, What};

/// What became of one request.
#[derive(Debug)]
pub(super) struct Operation<'h> {
    pub(super) resource: &'h str,
    pub(super) weight: u32,
    pub(super) capacity: u32,
    pub(super) asked: &'h Event,
    pub(super) grant: Option<Grant<'h>>,
    /// Refused, given up, or ended with the actor.
    pub(super) ended_otherwise: bool,
}

/// The part of a story from the grant on.
#[derive(Debug)]
pub(super) struct Grant<'h> {
    pub(super) told: &'h Event,
    pub(super) lock_id: &'h str,
    pub(super) token: u64,
    /// The first and the last line that say that it is held.
    pub(super) held: Option<(&'h Event, &'h Event)>,
    pub(super) lost: Option<&'h Event>,
    pub(super) giving_back: Option<&'h Event>,
    /// A line that says that it is held after one that says that it is lost or given back.
    pub(super) revived: Option<&'h Event>,
}

/// What is known about an actor as a whole.
#[derive(Debug, Default)]
pub(super) struct Fate {
    pub(super) killed: Option<u64>,
    /// When it was paused and when it went on.
    pub(super) pauses: Vec<(u64, Option<u64>)>,
}

impl<'h> Operation<'h> {
    /// What an operator broke counts as held until then only. A request that was under way may have been granted
    /// before or after: nothing is known about it.
    fn cut_at(&mut self, broken: &'h Event) {
        let Some(grant) = &mut self.grant else { return };
        if self.asked.at <= broken.at && grant.told.at >= broken.at {
            grant.held = None;
        }
        if let Some((first, last)) = grant.held
            && (first.at..last.at).contains(&broken.at)
        {
            grant.held = Some((first, broken));
        }
    }

    /// Whether the two can never be held together.
    pub(super) fn excludes(&self, other: &Operation<'_>) -> bool {
        let both = u64::from(self.weight) + u64::from(other.weight);
        both > u64::from(self.capacity.min(other.capacity))
    }
}

impl Grant<'_> {
    pub(super) fn interval(&self) -> Option<(u64, u64)> {
        self.held.map(|(first, last)| (first.at, last.at))
    }
}

pub(super) struct Operations<'h> {
    pub(super) operations: Vec<Operation<'h>>,
    pub(super) fates: HashMap<&'h str, Fate>,
    /// Lines that belong to no request that was written down.
    pub(super) strays: Vec<&'h Event>,
}

/// Puts the operations together. The events must be in the order of their time.
pub(super) fn tell(events: &[Event]) -> Operations<'_> {
    let mut lines: BTreeMap<(&str, u64), Vec<&Event>> = BTreeMap::new();
    let mut fates: HashMap<&str, Fate> = HashMap::new();
    let mut breaks: Vec<(&str, &Event)> = Vec::new();
    for event in events {
        if let What::Broken { resource } = &event.what {
            breaks.push((resource, event));
        } else if event.ask == 0 {
            let fate = fates.entry(&event.actor).or_default();
            match event.what {
                What::Killed => fate.killed = Some(event.at),
                What::Paused => fate.pauses.push((event.at, None)),
                What::Resumed => {
                    if let Some(pause) = fate.pauses.last_mut() {
                        pause.1 = Some(event.at);
                    }
                }
                _ => {}
            }
        } else {
            lines.entry((&event.actor, event.ask)).or_default().push(event);
        }
    }
    let mut operations = Vec::new();
    let mut strays = Vec::new();
    for lines in lines.into_values() {
        match operation(&lines) {
            Some(mut operation) => {
                let resource = operation.resource;
                for (_, broken) in breaks.iter().filter(|(broken, _)| *broken == resource) {
                    operation.cut_at(broken);
                }
                operations.push(operation);
            }
            None => strays.extend(lines),
        }
    }
    Operations { operations, fates, strays }
}

fn operation<'h>(lines: &[&'h Event]) -> Option<Operation<'h>> {
    let (asked, rest) = lines.split_first()?;
    let What::Asked { resource, weight, capacity } = &asked.what else { return None };
    let mut operation = Operation {
        resource,
        weight: *weight,
        capacity: *capacity,
        asked,
        grant: None,
        ended_otherwise: false,
    };
    for event in rest {
        match (&event.what, &mut operation.grant) {
            (What::Granted { lock_id, token, held }, None) => {
                operation.grant = Some(Grant {
                    told: event,
                    lock_id,
                    token: *token,
                    held: held.then_some((*event, *event)),
                    lost: None,
                    giving_back: None,
                    revived: None,
                });
            }
            (What::Kept, Some(grant)) => witness(grant, event),
            (What::GivingBack { held }, Some(grant)) => {
                if *held {
                    witness(grant, event);
                }
                grant.giving_back.get_or_insert(event);
            }
            (What::Lost { .. }, Some(grant)) => {
                grant.lost.get_or_insert(event);
            }
            (What::GivenBack { .. }, Some(_)) => {}
            (What::Refused { .. } | What::Cancelled, None) => operation.ended_otherwise = true,
            _ => return None,
        }
    }
    Some(operation)
}

fn witness<'h>(grant: &mut Grant<'h>, event: &'h Event) {
    if grant.lost.or(grant.giving_back).is_some() {
        grant.revived.get_or_insert(event);
    }
    grant.held = match grant.held {
        None => Some((event, event)),
        Some((first, _)) => Some((first, event)),
    };
}
