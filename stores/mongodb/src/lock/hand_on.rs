//! Handing a mutex on to the one who is next, from one lock id to the other in a single step, so that nobody can
//! come between them and the next one need not ask.

use std::sync::Arc;

use distlock_core::store::{GRANT_WINDOW, Inbox, Released};
use distlock_core::{LockId, Result};
use mongodb::bson::doc;

use super::{line, still_ours};
use crate::core::Core;
use crate::failure;
use crate::message::{Address, Next};
use crate::pipelines::{self, Heir, Marked, NO_HEIR, NOT_OURS, Passing};
use crate::record;
use crate::wire::{Concern, Place, Step, Version};

/// From one lock id to the next. False: it was not the first one's any more.
pub(super) async fn transfer(core: &Arc<Core>, name: &str, from: &LockId, to: &Next) -> Result<bool> {
    let heir = Heir { lock_id: to.lock_id.as_str(), window_ms: record::in_ms(to.expiry.min(GRANT_WINDOW)) };
    let step = Step {
        id: name.to_owned(),
        when: still_ours(from),
        pipeline: pipelines::lock_transfer(heir, core.floor.get()),
        upsert: false,
    };
    let found = core.wire.step(Place::Locks, &step, Version::After, Concern::Majority).await?;
    if let Some(found) = &found {
        core.saw(found.now);
    }
    Ok(found.is_some())
}

/// Ends a hold, and leaves the token behind. False: it was not ours any more.
pub(super) async fn end(core: &Arc<Core>, name: &str, lock_id: &LockId) -> Result<bool> {
    let step = Step {
        id: name.to_owned(),
        when: still_ours(lock_id),
        pipeline: pipelines::lock_release(Marked::Free),
        upsert: false,
    };
    let found = core.wire.step(Place::Locks, &step, Version::After, Concern::Majority).await?;
    Ok(found.is_some())
}

/// What came of handing a lock on to whoever the line says is next.
enum Passed {
    On,
    /// It was not ours any more.
    NotOurs,
    /// Nobody waits who can be handed the lock, or the server cannot do it: nothing was changed.
    No,
}

async fn pass(core: &Arc<Core>, name: &str, lock_id: &LockId) -> Result<Passed> {
    let names = core.wire.names();
    let passing = Passing {
        name,
        lock_id: lock_id.as_str(),
        line: &line::id(name),
        locks: &names.locks,
        window_ms: record::in_ms(GRANT_WINDOW),
        floor: core.floor.get(),
    };
    let passed = core.wire.run(doc! {
        "aggregate": &names.queues,
        "pipeline": pipelines::lock_pass(passing),
        "cursor": {},
        "writeConcern": Concern::Majority.document(),
    });
    match passed.await {
        Ok(_) => Ok(Passed::On),
        Err(error) if error.to_string().contains(NOT_OURS) => Ok(Passed::NotOurs),
        Err(error) if error.to_string().contains(failure::NO_SUCH_DOCUMENT) => Ok(Passed::NotOurs),
        Err(error) if error.to_string().contains(NO_HEIR) => Ok(Passed::No),
        Err(error) if error.can_retry() => Err(error),
        Err(error) => {
            core.refuse_passing(&error);
            Ok(Passed::No)
        }
    }
}

/// Gives a lock to whoever is next, or frees it. `next` is who that is, if it is known.
pub(super) async fn hand_on(
    core: &Arc<Core>,
    name: &str,
    lock_id: &LockId,
    next: Option<Next>,
) -> Result<Released> {
    if next.is_none() && core.passes() {
        match pass(core, name, lock_id).await? {
            Passed::On => {
                core.known.saw_others(name);
                core.known.is_done(lock_id, name);
                return Ok(Released::Done { woke: true });
            }
            Passed::NotOurs => return Ok(Released::NotYours),
            Passed::No => {}
        }
    }
    let was_known = next.is_some();
    let next = match next {
        Some(next) => Some(next),
        // Without an answer the lock is freed, and who waits asks again by itself.
        None => line::next(core, name, lock_id).await.unwrap_or_else(|error| {
            tracing::debug!(%error, "cannot look who waits");
            None
        }),
    };
    let Some(next) = next else {
        core.known.saw_nobody(name);
        let ended = end(core, name, lock_id).await?;
        return Ok(if ended { Released::Done { woke: false } } else { Released::NotYours });
    };
    core.known.saw_others(name);
    let woke = next.address != own_address(lock_id).as_str();
    let ours = if next.direct {
        transfer(core, name, lock_id, &next).await?
    } else {
        // Its lock id does not say where it is: it has to be told.
        let ended = end(core, name, lock_id).await?;
        if let Err(error) = line::ring(core, name).await {
            tracing::debug!(%error, "nobody was woken; who waits asks again by itself");
        }
        ended
    };
    if was_known {
        core.known.is_done(lock_id, name);
    }
    Ok(if ours { Released::Done { woke } } else { Released::NotYours })
}

/// A grant came for a lock id of ours that had left: the lock goes on to the next.
pub(crate) async fn pass_on(core: Arc<Core>, name: String, lock_id: LockId, next: Option<Next>) {
    if let Err(error) = hand_on(&core, &name, &lock_id, next).await {
        tracing::debug!(%error, "a grant that nobody wanted ends with its window");
    }
}

/// The address of the process that a lock id belongs to, if it speaks for itself.
fn own_address(lock_id: &LockId) -> Address {
    let inbox = lock_id.as_str().rsplit_once('-').map_or(lock_id.as_str(), |(inbox, _)| inbox);
    Address::of(&Inbox::new(inbox))
}
