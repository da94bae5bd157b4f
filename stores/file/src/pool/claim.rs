//! The two steps of a claim: join the pool, then advance when something changed. They block, and run on threads that may.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::store::support::errors::capacity_mismatch;
use distlock_core::store::{Claim, Session};
use distlock_core::{FencingToken, Result};

use super::folders::{PoolFolders, PoolLock, SlotFolder};
use super::slot::{Slot, SlotName};
use super::{PoolHold, PoolPaths};
use crate::error::{io_error, is_missing_file};
use crate::layout::RECREATIONS;
use crate::names::short_hash;
use crate::store::StoreState;
use crate::watch::HeldFile;

/// One acquisition; cloned into the threads that work on files.
#[derive(Clone)]
pub(super) struct PoolClaim {
    pub(super) state: Arc<StoreState>,
    pub(super) claim: Claim,
    pub(super) paths: PoolPaths,
}

/// The outcome of joining a pool.
pub(super) enum Joined {
    Granted(PoolHold),
    /// A place in the queue.
    Queued(Slot),
    /// Contended, and the claim does not wait.
    Busy,
    /// The pool lock stayed taken.
    LockStuck,
}

/// The outcome of an attempt to advance.
pub(super) enum Advanced {
    Granted(PoolHold),
    /// Not yet granted.
    Blocked(Slot, Blocker),
    /// The pool lock stayed taken.
    LockStuck(Slot),
    /// Another program removed our slot.
    Displaced,
}

/// What a waiter waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Blocker {
    /// The slot of the waiter before it.
    Predecessor(PathBuf),
    /// The holders.
    Holders,
}

impl PoolClaim {
    fn lock(&self, limit: Duration) -> Result<Option<PoolLock>> {
        PoolLock::acquire(&self.state.layout, &self.paths, limit)
    }

    /// Takes the permits of the claim, or a place in the queue if it may wait. A pool that is removed meanwhile is created
    /// again.
    pub(super) fn join(&self, may_wait: bool, limit: Duration) -> Result<Joined> {
        let mut joined = self.join_existing(may_wait, limit);
        for _ in 0..RECREATIONS {
            match &joined {
                Err(error) if is_missing_file(error) => joined = self.join_existing(may_wait, limit),
                _ => break,
            }
        }
        joined
    }

    fn join_existing(&self, may_wait: bool, limit: Duration) -> Result<Joined> {
        loop {
            let Some(lock) = self.lock(limit)? else { return Ok(Joined::LockStuck) };
            let folders = &lock.folders;
            let (queue, hold) = (self.checked_slots(&folders.queue)?, self.checked_slots(&folders.hold)?);
            let place = queue.iter().chain(&hold).map(|slot| slot.place).max().unwrap_or(0) + 1;
            let name = SlotName {
                place,
                weight: self.claim.weight,
                capacity: self.claim.capacity,
                tag: short_hash(self.claim.lock_id.as_str()),
            };
            let create = |into: &SlotFolder, token| {
                let owner = self.state.owner(&self.claim, token);
                Slot::create(&self.state, &self.paths, folders, into, name.clone(), &owner)
            };
            if last_alive(&folders.queue, &queue, DeadSlots::Remove)?.is_none()
                && self.fits(&folders.hold, hold, DeadSlots::Remove)?
            {
                let token = lock.next_token(self.claim.resource.name(), self.state.boot)?;
                let slot = create(&folders.hold, Some(token))?;
                if let Some(hold) = self.grant(&lock, slot, token)? {
                    return Ok(Joined::Granted(hold));
                }
            } else if !may_wait {
                return Ok(Joined::Busy);
            } else {
                let slot = create(&folders.queue, None)?;
                if lock.is_in_place()? {
                    return Ok(Joined::Queued(slot));
                }
            }
        }
    }

    /// Takes the permits if the waiter is at the queue head and they fit. Until then nothing is changed and the pool lock is
    /// not taken.
    pub(super) fn advance(&self, slot: Slot, limit: Duration) -> Result<Advanced> {
        match self.advance_existing(slot, limit) {
            Err(error) if is_missing_file(&error) => Ok(Advanced::Displaced),
            advanced => advanced,
        }
    }

