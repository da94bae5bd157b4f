//! Renewing and releasing parts of pools.

use std::sync::Arc;

use distlock_core::Result;
use distlock_core::store::{Batch, Lease, Released, Renewal};
use futures_util::future::join_all;
use mongodb::bson::{Document, doc};

use super::{document_id, is_pool};
use crate::commands::{DocumentUpdate, Durability, Image, Namespace, Snapshot};
use crate::documents::{PoolDocument, stored_token, whole_ms};
use crate::error::DUPLICATE_KEY;
use crate::pipelines::{self, CONVERSION_FAILURE, IfNotHeld};
use crate::state::StoreState;
use crate::wake_messages::address_of;

/// Matches a document with a live holder of this lock id.
fn is_held_by(lease: &Lease) -> Document {
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

async fn send(state: &Arc<StoreState>, update: &DocumentUpdate) -> Result<Option<Snapshot>> {
    let found =
        state.commands.find_and_modify(Namespace::Queues, update, Image::After, Durability::Majority).await?;
    if let Some(found) = &found {
        state.observe_clock(found.now);
    }
    Ok(found)
}

fn renewal(state: &StoreState, lease: &Lease) -> DocumentUpdate {
    DocumentUpdate {
        id: document_id(lease.resource.kind(), lease.resource.name()),
        filter: is_held_by(lease),
        pipeline: pipelines::pool_renew(
            lease.lock_id.as_str(),
            whole_ms(lease.expiry),
            stored_token(lease.token),
            state.grant_terms(),
        ),
        upsert: false,
    }
}

/// One answer per lease.
pub(crate) async fn renew(state: &Arc<StoreState>, leases: Vec<&Lease>) -> Batch<Renewal> {
    if let [lease] = leases.as_slice() {
        return Ok(vec![renew_one(state, lease).await]);
    }
    let updates: Vec<DocumentUpdate> = leases.iter().map(|lease| renewal(state, lease)).collect();
    let outcome = state.commands.update_each(Namespace::Queues, &updates).await?;
    if usize::try_from(outcome.matched) == Ok(leases.len()) {
        return Ok(leases.iter().map(|_| Ok(Renewal::Renewed)).collect());
    }
    // Some leases are lost. Renewing the others twice does no harm.
    Ok(join_all(leases.iter().map(|lease| renew_one(state, lease))).await)
}

async fn renew_one(state: &Arc<StoreState>, lease: &Lease) -> Result<Renewal> {
    let renewed = send(state, &renewal(state, lease)).await?;
    Ok(if renewed.is_some() { Renewal::Renewed } else { Renewal::NotYours })
}

fn release_update(state: &StoreState, lease: &Lease, if_not_held: IfNotHeld) -> DocumentUpdate {
    let lock_id = lease.lock_id.as_str();
    let (filter, upsert) = match if_not_held {
        IfNotHeld::Answer => {
            (doc! { "$or": [{ "holders.lockId": lock_id }, { "queue.lockId": lock_id }] }, false)
        }
        // The pipeline must run to fail, even if there is no document.
        IfNotHeld::Fail => (is_pool(), true),
    };
    DocumentUpdate {
        id: document_id(lease.resource.kind(), lease.resource.name()),
        filter,
        pipeline: pipelines::pool_release(lock_id, if_not_held, state.grant_terms()),
        upsert,
    }
}

/// One answer per lease.
pub(crate) async fn release(state: &Arc<StoreState>, leases: Vec<&Lease>) -> Batch<Released> {
    match leases.as_slice() {
        [lease] => Ok(vec![release_one(state, lease).await.map_err(|error| error.about(&lease.resource))]),
        _ => release_many(state, &leases).await,
    }
}

async fn release_one(state: &Arc<StoreState>, lease: &Lease) -> Result<Released> {
    let found = send(state, &release_update(state, lease, IfNotHeld::Answer)).await?;
    let Some(found) = found else { return Ok(Released::NotYours) };
    let pool = PoolDocument::read(&found.document)?;
    let Some((lock_id, address)) = pool.released else { return Ok(Released::NotYours) };
    if lock_id != lease.lock_id {
        return Ok(Released::NotYours);
    }
    let woke = pool.wake.lines().any(|message| address_of(message) != address_of(&address));
    Ok(Released::Done { woke })
}

/// The update of a lease that is not held fails, and so shows which one it was. Whether a waiter was woken is not known for
/// one of many; the engine uses that for mutexes only.
async fn release_many(state: &Arc<StoreState>, leases: &[&Lease]) -> Batch<Released> {
    let updates: Vec<DocumentUpdate> =
        leases.iter().map(|lease| release_update(state, lease, IfNotHeld::Fail)).collect();
    let outcome = state.commands.update_each(Namespace::Queues, &updates).await?;
    let answer = |(index, lease): (usize, &&Lease)| match outcome.failed.get(&index) {
        Some(failed) if matches!(failed.code, DUPLICATE_KEY | CONVERSION_FAILURE) => Ok(Released::NotYours),
        Some(failed) => Err(failed.to_error().about(&lease.resource)),
        None => Ok(Released::Done { woke: false }),
    };
    Ok(leases.iter().enumerate().map(answer).collect())
}
