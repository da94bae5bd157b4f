//! The steps of a claim: to enter, and to move on when something changed. They block, and run where they may.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::store::{Claim, Session};
use distlock_core::{Error, ErrorKind, FencingToken, Result};

use super::gate::Gate;
use super::slot::{Slot, SlotName, clear, is_alive, slots};
use super::{Paths, PoolHold, Target};
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
            let (queue, hold) =
                (self.of_our_capacity(&self.paths.queue)?, self.of_our_capacity(&self.paths.hold)?);
            let place = queue.iter().chain(&hold).map(|slot| slot.place).max().unwrap_or(0) + 1;
            let name = SlotName {
                place,
                weight: self.claim.weight,
                capacity: self.claim.capacity,
                tag: short_hash(self.claim.lock_id.as_str()),
            };
            let make = |dir: &Path, token| {
                let note = self.shared.note(&self.claim, token);
                Slot::make(&self.shared, &self.paths, dir, name.clone(), &note)
            };
            if self.nearest_alive(&queue, Some(&gate))?.is_none() && self.fits(hold, Some(&gate))? {
                let token = gate.count(self.claim.resource.name())?;
                let slot = make(&self.paths.hold, Some(token))?;
                if let Some(hold) = self.keep(&gate, slot, token)? {
                    return Ok(Entered::Granted(hold));
                }
            } else if !may_wait {
                return Ok(Entered::Busy);
            } else {
                let slot = make(&self.paths.queue, None)?;
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
        if let Some(target) = self.blocked_by(&slot, None)? {
            return Ok(Moved::Waits(slot, target));
        }
        let Some(gate) = self.gate(patience)? else { return Ok(Moved::GateShut(slot)) };
        if let Some(target) = self.blocked_by(&slot, Some(&gate))? {
            return Ok(Moved::Waits(slot, target));
        }
        let token = gate.count(self.claim.resource.name())?;
        let note = self.shared.note(&self.claim, Some(token));
        slot.promote(&self.paths.hold, &note)?;
        Ok(self.keep(&gate, slot, token)?.map_or(Moved::Displaced, Moved::Granted))
    }

    /// What stands between a waiter and its grant.
    fn blocked_by(&self, slot: &Slot, gate: Option<&Gate>) -> Result<Option<Target>> {
        let mut before = slots(&self.paths.queue)?;
        before.retain(|other| other < slot.name());
        if let Some(nearest) = self.nearest_alive(&before, gate)? {
            return Ok(Some(Target::Predecessor(nearest.path(&self.paths.queue))));
        }
        let fits = self.fits(slots(&self.paths.hold)?, gate)?;
        Ok((!fits).then_some(Target::Holders))
    }

    /// The last one in the queue who lives. Those of the dead behind it are cleared away, given the gate.
    fn nearest_alive<'a>(&self, queue: &'a [SlotName], gate: Option<&Gate>) -> Result<Option<&'a SlotName>> {
        for slot in queue.iter().rev() {
            if self.lives(&self.paths.queue, slot, gate)? {
                return Ok(Some(slot));
            }
        }
        Ok(None)
    }

    /// Whether our weight fits beside the holders. Only if it does not is it asked who of them lives.
    fn fits(&self, mut hold: Vec<SlotName>, gate: Option<&Gate>) -> Result<bool> {
        let free = |hold: &[SlotName]| {
            let used: u64 = hold.iter().map(|slot| u64::from(slot.weight)).sum();
            used + u64::from(self.claim.weight) <= u64::from(self.claim.capacity)
        };
        if free(&hold) {
            return Ok(true);
        }
        let mut alive = Vec::with_capacity(hold.len());
        for slot in hold.drain(..) {
            if self.lives(&self.paths.hold, &slot, gate)? {
                alive.push(slot);
            }
        }
        Ok(free(&alive))
    }

    fn lives(&self, dir: &Path, slot: &SlotName, gate: Option<&Gate>) -> Result<bool> {
        let path = slot.path(dir);
        let alive = is_alive(&path)?;
        if !alive && gate.is_some() {
            clear(&path)?;
        }
        Ok(alive)
    }

    /// The slots in a folder. Refuses a claim whose idea of the capacity is not that of those who live.
    fn of_our_capacity(&self, dir: &Path) -> Result<Vec<SlotName>> {
        let (ours, others) = slots(dir)?.into_iter().partition(|slot| slot.capacity == self.claim.capacity);
        let others: Vec<SlotName> = others;
        for slot in others {
            let path = slot.path(dir);
            if is_alive(&path)? {
                let what = format!(
                    "it is in use with a capacity of {}, and {} was asked for",
                    slot.capacity, self.claim.capacity
                );
                return Err(Error::new(ErrorKind::Mismatch, what)
                    .advise("use one capacity everywhere, or wait until nobody holds it or waits for it"));
            }
            clear(&path)?;
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
