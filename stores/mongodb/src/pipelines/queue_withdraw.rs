//! Leaving the wait queue of a mutex.

use mongodb::bson::{Document, doc};

use super::literal;

pub(crate) fn queue_withdraw(lock_id: &str) -> Vec<Document> {
    let others = doc! { "$filter": {
        "input": "$queue",
        "cond": { "$ne": ["$$this.lockId", literal(lock_id)] },
    } };
    vec![doc! { "$set": { "queue": others } }, doc! { "$unset": "wake" }]
}
