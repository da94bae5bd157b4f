//! Releasing a mutex that our lock id holds. Its token stays behind in a tombstone.

use mongodb::bson::{Bson, Document, doc};

use super::lock_document::{is_held, tombstone};
use super::{conversion_failure, is_countable, literal};

pub(crate) fn lock_release() -> Vec<Document> {
    vec![doc! { "$replaceWith": tombstone() }]
}

/// Releases the lock if it has this token, and leaves it held otherwise: a waiter has announced itself since. A token that
/// cannot be counted on is not a waiter's doing.
pub(crate) fn lock_release_if(token: impl Into<Bson>) -> Vec<Document> {
    vec![doc! { "$replaceWith": released_if(token.into()) }]
}

/// [`lock_release`], or with a token [`lock_release_if`], for any document with the name. Fails with
/// [`CONVERSION_FAILURE`](super::CONVERSION_FAILURE) and changes nothing unless this lock id holds it.
pub(crate) fn lock_release_if_held(lock_id: &str, token: Option<i64>) -> Vec<Document> {
    let is_ours = doc! { "$and": [{ "$eq": ["$lockId", literal(lock_id)] }, is_held()] };
    let released = token.map_or_else(tombstone, |token| released_if(token.into()));
    vec![doc! { "$replaceWith": { "$cond": [is_ours, released, { "failed": conversion_failure() }] } }]
}

fn released_if(token: Bson) -> Document {
    let unannounced = doc! { "$or": [
        { "$eq": ["$fencingToken", token] },
        { "$not": [is_countable("$fencingToken")] },
    ] };
    doc! { "$cond": [unannounced, tombstone(), "$$ROOT"] }
}

/// [`lock_release_if`] for documents held by these lock ids, each with the token at the same index.
pub(crate) fn lock_release_each(lock_ids: &[&str], tokens: &[i64]) -> Vec<Document> {
    let index = doc! { "$indexOfArray": [literal(lock_ids.to_vec()), "$lockId"] };
    lock_release_if(doc! { "$arrayElemAt": [literal(tokens.to_vec()), index] })
}
