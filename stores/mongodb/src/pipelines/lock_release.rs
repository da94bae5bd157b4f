//! Releasing a mutex that our lock id holds. Its token stays behind in a tombstone.

use mongodb::bson::{Bson, Document, doc};

use super::lock_document::tombstone;
use super::{is_countable, literal};

pub(crate) fn lock_release() -> Vec<Document> {
    vec![doc! { "$replaceWith": tombstone() }]
}

/// Releases the lock if it has this token, and leaves it held otherwise: a waiter has announced itself since. A token that
/// cannot be counted on is not a waiter's doing.
pub(crate) fn lock_release_if(token: impl Into<Bson>) -> Vec<Document> {
    let unannounced = doc! { "$or": [
        { "$eq": ["$fencingToken", token.into()] },
        { "$not": [is_countable("$fencingToken")] },
    ] };
    vec![doc! { "$replaceWith": { "$cond": [unannounced, tombstone(), "$$ROOT"] } }]
}

/// [`lock_release_if`] for documents held by these lock ids, each with the token at the same index.
pub(crate) fn lock_release_each(lock_ids: &[&str], tokens: &[i64]) -> Vec<Document> {
    let index = doc! { "$indexOfArray": [literal(lock_ids.to_vec()), "$lockId"] };
    lock_release_if(doc! { "$arrayElemAt": [literal(tokens.to_vec()), index] })
}
