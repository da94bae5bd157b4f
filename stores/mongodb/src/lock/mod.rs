//! The lock record: a mutex in the document that other programs share, and beside it the line of those who wait.

mod acquire;
mod hand_on;
mod line;
mod release;
mod renew;

use std::sync::Arc;

use distlock_core::{LockId, Result};
use mongodb::bson::{Document, doc};

pub(crate) use acquire::try_acquire;
pub(crate) use hand_on::pass_on;
pub(crate) use release::release;
pub(crate) use renew::renew;

use crate::core::Core;
use crate::pipelines;
use crate::record::{self, LockRecord};
use crate::wire::{Concern, Found, Place, Step, Version};

/// What must be true of a document that a lock id still holds. Expiry is final, whether or not somebody else took it.
fn still_ours(lock_id: &LockId) -> Document {
    doc! { "lockId": lock_id.as_str(), "$expr": { "$gt": ["$expiresAt", "$$NOW"] } }
}

/// What must be true of a document that one of these lock ids still holds.
fn one_is_ours(lock_ids: &[&str]) -> Document {
    doc! { "lockId": { "$in": lock_ids }, "$expr": { "$gt": ["$expiresAt", "$$NOW"] } }
}

/// A document of the shared collection.
fn read(core: &Core, found: &Found) -> Result<LockRecord> {
    LockRecord::read(&found.document, core.wire.collection(Place::Locks))
}

/// Takes the lock from whoever holds it, and says who that was.
pub(crate) async fn break_lock(core: &Arc<Core>, name: &str) -> Result<Vec<distlock_core::store::Holder>> {
    let step =
        Step { id: name.to_owned(), when: Document::new(), pipeline: pipelines::lock_break(), upsert: false };
    let Some(found) = core.wire.step(Place::Locks, &step, Version::Before, Concern::Majority).await? else {
        return Ok(Vec::new());
    };
    let broken = read(core, &found)?;
    // Servers before 4.4 do not tell their time. What was held then shows a moment that is not long ago.
    let now = found.now.or(broken.acquired_at).unwrap_or_default();
    let Some(holder) = broken.holder(now) else { return Ok(Vec::new()) };
    core.saw(found.now);
    if core.has_lines()
        && let Err(error) = line::tell_broken(core, name, &broken.lock_id).await
    {
        tracing::debug!(%error, "no wake-up was sent: the holder finds out when it renews, and waiters ask again");
    }
    Ok(vec![holder])
}

/// The expiry of a claim or a lease.
fn expiry_ms(expiry: std::time::Duration) -> i64 {
    record::in_ms(expiry)
}
