//! The pool record: reader-writer locks, semaphores and fair queues, one document each, one atomic update per verb.

mod acquire;
mod release;
mod renew;

use std::sync::Arc;

use distlock_core::store::Holder;
use distlock_core::{ErrorKind, Kind, Resource, Result};
use mongodb::bson::{Document, doc};

pub(crate) use acquire::try_acquire;
pub(crate) use release::release;
pub(crate) use renew::renew;

use crate::commands::{DocumentUpdate, Durability, Image, Namespace, Snapshot};
use crate::documents::PoolDocument;
use crate::pipelines;
use crate::state::StoreState;

/// The id of a document in the queue collection. No kind has a colon in its name.
pub(crate) fn document_id(kind: Kind, name: &str) -> String {
    format!("{kind}:{name}")
}

/// Matches every document of ours in the queue collection. On any other document an upsert fails with a duplicate key,
/// and the document stays unchanged.
fn is_pool() -> Document {
    doc! { "queue": { "$type": "array" } }
}

/// Updates a pool. `None`: no document matched.
async fn send(state: &Arc<StoreState>, update: &DocumentUpdate) -> Result<Option<Snapshot>> {
    let found =
        state.commands.find_and_modify(Namespace::Queues, update, Image::After, Durability::Majority).await?;
    if let Some(found) = &found {
        state.observe_clock(found.now);
    }
    Ok(found)
}

/// Forced release of all holders. Returns them.
pub(crate) async fn break_lock(state: &Arc<StoreState>, resource: &Resource) -> Result<Vec<Holder>> {
    let update = DocumentUpdate {
        id: document_id(resource.kind(), resource.name()),
        filter: is_pool(),
        pipeline: pipelines::pool_break(state.grant_terms()),
        upsert: false,
    };
    let broken =
        state.commands.find_and_modify(Namespace::Queues, &update, Image::Before, Durability::Majority).await;
    let broken = match broken {
        // The fair queue is broken with its mutex. Without rights to it, the fair waiter behind the holder waits until the
        // holder notices.
        Err(error) if error.kind() == ErrorKind::Denied && resource.kind() == Kind::FairQueue => {
            let names = state.commands.names();
            tracing::warn!(
                "the fair queue cannot be broken: no right to write {}.{}",
                names.database,
                names.queues
            );
            return Ok(Vec::new());
        }
        broken => broken?,
    };
    let Some(broken) = broken else { return Ok(Vec::new()) };
    state.observe_clock(broken.now);
    let pool = PoolDocument::read(&broken.document)?;
    // Servers before 4.4 do not send their clock; expired holders are then returned too.
    let now = broken.now.unwrap_or_default();
    Ok(pool.holders.iter().filter_map(|holder| holder.holder(now)).collect())
}
