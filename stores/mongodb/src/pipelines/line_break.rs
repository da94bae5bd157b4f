//! After a mutex was broken: its holder is told, and the first of those who wait behind it.

use mongodb::bson::{Bson, Document, doc};

use super::{behind, in_ms, literal, messages, stamped};

/// For a line that may not exist yet. `call` is how messages to the holder begin, if its lock id says where it is.
pub(crate) fn line_break(lock_id: &str, call: Option<&str>, retention_ms: i64) -> Vec<Document> {
    let holder: Vec<Bson> = call.into_iter().map(|call| stamped(literal(call), " B ").into()).collect();
    let first = doc! { "$map": {
        "input": { "$slice": ["$queue", 1] },
        "in": stamped("$$this.call", " R "),
    } };
    vec![
        doc! { "$set": { "queue": { "$ifNull": ["$queue", []] } } },
        doc! { "$set": { "queue": behind("$queue", &literal(lock_id)) } },
        doc! { "$set": {
            "wake": messages(doc! { "$concatArrays": [holder, first] }),
            "purgeAt": { "$max": ["$purgeAt", in_ms(retention_ms)] },
        } },
    ]
}
