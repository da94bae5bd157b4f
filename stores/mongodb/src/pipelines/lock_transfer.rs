//! Handing a mutex on to the waiter that is next, without anybody in between: for a short window, in which it takes
//! over.

use mongodb::bson::{Document, doc};

use super::lock::{Mark, granted_token, held_by, is_held};
use super::{in_ms, literal};

/// Who is next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heir<'a> {
    pub(crate) lock_id: &'a str,
    pub(crate) window_ms: i64,
}

/// For a document whose `lockId` is ours. It is marked: others may wait behind the heir.
pub(crate) fn lock_transfer(heir: Heir<'_>, floor: i64) -> Vec<Document> {
    let held = held_by(literal(heir.lock_id), in_ms(heir.window_ms), granted_token(floor), Mark::Always);
    vec![doc! { "$replaceWith": { "$cond": [is_held(), held, "$$ROOT"] } }]
}
