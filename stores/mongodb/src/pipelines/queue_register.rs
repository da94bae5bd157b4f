//! Joining the wait queue of a mutex: the document beside it that lists its waiters.
//!
//! The queue is a list of entries in the order of arrival. Its head may be the holder, if that came from the queue, and
//! entries before the holder are done. The queue is a hint: only the lock's own document says which lock id holds it.

use mongodb::bson::{Bson, Document, doc};

use super::{from_now, literal, live, renewed_until};

/// A waiter that joins.
#[derive(Clone, Debug)]
pub(crate) struct QueueRegistration<'a> {
    pub(crate) lock_id: &'a str,
    /// How messages to it begin.
    pub(crate) address: &'a str,
    /// Whether the lock can be handed to it: its lock id names its inbox.
    pub(crate) direct: bool,
    pub(crate) expiry_ms: i64,
    pub(crate) ttl_ms: i64,
    /// Lock ids of this process that are done and may still have entries.
    pub(crate) finished: &'a [String],
    pub(crate) retention_ms: i64,
}

/// Appends an entry, or renews the existing entry of this lock id in its place.
pub(crate) fn queue_register(waiter: &QueueRegistration<'_>) -> Vec<Document> {
    let lock_id = literal(waiter.lock_id);
    let finished: Vec<Bson> = waiter.finished.iter().map(|id| Bson::from(id.as_str())).collect();
    let entry = doc! {
        "lockId": lock_id.clone(),
        "call": literal(waiter.address),
        "direct": waiter.direct,
        "expiry": waiter.expiry_ms,
        "decidedAt": "$$NOW",
        "expiresAt": from_now(waiter.ttl_ms),
    };
    let renewed = doc! { "$map": { "input": "$queue", "in": { "$cond": [
        { "$eq": ["$$this.lockId", lock_id.clone()] },
        { "$mergeObjects": ["$$this", {
            "decidedAt": { "$max": ["$$this.decidedAt", "$$NOW"] },
            "expiresAt": renewed_until("$$this.expiresAt", waiter.ttl_ms),
        }] },
        "$$this",
    ] } } };
    vec![
        doc! { "$set": { "queue": live("$queue") } },
        doc! { "$set": { "queue": { "$filter": {
            "input": "$queue",
            "cond": { "$not": [{ "$in": ["$$this.lockId", literal(finished)] }] },
        } } } },
        doc! { "$set": {
            "queue": { "$cond": [
                { "$in": [lock_id, "$queue.lockId"] },
                renewed,
                { "$concatArrays": ["$queue", [entry]] },
            ] },
            "purgeAt": from_now(waiter.retention_ms + waiter.ttl_ms),
        } },
        doc! { "$unset": "wake" },
    ]
}
