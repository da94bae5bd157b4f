//! Whoever leaves the lock asks who is next: everybody up to itself is done, and the first of the rest inherits.

use mongodb::bson::{Document, doc};

use super::{behind, literal};

/// The heir stays in front of the line: it is the one that others now wait for. If nobody is left, the line says
/// that this lock id is about to release, so that somebody who joins in that moment asks again at once.
pub(crate) fn line_next(lock_id: &str) -> Vec<Document> {
    let lock_id = literal(lock_id);
    vec![
        doc! { "$set": { "queue": { "$ifNull": ["$queue", []] } } },
        doc! { "$set": { "queue": behind("$queue", &lock_id) } },
        doc! { "$set": { "closing": { "$cond": [
            { "$eq": [{ "$size": "$queue" }, 0] },
            { "lockId": lock_id, "at": "$$NOW" },
            "$$REMOVE",
        ] } } },
        doc! { "$unset": "wake" },
    ]
}
