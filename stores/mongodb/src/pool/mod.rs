//! The pool record: reader-writer locks, semaphores and turns, one document each, one step for each verb.

mod attempt;
mod leave;

use std::sync::Arc;

use distlock_core::store::Holder;
use distlock_core::{ErrorKind, Kind, Resource, Result};
use mongodb::bson::{Document, doc};

pub(crate) use attempt::try_acquire;
pub(crate) use leave::{release, renew};

use crate::core::Core;
use crate::pipelines;
use crate::record::PoolRecord;
use crate::wire::{Concern, Place, Step, Version};

/// The id of a document in the collection of queues. No kind has a colon in its name.
pub(crate) fn document_id(kind: Kind, name: &str) -> String {
    format!("{kind}:{name}")
}

/// What is true of every document of ours there. Where it is not, an upsert fails with a duplicate key, and whatever
/// stands there stays as it is.
fn is_pool() -> Document {
    doc! { "queue": { "$type": "array" } }
}

/// Takes a pool from all its holders, and says who they were.
pub(crate) async fn break_lock(core: &Arc<Core>, resource: &Resource) -> Result<Vec<Holder>> {
    let step = Step {
        id: document_id(resource.kind(), resource.name()),
        when: is_pool(),
        pipeline: pipelines::pool_break(core.floor.get(), core.retention_ms()),
        upsert: false,
    };
    let found = match core.wire.step(Place::Queues, &step, Version::Before, Concern::Majority).await {
        // The turn goes with a mutex that was broken: without a right to it, a fair user behind the holder waits until
        // the holder finds out.
        Err(error) if error.kind() == ErrorKind::Denied && resource.kind() == Kind::FairQueue => {
            let names = core.wire.names();
            tracing::warn!(
                "the turn cannot be broken: no right to write {}.{}",
                names.database,
                names.queues
            );
            return Ok(Vec::new());
        }
        found => found?,
    };
    let Some(found) = found else { return Ok(Vec::new()) };
    core.saw(found.now);
    let pool = PoolRecord::read(&found.document)?;
    // Servers before 4.4 do not tell their time; those whose time was over are then named too.
    let now = found.now.unwrap_or_default();
    Ok(pool.holders.iter().filter_map(|holder| holder.show(now)).collect())
}
