//! Whoever leaves the lock asks who is next: everybody up to itself is done, and the first of the rest inherits.

use mongodb::bson::{Document, doc};

use super::{from_place, literal};

/// The heir stays in front of the line: it is the one that others now wait for. If nobody is left, the line says
/// that this lock id is about to release, so that somebody who joins in that moment asks again at once.
pub(crate) fn line_next(lock_id: &str) -> Vec<Document> {
    let lock_id = literal(lock_id);
    let mine_or_live = doc! { "$or": [
        { "$eq": ["$$this.lockId", lock_id.clone()] },
        { "$gt": ["$$this.expiresAt", "$$NOW"] },
    ] };
    vec![
        doc! { "$set": { "queue": { "$filter": { "input": { "$ifNull": ["$queue", []] }, "cond": mine_or_live } } } },
        doc! { "$set": { "queue": from_place(
            "$queue",
            doc! { "$add": [{ "$indexOfArray": ["$queue.lockId", lock_id.clone()] }, 1] },
        ) } },
        doc! { "$set": { "closing": { "$cond": [
            { "$eq": [{ "$size": "$queue" }, 0] },
            { "lockId": lock_id, "at": "$$NOW" },
            "$$REMOVE",
        ] } } },
        doc! { "$unset": "wake" },
    ]
}
