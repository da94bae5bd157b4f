//! The lock record: a mutex in the document that other programs share, and beside it the wait queue of its waiters.
//!
//! # Two documents
//! The **lock document** decides. Every verb is one atomic update of it, conditional on the lock id and on the server's
//! clock, so no client can be wrong about who holds the lock. The **wait queue** is a hint: it says in which order waiters
//! arrived, and nothing is granted because of it alone. Losing it costs a waiter a second, the engine's polling interval.
//! Without change streams (a standalone server), or without rights to the second collection, there are no wait queues and
//! waiters poll.
//!
//! # How a release finds out about waiters
//! An uncontended release must be one request, and must not free the lock past a waiter. The lock document has no field
//! to say that there are waiters: readers of the format reject unknown fields. So the release is a compare-and-set on the
//! fencing token, which serves as the document's version:
//!
//! 1. A waiter first registers in the wait queue. Then it tries the lock document once more. If another client holds it,
//!    the same update raises `fencingToken` by one. It does so once per holder, since it remembers the token it left.
//! 2. A holder releases on the condition that the document still has the token it was granted. If it has, every waiter
//!    that is in the queue by now has yet to try the document, and will find it free. If not, the holder looks into the
//!    queue and hands the lock off.
//!
//! Tokens stay strictly increasing from grant to grant, and a raised token is never granted twice. A holder that does not
//! know its token (it gives up an acquisition whose outcome is unknown) looks into the queue as if a waiter had announced
//! itself.
//!
//! # Handoff
//! The holder gives the lock to the next waiter by changing `lockId` in one update, for [`GRANT_WINDOW`] at most. The
//! change stream of the next waiter's process shows it that document, so it takes over without a request. Where the server
//! can merge across collections this is one request: an aggregation that reads the queue and updates the lock. Otherwise,
//! or if that changed nothing, it takes two: the head of the queue, then the transfer. With an empty queue the second
//! request is again a release on the condition of the token, now the one that the document has, and it repeats if yet
//! another waiter announces itself.
//!
//! A holder that came from the queue expects waiters behind it and starts with the handoff. So does any other holder if the
//! last one of the name, which did not come from the queue either, found a waiter. Without a next waiter the handoff changes
//! nothing, and the release begins as usual, one request later.
//!
//! # What the process remembers
//! - The [waiter cache](crate::waiter_cache) has an entry per lock id in a wait queue. It maps a handoff to the attempt it
//!   answers, passes on a handoff to a waiter that has left, and saves registrations. It also knows which names were
//!   contended a moment ago; their claims register first and save an attempt that would fail. And it knows at which names
//!   the last release found a waiter.
//! - The [document cache](crate::document_cache) knows which names have a document, so that a batch of claims need not
//!   create them.
//!
//! Both only choose which request to send first. A wrong entry costs a request.
//!
//! [`GRANT_WINDOW`]: distlock_core::store::GRANT_WINDOW

mod acquire;
mod release;
mod renew;
mod wait_queue;

use std::sync::Arc;

use distlock_core::store::Holder;
use distlock_core::{LockId, Result};
use mongodb::bson::{Document, doc};

pub(crate) use acquire::try_acquire;
pub(crate) use release::{pass_on, release};
pub(crate) use renew::renew;

use crate::commands::{DocumentUpdate, Durability, Image, Namespace, Snapshot};
use crate::documents::LockDocument;
use crate::pipelines;
use crate::state::StoreState;

/// Matches a document that this lock id holds. Expiry is final, even if no other client took the lock since.
fn is_held_by(lock_id: &LockId) -> Document {
    doc! { "lockId": lock_id.as_str(), "$expr": { "$gt": ["$expiresAt", "$$NOW"] } }
}

/// Matches a document that one of these lock ids holds.
fn is_held_by_any(lock_ids: &[&str]) -> Document {
    doc! { "lockId": { "$in": lock_ids }, "$expr": { "$gt": ["$expiresAt", "$$NOW"] } }
}

/// Updates the lock document if this lock id holds it. `None`: it does not.
async fn update_held(
    state: &Arc<StoreState>,
    name: &str,
    lock_id: &LockId,
    pipeline: Vec<Document>,
) -> Result<Option<LockDocument>> {
    let update = DocumentUpdate { id: name.to_owned(), filter: is_held_by(lock_id), pipeline, upsert: false };
    let found =
        state.commands.find_and_modify(Namespace::Locks, &update, Image::After, Durability::Majority).await?;
    let Some(found) = found else { return Ok(None) };
    state.observe_clock(found.now);
    read(state, &found).map(Some)
}

fn read(state: &StoreState, found: &Snapshot) -> Result<LockDocument> {
    LockDocument::read(&found.document, state.commands.collection(Namespace::Locks))
}

/// Forced release. Returns the holder, if there was one.
pub(crate) async fn break_lock(state: &Arc<StoreState>, name: &str) -> Result<Vec<Holder>> {
    let update = DocumentUpdate {
        id: name.to_owned(),
        filter: Document::new(),
        pipeline: pipelines::lock_break(),
        upsert: false,
    };
    let found = state
        .commands
        .find_and_modify(Namespace::Locks, &update, Image::Before, Durability::Majority)
        .await?;
    let Some(found) = found else { return Ok(Vec::new()) };
    let broken = read(state, &found)?;
    // Servers before 4.4 do not send their clock. Measured from its grant, every hold has time left.
    let now = found.now.or(broken.acquired_at).unwrap_or_default();
    let Some(holder) = broken.holder(now) else { return Ok(Vec::new()) };
    state.observe_clock(found.now);
    if state.has_wait_queues()
        && let Err(error) = wait_queue::notify_broken(state, name, &broken.lock_id).await
    {
        tracing::debug!(%error, "no wake-up after a forced release: the holder notices at its next renewal, waiters poll");
    }
    Ok(vec![holder])
}
