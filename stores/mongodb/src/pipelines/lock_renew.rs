//! Extending a mutex that is still ours. Expiry is final: a holder that comes a moment too late finds nothing to
//! extend, whether or not somebody else took it.

use mongodb::bson::{Document, doc};

use super::in_ms;
use super::lock::is_held;

/// For a document whose `lockId` is ours. Keeps the larger token.
pub(crate) fn lock_renew(expiry_ms: i64, token: i64) -> Vec<Document> {
    vec![doc! { "$set": {
        "expiresAt": { "$cond": [is_held(), in_ms(expiry_ms), "$expiresAt"] },
        "fencingToken": { "$cond": [is_held(), { "$max": ["$fencingToken", token] }, "$fencingToken"] },
    } }]
}
