//! Leaving the line of a mutex. The one before is told who comes next now, if anybody does.

use mongodb::bson::{Document, doc};

use super::literal;

/// For a line that has this lock id. With `tell`, the one before hears of it.
pub(crate) fn line_withdraw(lock_id: &str, tell: bool) -> Vec<Document> {
    let lock_id = literal(lock_id);
    let before = doc! { "$arrayElemAt": ["$queue", { "$subtract": ["$at", 1] }] };
    let behind = doc! { "$arrayElemAt": ["$queue", { "$add": ["$at", 1] }] };
    let told = doc! { "$let": {
        "vars": { "before": before, "behind": behind },
        "in": { "$concat": ["$$before.call", " N ", { "$ifNull": ["$$behind.introduction", "-"] }] },
    } };
    vec![
        doc! { "$set": { "at": { "$indexOfArray": ["$queue.lockId", lock_id.clone()] } } },
        doc! { "$set": {
            "queue": { "$filter": { "input": "$queue", "cond": { "$ne": ["$$this.lockId", lock_id] } } },
            "wake": { "$cond": [{ "$and": [tell, { "$gt": ["$at", 0] }] }, told, "$$REMOVE"] },
        } },
        doc! { "$unset": "at" },
    ]
}
