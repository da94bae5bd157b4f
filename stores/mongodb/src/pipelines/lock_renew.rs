//! Renewing a mutex that our lock id holds. Expiry is final: a renewal that is late matches no document, even if the lock
//! is still free.

use mongodb::bson::{Bson, Document, doc};

use super::{literal, renewed_until};

/// The document keeps the larger token.
pub(crate) fn lock_renew(expiry_ms: i64, token: impl Into<Bson>) -> Vec<Document> {
    let token = doc! { "$max": ["$fencingToken", token.into()] };
    vec![doc! { "$set": { "expiresAt": renewed_until("$expiresAt", expiry_ms), "fencingToken": token } }]
}

/// For documents held by these lock ids, each with the token at the same index.
pub(crate) fn lock_renew_each(expiry_ms: i64, lock_ids: &[&str], tokens: &[i64]) -> Vec<Document> {
    let index = doc! { "$indexOfArray": [literal(lock_ids.to_vec()), "$lockId"] };
    lock_renew(expiry_ms, doc! { "$arrayElemAt": [literal(tokens.to_vec()), index] })
}
