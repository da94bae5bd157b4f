//! Forced release of a mutex, whoever holds it.

use mongodb::bson::{Document, doc};

use super::lock::{is_held, is_ours, tombstone};

pub(crate) fn lock_break() -> Vec<Document> {
    vec![doc! { "$replaceWith": { "$cond": [{ "$and": [is_ours(), is_held()] }, tombstone(), "$$ROOT"] } }]
}
