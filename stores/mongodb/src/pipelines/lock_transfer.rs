//! Handing a mutex on to the waiter that is next, without anybody in between: for a short window, in which it takes
//! over.

use mongodb::bson::{Document, doc};

use super::lock::{Mark, granted_token, held_by, is_held, tombstone};
use super::{in_ms, is_countable, literal};

/// Who is next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heir<'a> {
    pub(crate) lock_id: &'a str,
    pub(crate) window_ms: i64,
}

/// For a document whose `lockId` is ours. It is marked: others may wait behind the heir. If its token
/// cannot be counted on, it is freed: the next acquire is told why it is refused.
pub(crate) fn lock_transfer(heir: Heir<'_>, floor: i64) -> Vec<Document> {
    let held = held_by(literal(heir.lock_id), in_ms(heir.window_ms), granted_token(floor), Mark::Always);
    let passed_on = doc! { "$cond": [is_countable("$fencingToken"), held, tombstone()] };
    vec![doc! { "$replaceWith": { "$cond": [is_held(), passed_on, "$$ROOT"] } }]
}
