//! Forced release of a mutex, whoever holds it.

use mongodb::bson::{Document, doc};

use super::lock::{is_held, is_ours, tombstone, with_keys};

pub(crate) fn lock_break() -> Vec<Document> {
    let broken = doc! { "$cond": [{ "$and": [is_ours(), is_held()] }, tombstone(), "$$ROOT"] };
    vec![doc! { "$replaceWith": with_keys(broken) }]
}
