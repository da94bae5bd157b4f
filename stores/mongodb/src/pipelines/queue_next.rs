//! Finding the next waiter: the holder, and every entry before it, leaves the wait queue; the first of the rest is next.

use mongodb::bson::{Document, doc};

use super::{entries_behind, literal};

/// The next waiter stays at the head of the queue: later waiters wait behind it.
pub(crate) fn queue_next(lock_id: &str) -> Vec<Document> {
    vec![doc! { "$set": { "queue": entries_behind("$queue", &literal(lock_id)) } }, doc! { "$unset": "wake" }]
}
