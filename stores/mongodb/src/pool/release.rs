//! Extending and giving back places in pools.

use std::sync::Arc;

use distlock_core::Result;
use distlock_core::store::{Lease, Released, Renewal};
use futures_util::future::join_all;
use mongodb::bson::{Document, doc};

use super::{document_id, is_pool};
use crate::batch;
use crate::core::Core;
use crate::failure;
use crate::message::address_in;
use crate::pipelines::{self, LAST_TOKEN, NOT_OURS, NotOurs};
use crate::record::{PoolRecord, in_ms};
use crate::wire::{Concern, Place, Step, Version};

/// A holder of this lock id whose time is not over.
fn still_ours(lease: &Lease) -> Document {
    let lock_id = lease.lock_id.as_str();
    let is_live = doc! { "$and": [
        { "$eq": ["$$this.lockId", { "$literal": lock_id }] },
        { "$gt": ["$$this.expiresAt", "$$NOW"] },
    ] };
    doc! {
        "holders.lockId": lock_id,
        "$expr": { "$anyElementTrue": [{ "$map": { "input": "$holders", "in": is_live } }] },
    }
}

fn renewal(core: &Core, lease: &Lease) -> Step {
    let token = i64::try_from(lease.token.get()).unwrap_or(LAST_TOKEN).min(LAST_TOKEN);
    Step {
        id: document_id(lease.resource.kind(), lease.resource.name()),
        when: still_ours(lease),
        pipeline: pipelines::pool_renew(
            lease.lock_id.as_str(),
            in_ms(lease.expiry),
            token,
            core.floor.get(),
            core.retention_ms(),
        ),
        upsert: false,
    }
}

/// One answer for each lease.
pub(crate) async fn renew(core: &Arc<Core>, leases: &[&Lease]) -> Vec<Result<Renewal>> {
    match leases {
        [] => Vec::new(),
        [lease] => vec![renew_one(core, lease).await],
        _ => renew_many(core, leases).await,
    }
}

async fn renew_one(core: &Arc<Core>, lease: &Lease) -> Result<Renewal> {
    let step = renewal(core, lease);
    let found = core.wire.step(Place::Queues, &step, Version::After, Concern::Majority).await?;
    if let Some(found) = &found {
        core.saw(found.now);
    }
    Ok(if found.is_some() { Renewal::Renewed } else { Renewal::NotYours })
}

async fn renew_many(core: &Arc<Core>, leases: &[&Lease]) -> Vec<Result<Renewal>> {
    let steps: Vec<Step> = leases.iter().map(|lease| renewal(core, lease)).collect();
    match core.wire.steps(Place::Queues, &steps).await {
        Err(error) => batch::all_failed(&error, leases.len()),
        Ok(outcome) if usize::try_from(outcome.matched) == Ok(leases.len()) => {
            leases.iter().map(|_| Ok(Renewal::Renewed)).collect()
        }
        // Some are not ours any more, and those that are can be extended twice.
        Ok(_) => join_all(leases.iter().map(|lease| renew_one(core, lease))).await,
    }
}

fn leaving(core: &Core, lease: &Lease, not_ours: NotOurs) -> Step {
    let lock_id = lease.lock_id.as_str();
    let (when, upsert) = match not_ours {
        NotOurs::Answer => {
            (doc! { "$or": [{ "holders.lockId": lock_id }, { "queue.lockId": lock_id }] }, false)
        }
        // The step itself must find out, whatever is there and if nothing is.
        NotOurs::Fail => (is_pool(), true),
    };
    Step {
        id: document_id(lease.resource.kind(), lease.resource.name()),
        when,
        pipeline: pipelines::pool_release(lock_id, not_ours, core.floor.get(), core.retention_ms()),
        upsert,
    }
}

/// One answer for each lease.
pub(crate) async fn release(core: &Arc<Core>, leases: &[&Lease]) -> Vec<Result<Released>> {
    match leases {
        [] => Vec::new(),
        [lease] => vec![release_one(core, lease).await.map_err(|error| error.about(&lease.resource))],
        _ => release_many(core, leases).await,
    }
}

async fn release_one(core: &Arc<Core>, lease: &Lease) -> Result<Released> {
    let step = leaving(core, lease, NotOurs::Answer);
    let found = core.wire.step(Place::Queues, &step, Version::After, Concern::Majority).await?;
    let Some(found) = found else { return Ok(Released::NotYours) };
    core.saw(found.now);
    let pool = PoolRecord::read(&found.document)?;
    let Some((lock_id, call)) = pool.answer else { return Ok(Released::NotYours) };
    if lock_id != lease.lock_id {
        return Ok(Released::NotYours);
    }
    let woke = pool.wake.lines().any(|message| address_in(message) != address_in(&call));
    Ok(Released::Done { woke })
}

/// An item that is not ours fails, and so says which it was. Whether somebody was woken is not told for one item of
/// many; only for mutexes does anybody ask.
async fn release_many(core: &Arc<Core>, leases: &[&Lease]) -> Vec<Result<Released>> {
    let steps: Vec<Step> = leases.iter().map(|lease| leaving(core, lease, NotOurs::Fail)).collect();
    let outcome = match core.wire.steps(Place::Queues, &steps).await {
        Ok(outcome) => outcome,
        Err(error) => return batch::all_failed(&error, leases.len()),
    };
    leases
        .iter()
        .enumerate()
        .map(|(at, lease)| match outcome.failed.get(&at) {
            Some((code, words)) if *code == failure::DUPLICATE_KEY || words.contains(NOT_OURS) => {
                Ok(Released::NotYours)
            }
            Some((code, words)) => {
                Err(failure::from_code(*code, "write error", words).about(&lease.resource))
            }
            None => Ok(Released::Done { woke: false }),
        })
        .collect()
}
