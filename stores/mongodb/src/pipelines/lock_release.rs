//! Giving a mutex back. Its token stays behind.

use mongodb::bson::{Bson, Document, doc};

use super::lock::{is_marked, tombstone, with_keys};

/// Whether a lock that somebody may wait for is freed, or stays held: it is to be handed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marked {
    Free,
    Keep,
}

/// For documents whose `lockId` is ours and whose time is not over.
pub(crate) fn lock_release(marked: Marked) -> Vec<Document> {
    let released: Bson = match marked {
        Marked::Free => tombstone().into(),
        Marked::Keep => with_keys(doc! { "$cond": [is_marked(), "$$ROOT", tombstone()] }).into(),
    };
    vec![doc! { "$replaceWith": released }]
}
