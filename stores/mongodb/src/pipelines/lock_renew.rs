//! Extending a mutex that is still ours. Expiry is final: a holder that comes a moment too late finds nothing to
//! extend, whether or not somebody else took it.

use mongodb::bson::{Bson, Document, doc};

use super::lock::is_held;
use super::{in_ms, literal};

/// For a document whose `lockId` is ours. Keeps the larger token.
pub(crate) fn lock_renew(expiry_ms: i64, token: i64) -> Vec<Document> {
    renew(expiry_ms, token)
}

/// For documents whose `lockId` is one of these, each with its token.
pub(crate) fn lock_renew_each(expiry_ms: i64, lock_ids: &[&str], tokens: &[i64]) -> Vec<Document> {
    // The server makes a table of a constant list, so that this does not look through it each time.
    let place = doc! { "$indexOfArray": [literal(lock_ids.to_vec()), "$lockId"] };
    renew(expiry_ms, doc! { "$arrayElemAt": [literal(tokens.to_vec()), place] })
}

fn renew(expiry_ms: i64, token: impl Into<Bson>) -> Vec<Document> {
    vec![doc! { "$set": {
        "expiresAt": { "$cond": [is_held(), in_ms(expiry_ms), "$expiresAt"] },
        "fencingToken": { "$cond": [is_held(), { "$max": ["$fencingToken", token.into()] }, "$fencingToken"] },
    } }]
}
