//! Taking a mutex: granted if the name is new, released or expired; recognised if it is ours already; left alone
//! otherwise.
//!
//! An attempt that is stalled until after the release of its lock id is granted: the record does not remember lock ids that
//! are done. The engine undoes the answer when it comes. If it never comes (the connection broke, the process died), the
//! lock is held by no client until its expiry. A pool's attempt is the same.

use mongodb::bson::{Bson, Document, doc};

use super::lock::{Mark, granted_token, held_by, is_held, is_new, is_ours, with_keys, with_mark};
use super::{extended, in_ms, is_countable, literal};

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taking<'a> {
    pub(crate) lock_id: &'a str,
    pub(crate) expiry_ms: i64,
    /// No token below this.
    pub(crate) floor: i64,
    /// Leave a mark if somebody else holds it: we wait.
    pub(crate) mark: bool,
}

pub(crate) fn lock_acquire(taking: Taking<'_>) -> Vec<Document> {
    let busy: Bson = if taking.mark { with_mark().into() } else { "$$ROOT".into() };
    vec![doc! { "$replaceWith": taken(literal(taking.lock_id).into(), taking.expiry_ms, taking.floor, busy) }]
}

/// For documents of these ids, each for the lock id in the same place.
pub(crate) fn lock_acquire_each(
    names: &[&str],
    lock_ids: &[&str],
    expiry_ms: i64,
    floor: i64,
) -> Vec<Document> {
    let place = doc! { "$indexOfArray": [literal(names.to_vec()), "$_id"] };
    let lock_id = doc! { "$arrayElemAt": [literal(lock_ids.to_vec()), place] };
    let taken = taken("$$lockId".into(), expiry_ms, floor, "$$ROOT".into());
    vec![doc! { "$replaceWith": { "$let": { "vars": { "lockId": lock_id }, "in": taken } } }]
}

/// What such documents begin as: a name that nobody holds, whose token is below every other. Old enough to be purged at
/// once, should the step not follow.
pub(crate) fn lock_beginning() -> Document {
    doc! { "lockId": "", "acquiredAt": mongodb::bson::DateTime::from_millis(0), "fencingToken": 0_i64 }
}

fn taken(lock_id: Bson, expiry_ms: i64, floor: i64, busy: Bson) -> Document {
    with_keys(doc! { "$switch": {
        "branches": [
            {
                "case": { "$not": [{ "$or": [is_new(), { "$and": [is_ours(), is_countable("$fencingToken")] }] }] },
                "then": "$$ROOT",
            },
            {
                "case": { "$and": [is_held(), { "$eq": ["$lockId", lock_id.clone()] }] },
                "then": { "$mergeObjects": ["$$ROOT", { "expiresAt": extended("$expiresAt", expiry_ms) }] },
            },
            { "case": is_held(), "then": busy },
        ],
        // If it is free and somebody may wait all the same: whoever releases it next will look.
        "default": held_by(lock_id, in_ms(expiry_ms), granted_token(floor), Mark::AsBefore),
    } })
}
