//! Extending and giving back places in pools.

use std::sync::Arc;

use distlock_core::store::{Lease, Released, Renewal};
use distlock_core::{Error, Result};
use futures_util::future::join_all;
use mongodb::bson::{Document, doc};

use super::document_id;
use crate::core::Core;
use crate::failure;
use crate::message::address_in;
use crate::pipelines;
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
    let token = i64::try_from(lease.token.get()).unwrap_or(i64::MAX);
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
    Ok(if found.is_some() { Renewal::Extended } else { Renewal::NotYours })
}

async fn renew_many(core: &Arc<Core>, leases: &[&Lease]) -> Vec<Result<Renewal>> {
    let steps: Vec<Step> = leases.iter().map(|lease| renewal(core, lease)).collect();
    match core.wire.steps(Place::Queues, &steps).await {
        Err(error) => leases.iter().map(|_| Err(Error::clone(&error))).collect(),
        Ok(outcome) if usize::try_from(outcome.matched) == Ok(leases.len()) => {
            leases.iter().map(|_| Ok(Renewal::Extended)).collect()
        }
        // Some are not ours any more, and those that are can be extended twice.
        Ok(_) => join_all(leases.iter().map(|lease| renew_one(core, lease))).await,
    }
}

fn leaving(core: &Core, lease: &Lease, upsert: bool) -> Step {
    let lock_id = lease.lock_id.as_str();
    Step {
        id: document_id(lease.resource.kind(), lease.resource.name()),
        when: doc! { "$or": [{ "holders.lockId": lock_id }, { "queue.lockId": lock_id }] },
        pipeline: pipelines::pool_release(lock_id, core.floor.get(), core.retention_ms()),
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
    let step = leaving(core, lease, false);
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

/// As for mutexes: an upsert that is refused says which item was not ours. Whether somebody was woken is not told
/// for one item of many; only for mutexes does anybody ask.
async fn release_many(core: &Arc<Core>, leases: &[&Lease]) -> Vec<Result<Released>> {
    let steps: Vec<Step> = leases.iter().map(|lease| leaving(core, lease, true)).collect();
    let outcome = match core.wire.steps(Place::Queues, &steps).await {
        Ok(outcome) => outcome,
        Err(error) => return leases.iter().map(|_| Err(Error::clone(&error))).collect(),
    };
    leases
        .iter()
        .enumerate()
        .map(|(at, lease)| match outcome.failed.get(&at) {
            Some((code, _)) if *code == failure::DUPLICATE_KEY => Ok(Released::NotYours),
            Some((code, words)) => {
                Err(failure::from_code(*code, "write error", words).about(&lease.resource))
            }
            None if outcome.made.contains(&at) => Ok(Released::NotYours),
            None => Ok(Released::Done { woke: false }),
        })
        .collect()
}
