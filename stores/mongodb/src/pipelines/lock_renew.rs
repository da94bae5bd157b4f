//! Extending a mutex that is still ours. Expiry is final: a holder that comes a moment too late finds nothing to
//! extend, whether or not somebody else took it.

use mongodb::bson::{Bson, Document, doc};

use super::{extended, literal};

/// For a document whose `lockId` is ours and whose time is not over. Keeps the larger token.
pub(crate) fn lock_renew(expiry_ms: i64, token: i64) -> Vec<Document> {
    renew(expiry_ms, token)
}

/// For such documents whose `lockId` is one of these, each with its token.
pub(crate) fn lock_renew_each(expiry_ms: i64, lock_ids: &[&str], tokens: &[i64]) -> Vec<Document> {
    let place = doc! { "$indexOfArray": [literal(lock_ids.to_vec()), "$lockId"] };
    renew(expiry_ms, doc! { "$arrayElemAt": [literal(tokens.to_vec()), place] })
}

fn renew(expiry_ms: i64, token: impl Into<Bson>) -> Vec<Document> {
    let token = doc! { "$max": ["$fencingToken", token.into()] };
    vec![doc! { "$set": { "expiresAt": extended("$expiresAt", expiry_ms), "fencingToken": token } }]
}
