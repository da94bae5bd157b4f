//! Forced release of a mutex, whichever lock id holds it.

use mongodb::bson::{Document, doc};

use super::lock_document::{is_held, is_lock, tombstone, with_keys};

pub(crate) fn lock_break() -> Vec<Document> {
    let broken = doc! { "$cond": [{ "$and": [is_lock(), is_held()] }, tombstone(), "$$ROOT"] };
    vec![doc! { "$replaceWith": with_keys(broken) }]
}
