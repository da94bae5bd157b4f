//! Giving a mutex back. Its token stays behind.

use mongodb::bson::{Document, doc};

use super::lock::{is_held, is_marked, tombstone, with_keys};
use super::{NOT_OURS, failing, literal};

/// Whether a lock that somebody may wait for is freed, or stays held: it is to be handed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marked {
    Free,
    Keep,
}

/// For a document whose `lockId` is ours and whose time is not over.
pub(crate) fn lock_release(marked: Marked) -> Vec<Document> {
    vec![doc! { "$replaceWith": released(marked) }]
}

/// For one item of many, which get no answer each: fails with [`NOT_OURS`] where the document is not ours, whatever is
/// there and if nothing is, and leaves it as it is.
pub(crate) fn lock_release_or_fail(lock_id: &str, marked: Marked) -> Vec<Document> {
    let ours = doc! { "$and": [is_held(), { "$eq": ["$lockId", literal(lock_id)] }] };
    vec![doc! { "$replaceWith": { "$cond": [ours, released(marked), { "failed": failing(NOT_OURS) }] } }]
}

fn released(marked: Marked) -> Document {
    match marked {
        Marked::Free => tombstone(),
        Marked::Keep => with_keys(doc! { "$cond": [is_marked(), "$$ROOT", tombstone()] }),
    }
}
