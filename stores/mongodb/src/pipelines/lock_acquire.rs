//! Taking a mutex: granted if the name is new, released or expired; recognised if it is ours already; left alone
//! otherwise.

use mongodb::bson::{Document, doc};

use super::lock::{granted_token, held_by, is_held, is_marked, is_new, is_ours, with_mark};
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
    let grant = |marked| held_by(lock_id.clone(), until.clone(), granted_token(taking.floor), marked);
    let first_token = doc! { "$max": [{ "$toLong": "$$NOW" }, taking.floor] };
    let busy = if taking.mark { with_mark().into() } else { mongodb::bson::Bson::from("$$ROOT") };
    vec![doc! { "$replaceWith": { "$switch": {
        "branches": [
            { "case": is_new(), "then": held_by(lock_id.clone(), until.clone(), first_token, false) },
            { "case": { "$not": [is_ours()] }, "then": "$$ROOT" },
            {
                "case": { "$and": [is_held(), { "$eq": ["$lockId", lock_id.clone()] }] },
                "then": { "$mergeObjects": ["$$ROOT", { "expiresAt": until.clone() }] },
            },
            { "case": is_held(), "then": busy },
            // Free, and somebody may wait all the same: whoever releases it next will look.
            { "case": is_marked(), "then": grant(true) },
        ],
        "default": grant(false),
    } } }]
}
