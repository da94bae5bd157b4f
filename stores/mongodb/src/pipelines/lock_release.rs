//! Giving a mutex back. Its token stays behind.

use mongodb::bson::{Document, doc};

use super::lock::{is_held, is_marked, tombstone};

/// For a document whose `lockId` is ours. With `only_unmarked`, one that somebody may wait for stays held: it is to
/// be handed on.
///
/// A batch of releases is sent with upsert, so that an item that is not ours fails with a duplicate key and says
/// which it was. Where there is no document at all that makes one; it is then a tombstone too.
pub(crate) fn lock_release(only_unmarked: bool, floor: i64) -> Vec<Document> {
    let may_end = if only_unmarked {
        doc! { "$and": [is_held(), { "$not": [is_marked()] }] }
    } else {
        is_held()
    };
    let made_up = doc! {
        "_id": "$_id",
        "lockId": "",
        "acquiredAt": "$$NOW",
        "fencingToken": { "$max": [{ "$toLong": "$$NOW" }, floor] },
    };
    vec![doc! { "$replaceWith": { "$switch": {
        "branches": [
            { "case": { "$eq": [{ "$type": "$fencingToken" }, "missing"] }, "then": made_up },
            { "case": may_end, "then": tombstone() },
        ],
        "default": "$$ROOT",
    } } }]
}
