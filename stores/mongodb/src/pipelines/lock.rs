//! The document of a mutex, in the format that other programs share:
//! `_id` (the name), `lockId`, `acquiredAt`, `expiresAt`, `fencingToken`, and nothing else.
//!
//! It is held while `expiresAt` is in the future. Released, it keeps its token: `lockId` is empty and there is no
//! `expiresAt`, which everybody who follows the format reads as free.
//!
//! **The mark.** Whoever releases must know whether somebody waits, and there is no field to say so. The order of
//! the fields says it: `fencingToken` in front of the others means that somebody may wait. Readers go by names, and
//! other programs' updates leave the order as it is, so nobody else notices; a mark too many costs one look at the
//! line, and one that is missing costs a waiter the time until it asks again.

use mongodb::bson::{Bson, Document, doc};

use super::{moment_of, next_token};

/// Something that looks at the names of the fields, in their order. They are worked out once: the server has this to do
/// for every claim.
pub(super) fn with_keys(body: impl Into<Bson>) -> Document {
    let keys = doc! { "$map": { "input": { "$objectToArray": "$$ROOT" }, "in": "$$this.k" } };
    doc! { "$let": { "vars": { "keys": keys }, "in": body.into() } }
}

/// There was no document: an upsert begins with the id alone. Within [`with_keys`].
pub(super) fn is_new() -> Document {
    doc! { "$eq": [{ "$size": "$$keys" }, 1] }
}

/// The document is in the format. Anything else stays as it is. Within [`with_keys`].
pub(super) fn is_ours() -> Document {
    doc! { "$and": [
        { "$eq": [{ "$type": "$lockId" }, "string"] },
        { "$in": [{ "$type": "$fencingToken" }, ["long", "int", "double"]] },
        { "$in": [{ "$type": "$expiresAt" }, ["date", "missing", "null"]] },
        { "$setIsSubset": ["$$keys", ["_id", "lockId", "acquiredAt", "expiresAt", "fencingToken"]] },
    ] }
}

/// Somebody holds it. A missing `expiresAt` is below every date.
pub(super) fn is_held() -> Document {
    doc! { "$gt": ["$expiresAt", "$$NOW"] }
}

/// Somebody may wait for it. Within [`with_keys`].
pub(super) fn is_marked() -> Document {
    doc! { "$eq": [{ "$arrayElemAt": ["$$keys", 1] }, "fencingToken"] }
}

/// Whether a document of a new holder has the mark.
#[derive(Clone, Debug)]
pub(super) enum Mark {
    Always,
    /// If it had it before. Within [`with_keys`].
    AsBefore,
}

/// Held by this lock id until then.
pub(super) fn held_by(
    lock_id: impl Into<Bson>,
    until: impl Into<Bson>,
    token: impl Into<Bson>,
    mark: Mark,
) -> Document {
    // What was there first keeps its place.
    let in_front = doc! { "fencingToken": 0 };
    let in_front: Bson = match mark {
        Mark::Always => in_front.into(),
        Mark::AsBefore => doc! { "$cond": [is_marked(), in_front, {}] }.into(),
    };
    doc! { "$mergeObjects": [
        { "_id": "$_id" },
        in_front,
        {
            "lockId": lock_id.into(),
            "acquiredAt": "$$NOW",
            "expiresAt": until.into(),
            "fencingToken": token.into(),
        },
    ] }
}

/// The document as it is, with the mark.
pub(super) fn with_mark() -> Document {
    doc! {
        "_id": "$_id",
        "fencingToken": "$fencingToken",
        "lockId": "$lockId",
        "acquiredAt": "$acquiredAt",
        "expiresAt": "$expiresAt",
    }
}

/// The token of a grant of this document, or of a new one: nothing plus one is nothing, and less than the clock.
pub(super) fn granted_token(floor: i64) -> Document {
    next_token("$fencingToken", floor)
}

/// What is left of a released name. `acquiredAt` is the moment of the release, which the index `released_ttl` counts
/// its retention from; later if the token is ahead of the clock.
pub(super) fn tombstone() -> Document {
    doc! {
        "_id": "$_id",
        "lockId": "",
        "acquiredAt": { "$max": ["$$NOW", moment_of("$fencingToken")] },
        "fencingToken": "$fencingToken",
    }
}
