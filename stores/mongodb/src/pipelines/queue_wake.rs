//! Waking processes through the wait queue of a mutex: the change stream shows them the field `wake`.

use mongodb::bson::{Bson, Document, doc};

use super::{entries_behind, from_now, literal, stamped, wake_field};

/// Tells the queue head to try again: for a waiter that cannot be handed the lock.
pub(crate) fn queue_wake_head() -> Vec<Document> {
    vec![doc! { "$set": { "wake": wake_field(retry_head()) } }]
}

/// After a forced release: tells the holder that its lock was broken, and the queue head to try again. The queue may not
/// exist yet. `holder` is how messages to the holder begin, if its lock id names its inbox.
pub(crate) fn queue_broken(lock_id: &str, holder: Option<&str>, retention_ms: i64) -> Vec<Document> {
    let broken: Vec<Bson> =
        holder.into_iter().map(|address| stamped(literal(address), " B ").into()).collect();
    vec![
        doc! { "$set": { "queue": { "$ifNull": ["$queue", []] } } },
        doc! { "$set": { "queue": entries_behind("$queue", &literal(lock_id)) } },
        doc! { "$set": {
            "wake": wake_field(doc! { "$concatArrays": [broken, retry_head()] }),
            "purgeAt": { "$max": ["$purgeAt", from_now(retention_ms)] },
        } },
    ]
}

/// The message to the queue head, as a list of at most one.
fn retry_head() -> Document {
    doc! { "$map": { "input": { "$slice": ["$queue", 1] }, "in": stamped("$$this.call", " R ") } }
}
