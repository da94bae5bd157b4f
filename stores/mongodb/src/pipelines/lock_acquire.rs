//! Taking a mutex: granted if the name is new, released or expired; recognised if it is ours already; left alone
//! otherwise.

use mongodb::bson::{Bson, Document, doc};

use super::lock::{Mark, granted_token, held_by, is_held, is_new, is_ours, with_keys, with_mark};
use super::{in_ms, literal};

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
    let lock_id = literal(taking.lock_id);
    let until = in_ms(taking.expiry_ms);
    let busy: Bson = if taking.mark { with_mark().into() } else { "$$ROOT".into() };
    vec![doc! { "$replaceWith": with_keys(doc! { "$switch": {
        "branches": [
            { "case": { "$not": [{ "$or": [is_new(), is_ours()] }] }, "then": "$$ROOT" },
            {
                "case": { "$and": [is_held(), { "$eq": ["$lockId", lock_id.clone()] }] },
                "then": { "$mergeObjects": ["$$ROOT", { "expiresAt": until.clone() }] },
            },
            { "case": is_held(), "then": busy },
        ],
        // If it is free and somebody may wait all the same: whoever releases it next will look.
        "default": held_by(lock_id, until, granted_token(taking.floor), Mark::AsBefore),
    } }) }]
}
