//! Acquiring a mutex: granted if the name is new, released or expired; recognised if this lock id holds it already;
//! unchanged if another lock id holds it, except that a waiter announces itself.
//!
//! An attempt that is stalled until after the release of its lock id is granted: the document does not remember lock ids
//! that are done. The engine undoes the answer when it arrives. If it never arrives (broken connection, dead process), the
//! lock stays taken until its expiry. The same holds for pools.

use mongodb::bson::{Bson, DateTime, Document, doc};

use super::lock_document::{granted_to, is_held, is_lock, is_new, with_keys};
use super::{from_now, is_countable, literal, renewed_until};

/// One claim on a mutex.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockClaim<'a> {
    pub(crate) lock_id: &'a str,
    pub(crate) expiry_ms: i64,
    /// No token below this.
    pub(crate) lowest_token: i64,
    /// For a waiter: the token it found last, so that it announces itself once per holder.
    pub(crate) announce: Option<i64>,
}

pub(crate) fn lock_acquire(claim: LockClaim<'_>) -> Vec<Document> {
    let held_by_another = claim.announce.map_or("$$ROOT".into(), announced);
    let lock_id = literal(claim.lock_id).into();
    vec![doc! { "$replaceWith": acquired(lock_id, claim.expiry_ms, claim.lowest_token, held_by_another) }]
}

/// For the documents of these names, each for the lock id at the same index.
pub(crate) fn lock_acquire_each(
    names: &[&str],
    lock_ids: &[&str],
    expiry_ms: i64,
    lowest_token: i64,
) -> Vec<Document> {
    let index = doc! { "$indexOfArray": [literal(names.to_vec()), "$_id"] };
    let lock_id = doc! { "$arrayElemAt": [literal(lock_ids.to_vec()), index] };
    let acquired = acquired("$$lockId".into(), expiry_ms, lowest_token, "$$ROOT".into());
    vec![doc! { "$replaceWith": { "$let": { "vars": { "lockId": lock_id }, "in": acquired } } }]
}

/// The fields that [`lock_acquire_each`] expects of a document that did not exist: a free lock with the lowest token. If the
/// pipeline never runs, it is purged like a lock that was released then. A time in the distant past would do for that, but
/// the server could purge such a document before the pipeline runs.
pub(crate) fn new_lock(released_at: i64) -> Document {
    doc! { "lockId": "", "acquiredAt": DateTime::from_millis(released_at), "fencingToken": 0_i64 }
}

fn acquired(lock_id: Bson, expiry_ms: i64, lowest_token: i64, held_by_another: Bson) -> Document {
    with_keys(doc! { "$switch": {
        "branches": [
            {
                "case": { "$not": [{ "$or": [is_new(), { "$and": [is_lock(), is_countable("$fencingToken")] }] }] },
                "then": "$$ROOT",
            },
            {
                "case": { "$and": [is_held(), { "$eq": ["$lockId", lock_id.clone()] }] },
                "then": { "$mergeObjects": ["$$ROOT", { "expiresAt": renewed_until("$expiresAt", expiry_ms) }] },
            },
            { "case": is_held(), "then": held_by_another },
        ],
        "default": granted_to(lock_id, from_now(expiry_ms), lowest_token),
    } })
}

/// The document of another holder, told that a waiter is in the queue: its token is raised by one, so the holder's
/// release finds another token than it was granted and looks into the queue. Tokens still rise from grant to grant. The
/// document of a foreign holder, whose lock id has no `#`, is not changed: other programs hand nothing off.
fn announced(last_seen_token: i64) -> Bson {
    let is_new_to_us = doc! { "$and": [
        { "$gte": [{ "$indexOfBytes": ["$lockId", "#"] }, 0] },
        { "$ne": ["$fencingToken", last_seen_token] },
    ] };
    let raised = doc! { "fencingToken": { "$add": [{ "$toLong": "$fencingToken" }, 1_i64] } };
    doc! { "$cond": [is_new_to_us, { "$mergeObjects": ["$$ROOT", raised] }, "$$ROOT"] }.into()
}
