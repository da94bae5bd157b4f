//! Joining the line of a mutex: the document beside it that says who waits.
//!
//! The line is a list of entries in their order. It begins with whoever took the lock out of it, and may hold, in
//! front, some who are done already. Nothing here is more than a hint: who holds the lock, its own document says.

use mongodb::bson::{Bson, Document, doc};

use super::{extended, in_ms, literal, live};

/// Who joins.
#[derive(Clone, Debug)]
pub(crate) struct Registration<'a> {
    pub(crate) lock_id: &'a str,
    /// Its address, as messages to it begin.
    pub(crate) call: &'a str,
    /// How the one before it is told who comes next.
    pub(crate) introduction: &'a str,
    /// Whether its lock id speaks for itself, so that the lock can be handed to it.
    pub(crate) direct: bool,
    /// Whether the one before it is to be told at all.
    pub(crate) introduces_itself: bool,
    pub(crate) expiry_ms: i64,
    pub(crate) ttl_ms: i64,
    /// Lock ids of ours that are done.
    pub(crate) done: &'a [String],
    pub(crate) retention_ms: i64,
}

/// Joins at the end, or starts the time of an entry anew where it stands. Tells the one before who comes next.
pub(crate) fn line_register(who: &Registration<'_>) -> Vec<Document> {
    let lock_id = literal(who.lock_id);
    let done: Vec<Bson> = who.done.iter().map(|id| Bson::from(id.as_str())).collect();
    let entry = doc! {
        "lockId": lock_id.clone(),
        "call": literal(who.call),
        "introduction": literal(who.introduction),
        "direct": who.direct,
        "expiry": who.expiry_ms,
        "decidedAt": "$$NOW",
        "expiresAt": in_ms(who.ttl_ms),
    };
    let refreshed = doc! { "$map": { "input": "$queue", "in": { "$cond": [
        { "$eq": ["$$this.lockId", lock_id.clone()] },
        { "$mergeObjects": ["$$this", {
            "decidedAt": { "$max": ["$$this.decidedAt", "$$NOW"] },
            "expiresAt": extended("$$this.expiresAt", who.ttl_ms),
        }] },
        "$$this",
    ] } } };
    let is_there = doc! { "$gte": ["$at", 0] };
    let last = doc! { "$arrayElemAt": ["$queue", -1] };
    let introduction = literal(format!(" N {}", who.introduction));
    vec![
        doc! { "$set": { "queue": live("$queue") } },
        doc! { "$set": { "queue": { "$filter": {
            "input": "$queue",
            "cond": { "$not": [{ "$in": ["$$this.lockId", literal(done)] }] },
        } } } },
        doc! { "$set": { "at": { "$indexOfArray": ["$queue.lockId", lock_id] } } },
        doc! { "$set": {
            "queue": { "$cond": [is_there.clone(), refreshed, { "$concatArrays": ["$queue", [entry]] }] },
            "wake": { "$cond": [
                { "$or": [!who.introduces_itself, is_there, { "$eq": [{ "$size": "$queue" }, 0] }] },
                "$$REMOVE",
                { "$let": { "vars": { "last": last }, "in": { "$concat": ["$$last.call", introduction] } } },
            ] },
            "purgeAt": in_ms(who.retention_ms + who.ttl_ms),
        } },
        doc! { "$unset": "at" },
    ]
}
