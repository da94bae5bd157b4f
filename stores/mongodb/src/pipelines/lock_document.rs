//! The document of a mutex, in the format that other programs share: `_id` (the name), `lockId`, `acquiredAt`,
//! `expiresAt`, `fencingToken`, and no other field.
//!
//! It is held while `expiresAt` is in the future. Once released it is a tombstone that keeps the token: `lockId` is empty
//! and `expiresAt` is absent, which every program that follows the format reads as free.
//!
//! `fencingToken` is also the document's version. A waiter that finds the lock held raises it by one
//! ([`lock_acquire`](super::lock_acquire)), and a holder releases only if it still finds the token it was granted
//! ([`lock_release_if`](super::lock_release_if)).

use mongodb::bson::{Bson, Document, doc};

use super::{date_of_token, next_token};

/// Evaluates `body` with the field names of the document in `$$keys`.
pub(super) fn with_keys(body: impl Into<Bson>) -> Document {
    let keys = doc! { "$map": { "input": { "$objectToArray": "$$ROOT" }, "in": "$$this.k" } };
    doc! { "$let": { "vars": { "keys": keys }, "in": body.into() } }
}

/// The document did not exist: an upsert starts with the id alone. Within [`with_keys`].
pub(super) fn is_new() -> Document {
    doc! { "$eq": [{ "$size": "$$keys" }, 1] }
}

/// The document is in the format. Any other document is left as it is. Within [`with_keys`].
pub(super) fn is_lock() -> Document {
    doc! { "$and": [
        { "$eq": [{ "$type": "$lockId" }, "string"] },
        { "$in": [{ "$type": "$fencingToken" }, ["long", "int", "double"]] },
        { "$in": [{ "$type": "$expiresAt" }, ["date", "missing", "null"]] },
        { "$setIsSubset": ["$$keys", ["_id", "lockId", "acquiredAt", "expiresAt", "fencingToken"]] },
    ] }
}

/// The lock is held. A missing `expiresAt` sorts below every date.
pub(super) fn is_held() -> Document {
    doc! { "$gt": ["$expiresAt", "$$NOW"] }
}

/// The document of a new grant to this lock id.
pub(super) fn granted_to(
    lock_id: impl Into<Bson>,
    expires_at: impl Into<Bson>,
    lowest_token: i64,
) -> Document {
    doc! {
        "_id": "$_id",
        "lockId": lock_id.into(),
        "acquiredAt": "$$NOW",
        "expiresAt": expires_at.into(),
        // A new document has no token: null plus one is null, which is below the clock.
        "fencingToken": next_token("$fencingToken", lowest_token),
    }
}

/// What remains of a released name. `acquiredAt` is the time of the release, from which the index `released_ttl` counts
/// the retention; it is later if the token is ahead of the clock.
pub(super) fn tombstone() -> Document {
    doc! {
        "_id": "$_id",
        "lockId": "",
        "acquiredAt": { "$max": ["$$NOW", date_of_token("$fencingToken")] },
        "fencingToken": "$fencingToken",
    }
}
