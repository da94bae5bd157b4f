//! Giving mutexes back. One that nobody waits for is a single step; a batch of them is a single command.

use std::sync::Arc;

use distlock_core::Result;
use distlock_core::store::{Lease, Released};
use futures_util::future::{join, join_all};
use mongodb::bson::Document;

use super::hand_on::{end, hand_on, pass_on, transfer};
use super::{line, read, still_ours};
use crate::batch;
use crate::core::Core;
use crate::failure;
use crate::known::Stand;
use crate::pipelines::{self, Marked, NOT_OURS};
use crate::wire::{Concern, Found, Place, Step, Version};

/// One answer for each lease.
pub(crate) async fn release(core: &Arc<Core>, leases: &[&Lease]) -> Vec<Result<Released>> {
    let (lined, plain) = batch::partition(leases, |lease| core.known.stand(&lease.lock_id).is_some());
    let in_line = join_all(batch::pick(leases, &lined).into_iter().map(|lease| leave(core, lease)));
    let (in_line, plainly) = join(in_line, release_plainly(core, batch::pick(leases, &plain))).await;
    let answers = batch::merge((lined, in_line), (plain, plainly));
    answers
        .into_iter()
        .zip(leases)
        .map(|(answer, lease)| answer.map_err(|e| e.about(&lease.resource)))
        .collect()
}

/// Leaves a line in which it stands: as the one who holds, or as one who gives up waiting. Somebody who left before
/// leaves again: an attempt that was under way meanwhile may have brought it back.
async fn leave(core: &Arc<Core>, lease: &Lease) -> Result<Released> {
    let (name, lock_id) = (lease.resource.name(), &lease.lock_id);
    let next = core.known.take_next(lock_id);
    let stood = core.known.leaves(lock_id);
    let left = match stood {
        Some(Stand::Holding) => hand_on(core, name, lock_id, next).await,
        _ => withdraw(core, lease).await,
    };
    match (&left, stood) {
        (Err(_), Some(stood)) => core.known.stays(lock_id, stood),
        (left, _) => {
            let handed = core.known.left(lock_id);
            let held = matches!(left, Ok(Released::Done { woke: true }));
            if handed && !held {
                // It was given to us behind our back, too late for us to give it back ourselves.
                let next = core.known.take_next(lock_id);
                tokio::spawn(pass_on(Arc::clone(core), name.to_owned(), lock_id.clone(), next));
            }
        }
    }
    left
}

async fn withdraw(core: &Arc<Core>, lease: &Lease) -> Result<Released> {
    let (name, lock_id) = (lease.resource.name(), &lease.lock_id);
    let (stood, behind) = match line::withdraw(core, name, lock_id).await {
        Err(error) if !error.can_retry() => {
            // There is no line any more to leave; the lock itself may still be ours.
            core.refuse_lines(&error);
            (false, None)
        }
        left => left?,
    };
    // The lock may have been handed to us while we were leaving, or may be in a moment: then it is for them.
    core.known.followed_by(lock_id, behind.clone());
    let held = match &behind {
        Some(behind) if behind.direct => transfer(core, name, lock_id, behind).await?,
        _ => end(core, name, lock_id).await?,
    };
    Ok(if stood || held { Released::Done { woke: held && behind.is_some() } } else { Released::NotYours })
}

async fn release_plainly(core: &Arc<Core>, leases: Vec<&Lease>) -> Vec<Result<Released>> {
    match leases.as_slice() {
        [] => Vec::new(),
        [lease] => vec![release_one(core, lease).await],
        _ => release_many(core, &leases).await,
    }
}

/// A marked lock is kept from being freed only where there are lines to look into.
fn marked(core: &Core) -> Marked {
    if core.has_lines() { Marked::Keep } else { Marked::Free }
}

async fn release_one(core: &Arc<Core>, lease: &Lease) -> Result<Released> {
    let step = Step {
        id: lease.resource.name().to_owned(),
        when: still_ours(&lease.lock_id),
        pipeline: pipelines::lock_release(marked(core)),
        upsert: false,
    };
    let found = core.wire.step(Place::Locks, &step, Version::After, Concern::Majority).await?;
    let Some(found) = found else { return Ok(Released::NotYours) };
    conclude(core, lease, &found).await
}

/// The document after its release: free, or still ours because somebody may wait.
async fn conclude(core: &Arc<Core>, lease: &Lease, found: &Found) -> Result<Released> {
    core.saw(found.now);
    let record = read(core, found)?;
    if record.lock_id == lease.lock_id {
        hand_on(core, lease.resource.name(), &lease.lock_id, None).await
    } else {
        Ok(Released::Done { woke: false })
    }
}

/// An item that is not ours fails, and so says which it was. Asking by name alone, with an upsert, spares the server a plan
/// for each of them.
async fn release_many(core: &Arc<Core>, leases: &[&Lease]) -> Vec<Result<Released>> {
    let steps: Vec<Step> = leases
        .iter()
        .map(|lease| Step {
            id: lease.resource.name().to_owned(),
            when: Document::new(),
            pipeline: pipelines::lock_release_or_fail(lease.lock_id.as_str(), marked(core)),
            upsert: true,
        })
        .collect();
    let outcome = match core.wire.steps(Place::Locks, &steps).await {
        Ok(outcome) => outcome,
        Err(error) => return batch::all_failed(&error, leases.len()),
    };
    let unchanged = if outcome.matched > outcome.modified {
        // Some are as they were: somebody may wait for them.
        let names: Vec<&str> = leases.iter().map(|lease| lease.resource.name()).collect();
        core.wire.read(Place::Locks, &names, outcome.time).await
    } else {
        Ok(std::collections::HashMap::new())
    };
    join_all(leases.iter().enumerate().map(|(at, lease)| {
        let failed = outcome.failed.get(&at);
        let unchanged = unchanged.as_ref().map(|found| found.get(lease.resource.name()));
        async move {
            match failed {
                Some((_, words)) if words.contains(NOT_OURS) => return Ok(Released::NotYours),
                Some((code, words)) => return Err(failure::from_code(*code, "write error", words)),
                None => {}
            }
            let found = unchanged.map_err(|error| error.clone().with_unknown_outcome())?;
            match found {
                Some(found) if read(core, found)?.lock_id == lease.lock_id => {
                    hand_on(core, lease.resource.name(), &lease.lock_id, None).await
                }
                _ => Ok(Released::Done { woke: false }),
            }
        }
    }))
    .await
}
