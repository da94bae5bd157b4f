//! The steps of a claim: to enter, and to move on when something changed. They block, and run where they may.

use std::sync::Arc;
use std::time::Duration;

use distlock_core::store::{Claim, Session};
use distlock_core::{Error, ErrorKind, FencingToken, Result};

use super::gate::Gate;
use super::rooms::{Room, Rooms};
use super::slot::{Slot, SlotName};
use super::{Paths, PoolHold, Target};
use crate::failure::failure;
use crate::names::short_hash;
use crate::shared::Shared;
use crate::watch::HeldFile;

/// Everything a step needs.
#[derive(Clone)]
pub(super) struct Step {
    pub(super) shared: Arc<Shared>,
    pub(super) claim: Claim,
    pub(super) paths: Paths,
}

/// What came of entering.
pub(super) enum Entered {
    Granted(PoolHold),
    /// A place in the queue.
    Queued(Slot),
    /// Not to be had now, and the claim would not wait.
    Busy,
    /// The gate could not be passed.
    GateShut,
}

/// What came of trying to move on.
pub(super) enum Moved {
    Granted(PoolHold),
    /// Not yet; what to watch.
    Waits(Slot, Target),
    /// The gate could not be passed.
    GateShut(Slot),
    /// Somebody removed our place.
    Displaced,
}

impl Step {
    fn gate(&self, patience: Duration) -> Result<Option<Gate>> {
        Gate::enter(&self.shared.layout, &self.paths, patience)
    }

    /// Takes what the claim asks for, or a place in the queue if it may wait.
    pub(super) fn enter(&self, may_wait: bool, patience: Duration) -> Result<Entered> {
        loop {
            let Some(gate) = self.gate(patience)? else { return Ok(Entered::GateShut) };
            let rooms = &gate.rooms;
            let (queue, hold) = (self.of_our_capacity(&rooms.queue)?, self.of_our_capacity(&rooms.hold)?);
            let place = queue.iter().chain(&hold).map(|slot| slot.place).max().unwrap_or(0) + 1;
            let name = SlotName {
                place,
                weight: self.claim.weight,
                capacity: self.claim.capacity,
                tag: short_hash(self.claim.lock_id.as_str()),
            };
            let make = |room: &Room, token| {
                let note = self.shared.note(&self.claim, token);
                Slot::make(&self.shared, &self.paths, rooms, room, name.clone(), &note)
            };
            if nearest_alive(&rooms.queue, &queue, Clear::Dead)?.is_none()
                && self.fits(&rooms.hold, hold, Clear::Dead)?
            {
                let token = gate.count(self.claim.resource.name())?;
                let slot = make(&rooms.hold, Some(token))?;
                if let Some(hold) = self.keep(&gate, slot, token)? {
                    return Ok(Entered::Granted(hold));
                }
            } else if !may_wait {
                return Ok(Entered::Busy);
            } else {
                let slot = make(&rooms.queue, None)?;
                if gate.is_in_place()? {
                    return Ok(Entered::Queued(slot));
                }
            }
        }
    }

    /// Looks whether it is our turn, and takes what we wait for if so. While it is not, nothing is changed and no
    /// gate is needed.
    pub(super) fn advance(&self, mut slot: Slot, patience: Duration) -> Result<Moved> {
        if !slot.is_in_place()? {
            return Ok(Moved::Displaced);
        }
        let found = Rooms::find(&self.shared.layout, &self.paths);
        let found = found.map_err(|error| failure(error, "look at the pool", &self.paths.dir))?;
        let Some(rooms) = found else { return Ok(Moved::Displaced) };
        if let Some(target) = self.blocked_by(&slot, &rooms, Clear::Nothing)? {
            return Ok(Moved::Waits(slot, target));
        }
        let Some(gate) = self.gate(patience)? else { return Ok(Moved::GateShut(slot)) };
        if let Some(target) = self.blocked_by(&slot, &gate.rooms, Clear::Dead)? {
            return Ok(Moved::Waits(slot, target));
        }
        let token = gate.count(self.claim.resource.name())?;
        let note = self.shared.note(&self.claim, Some(token));
        slot.promote(&gate.rooms, &note)?;
        Ok(self.keep(&gate, slot, token)?.map_or(Moved::Displaced, Moved::Granted))
    }

    /// What stands between a waiter and its grant.
    fn blocked_by(&self, slot: &Slot, rooms: &Rooms, dead: Clear) -> Result<Option<Target>> {
        let mut before = rooms.queue.slots()?;
        before.retain(|other| other < slot.name());
        if let Some(nearest) = nearest_alive(&rooms.queue, &before, dead)? {
            return Ok(Some(Target::Predecessor(nearest.path(&self.paths.queue))));
        }
        let fits = self.fits(&rooms.hold, rooms.hold.slots()?, dead)?;
        Ok((!fits).then_some(Target::Holders))
    }

    /// Whether our weight fits beside the holders. Only if it does not is it asked who of them lives.
    fn fits(&self, room: &Room, mut hold: Vec<SlotName>, dead: Clear) -> Result<bool> {
        let free = |hold: &[SlotName]| {
            let used: u64 = hold.iter().map(|slot| u64::from(slot.weight)).sum();
            used + u64::from(self.claim.weight) <= u64::from(self.claim.capacity)
        };
        if free(&hold) {
            return Ok(true);
        }
        let mut alive = Vec::with_capacity(hold.len());
        for slot in hold.drain(..) {
            if lives(room, &slot, dead)? {
                alive.push(slot);
            }
        }
        Ok(free(&alive))
    }

    /// The slots in a room. Refuses a claim whose idea of the capacity is not that of those who live.
    fn of_our_capacity(&self, room: &Room) -> Result<Vec<SlotName>> {
        let (ours, others) = room.slots()?.into_iter().partition(|slot| slot.capacity == self.claim.capacity);
        let others: Vec<SlotName> = others;
        for slot in others {
            if room.is_alive(&slot)? {
                let what = format!(
                    "it is in use with a capacity of {}, and {} was asked for",
                    slot.capacity, self.claim.capacity
                );
                return Err(Error::new(ErrorKind::Mismatch, what)
                    .advise("use one capacity everywhere, or wait until nobody holds it or waits for it"));
            }
            room.clear(&slot)?;
        }
        Ok(ours)
    }

    /// Makes a slot in `hold` a hold. `None` if the pool was removed or replaced under us.
    fn keep(&self, gate: &Gate, slot: Slot, token: FencingToken) -> Result<Option<PoolHold>> {
        let session = Session::new();
        let held = HeldFile { path: slot.path().to_owned(), id: slot.id(), session: session.clone() };
        let kept = self.shared.watcher.keep(&Arc::new(held));
        let in_place = gate.is_in_place()? && slot.is_in_place()?;
        let hold = PoolHold { _kept: kept, slot, token, session };
        Ok(in_place.then_some(hold))
    }
}

/// What is done with the slots of the dead. They may be cleared away only by the one who has the gate.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Clear {
    Dead,
    Nothing,
}

/// The last one in the queue who lives.
fn nearest_alive<'a>(room: &Room, queue: &'a [SlotName], dead: Clear) -> Result<Option<&'a SlotName>> {
    for slot in queue.iter().rev() {
        if lives(room, slot, dead)? {
            return Ok(Some(slot));
        }
    }
    Ok(None)
}

fn lives(room: &Room, slot: &SlotName, dead: Clear) -> Result<bool> {
    let alive = room.is_alive(slot)?;
    if !alive && dead == Clear::Dead {
        room.clear(slot)?;
    }
    Ok(alive)
}
