//! Releasing parts of pools.

use std::sync::Arc;

use distlock_core::Result;
use distlock_core::store::{Batch, Lease, Released};
use mongodb::bson::doc;

use super::{document_id, is_pool, send};
use crate::commands::{DocumentUpdate, Namespace};
use crate::documents::PoolDocument;
use crate::error::DUPLICATE_KEY;
use crate::pipelines::{self, CONVERSION_FAILURE, IfNotHeld};
use crate::state::StoreState;
use crate::wake_messages::address_of;

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
