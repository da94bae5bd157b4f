//! Handing a mutex to the next waiter: from one lock id to another in one step, so that no other claim comes between
//! them. The next waiter holds it for a short window, in which it takes over.

use mongodb::bson::{Bson, Document, doc};

use super::lock_document::{granted_to, is_held, tombstone};
use super::{conversion_failure, entries_behind, from_now, is_countable, literal};

/// For a document that our lock id holds. If its token cannot be counted on, the lock is freed instead, and the next claim
/// is told why it is refused.
pub(crate) fn lock_transfer(next: &str, window_ms: i64, lowest_token: i64) -> Vec<Document> {
    let granted = granted_to(literal(next), from_now(window_ms), lowest_token);
    vec![doc! { "$replaceWith": { "$cond": [is_countable("$fencingToken"), granted, tombstone()] } }]
}

/// A mutex, and its wait queue in another collection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MergeHandoff<'a> {
    pub(crate) name: &'a str,
    pub(crate) lock_id: &'a str,
    /// The id of the wait queue's document.
    pub(crate) queue: &'a str,
    /// The collection of the mutexes.
    pub(crate) locks: &'a str,
    /// How long the next waiter holds the lock at most, unless it renews it.
    pub(crate) window_ms: i64,
    pub(crate) lowest_token: i64,
}

/// Finds the next waiter and hands the mutex to it in one request: an aggregation over the wait queue that merges its head
/// into the lock's document. The merge is one atomic step that decides on the lock as it is then. It fails, and changes
/// nothing, if the lock is not ours or there is no next waiter that can be handed the lock.
pub(crate) fn lock_merge_handoff(handoff: MergeHandoff<'_>) -> Vec<Document> {
    let lock_id = literal(handoff.lock_id);
    let window = doc! { "$min": ["$$next.expiry", handoff.window_ms] };
    let granted = granted_to("$$next.lockId", from_now(window), handoff.lowest_token);
    let can_hand_off = doc! { "$and": [
        is_held(),
        { "$eq": ["$lockId", lock_id.clone()] },
        { "$eq": ["$$next.direct", true] },
        is_countable("$fencingToken"),
    ] };
    let merged: Bson =
        doc! { "$replaceWith": { "$cond": [can_hand_off, granted, { "failed": conversion_failure() }] } }
            .into();
    vec![
        doc! { "$match": { "_id": handoff.queue } },
        // One document even if there is no queue: the merge then fails like one without a next waiter.
        doc! { "$facet": { "found": [{ "$limit": 1 }] } },
        doc! { "$project": {
            "_id": literal(handoff.name),
            "queue": { "$ifNull": [{ "$arrayElemAt": ["$found.queue", 0] }, []] },
        } },
        doc! { "$project": { "next": { "$arrayElemAt": [entries_behind("$queue", &lock_id), 0] } } },
        doc! { "$merge": {
            "into": handoff.locks,
            "on": "_id",
            // A missing field would make the variable undefined.
            "let": { "next": { "$ifNull": ["$next", Bson::Null] } },
            "whenMatched": [merged],
            "whenNotMatched": "fail",
        } },
    ]
}