    fn advance_existing(&self, mut slot: Slot, limit: Duration) -> Result<Advanced> {
        if !slot.is_in_place()? {
            return Ok(Advanced::Displaced);
        }
        let found = PoolFolders::find(&self.state.layout, &self.paths);
        let found = found.map_err(|error| io_error(error, "open the pool", &self.paths.dir))?;
        let Some(folders) = found else { return Ok(Advanced::Displaced) };
        if let Some(blocker) = self.blocked_by(&slot, &folders, DeadSlots::Ignore)? {
            return Ok(Advanced::Blocked(slot, blocker));
        }
        let Some(lock) = self.lock(limit)? else { return Ok(Advanced::LockStuck(slot)) };
        if let Some(blocker) = self.blocked_by(&slot, &lock.folders, DeadSlots::Remove)? {
            return Ok(Advanced::Blocked(slot, blocker));
        }
        let token = lock.next_token(self.claim.resource.name(), self.state.boot)?;
        let owner = self.state.owner(&self.claim, Some(token));
        slot.promote(&lock.folders, &owner)?;
        Ok(self.grant(&lock, slot, token)?.map_or(Advanced::Displaced, Advanced::Granted))
    }

    /// What keeps a waiter from its grant.
    fn blocked_by(&self, slot: &Slot, folders: &PoolFolders, dead: DeadSlots) -> Result<Option<Blocker>> {
        let mut before = folders.queue.slots()?;
        before.retain(|other| other < slot.name());
        if let Some(predecessor) = last_alive(&folders.queue, &before, dead)? {
            return Ok(Some(Blocker::Predecessor(predecessor.path(&self.paths.queue))));
        }
        let fits = self.fits(&folders.hold, folders.hold.slots()?, dead)?;
        Ok((!fits).then_some(Blocker::Holders))
    }

    /// Whether the claim's weight fits beside the holders. Whether they live is checked only if it does not.
    fn fits(&self, folder: &SlotFolder, mut hold: Vec<SlotName>, dead: DeadSlots) -> Result<bool> {
        let free = |hold: &[SlotName]| {
            let used: u64 = hold.iter().map(|slot| u64::from(slot.weight)).sum();
            used + u64::from(self.claim.weight) <= u64::from(self.claim.capacity)
        };
        if free(&hold) {
            return Ok(true);
        }
        let mut alive = Vec::with_capacity(hold.len());
        for slot in hold.drain(..) {
            if is_alive(folder, &slot, dead)? {
                alive.push(slot);
            }
        }
        Ok(free(&alive))
    }

    /// The slots in a folder. Refuses a claim whose capacity is not that of the live slots, unless it resizes.
    fn checked_slots(&self, folder: &SlotFolder) -> Result<Vec<SlotName>> {
        if self.claim.resizes {
            return folder.slots();
        }
        let (same, others): (Vec<SlotName>, Vec<SlotName>) =
            folder.slots()?.into_iter().partition(|slot| slot.capacity == self.claim.capacity);
        for slot in others {
            if is_alive(folder, &slot, DeadSlots::Remove)? {
                return Err(capacity_mismatch(&self.claim.resource, slot.capacity, self.claim.capacity));
            }
        }
        Ok(same)
    }

    /// Turns a slot in `hold` into a hold. `None` if the pool was removed or replaced meanwhile.
    fn grant(&self, lock: &PoolLock, slot: Slot, token: FencingToken) -> Result<Option<PoolHold>> {
        let session = Session::new();
        let held = HeldFile { path: slot.path().to_owned(), id: slot.id(), session: session.clone() };
        let hold_watch = self.state.watcher.watch_hold(&Arc::new(held));
        let in_place = lock.is_in_place()? && slot.is_in_place()?;
        let hold = PoolHold { _hold_watch: hold_watch, slot, token, session };
        Ok(in_place.then_some(hold))
    }
}

/// What to do with the slots of dead owners.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DeadSlots {
    /// Remove them. The caller must have the pool lock.
    Remove,
    Ignore,
}

/// The last slot in the queue with a live owner.
fn last_alive<'a>(
    folder: &SlotFolder,
    queue: &'a [SlotName],
    dead: DeadSlots,
) -> Result<Option<&'a SlotName>> {
    for slot in queue.iter().rev() {
        if is_alive(folder, slot, dead)? {
            return Ok(Some(slot));
        }
    }
    Ok(None)
}

fn is_alive(folder: &SlotFolder, slot: &SlotName, dead: DeadSlots) -> Result<bool> {
    let alive = folder.open_live(slot)?.is_some();
    if !alive && dead == DeadSlots::Remove {
        folder.remove(slot)?;
    }
    Ok(alive)
}
