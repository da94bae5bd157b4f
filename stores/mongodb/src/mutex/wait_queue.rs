//! The wait queue of a mutex: the document beside it. It is a hint, so only updates that a change stream must show wait
//! for a majority.

use std::sync::Arc;
use std::time::Instant;

use distlock_core::store::{Claim, Waiting};
use distlock_core::{Kind, LockId, Result};
use mongodb::bson::{Document, doc};

use crate::commands::{DocumentUpdate, Durability, Image, Namespace, Snapshot};
use crate::documents::{QueueEntry, WaitQueueDocument, whole_ms};
use crate::pipelines::{self, QueueRegistration};
use crate::pool::document_id;
use crate::state::StoreState;
use crate::wake_messages;

/// The id of the wait queue of a mutex.
pub(super) fn queue_id(name: &str) -> String {
    document_id(Kind::Mutex, name)
}

/// Joins the wait queue, or renews its entry. Returns the queue after that.
pub(super) async fn register(
    state: &Arc<StoreState>,
    claim: &Claim,
    waiting: &Waiting,
) -> Result<WaitQueueDocument> {
    let name = claim.resource.name();
    let registration = QueueRegistration {
        lock_id: claim.lock_id.as_str(),
        address: &wake_messages::recipient(&claim.lock_id, &waiting.inbox),
        direct: wake_messages::names_inbox(&claim.lock_id, &waiting.inbox),
        expiry_ms: whole_ms(claim.expiry),
        ttl_ms: whole_ms(waiting.ttl),
        finished: &state.waiters.take_finished(name),
        retention_ms: state.retention_ms(),
    };
    let sent = Instant::now();
    let update = existing(name, pipelines::queue_register(&registration));
    let update = DocumentUpdate { upsert: true, ..update };
    let found = send(state, &update, Durability::Primary).await?;
    let queue = found.map(|found| WaitQueueDocument::read(&found.document)).unwrap_or_default();
    if queue.position(&claim.lock_id).is_some() {
        state.waiters.set_registered(&claim.lock_id, sent, waiting.ttl);
    }
    Ok(queue)
}

/// Leaves the wait queue. False: it was not in it.
pub(super) async fn withdraw(state: &StoreState, name: &str, lock_id: &LockId) -> Result<bool> {
    let update = DocumentUpdate {
        filter: doc! { "queue.lockId": lock_id.as_str() },
        ..existing(name, pipelines::queue_withdraw(lock_id.as_str()))
    };
    Ok(send(state, &update, Durability::Primary).await?.is_some())
}

/// Ends the entry of a holder and those before it. Returns the next waiter.
pub(super) async fn next(state: &StoreState, name: &str, lock_id: &LockId) -> Result<Option<QueueEntry>> {
    let update = existing(name, pipelines::queue_next(lock_id.as_str()));
    let found = send(state, &update, Durability::Primary).await?;
    let queue = found.map(|found| WaitQueueDocument::read(&found.document)).unwrap_or_default();
    Ok(queue.queue.into_iter().next())
}

/// After a forced release: tells the holder to renew now, and the queue head to try again.
pub(super) async fn notify_broken(state: &StoreState, name: &str, holder: &LockId) -> Result<()> {
    let recipient = holder.inbox().map(|inbox| wake_messages::recipient(holder, &inbox));
    let pipeline = pipelines::queue_broken(holder.as_str(), recipient.as_deref(), state.retention_ms());
    // The document carries the message, even if there are no waiters.
    let update = DocumentUpdate { upsert: recipient.is_some(), ..existing(name, pipeline) };
    send(state, &update, Durability::Majority).await.map(drop)
}

/// Tells the queue head to try again.
pub(super) async fn wake_head(state: &StoreState, name: &str) -> Result<()> {
    let update = existing(name, pipelines::queue_wake_head());
    send(state, &update, Durability::Majority).await.map(drop)
}

/// An update of a queue that exists.
fn existing(name: &str, pipeline: Vec<Document>) -> DocumentUpdate {
    let filter = doc! { "queue": { "$type": "array" } };
    DocumentUpdate { id: queue_id(name), filter, pipeline, upsert: false }
}

async fn send(
    state: &StoreState,
    update: &DocumentUpdate,
    durability: Durability,
) -> Result<Option<Snapshot>> {
    state.commands.find_and_modify(Namespace::Queues, update, Image::After, durability).await
}
