//! Telling the first of a line that the lock is free: for a waiter whose lock id alone does not say where it is.

use mongodb::bson::{Document, doc};

use super::stamped;

pub(crate) fn line_ring() -> Vec<Document> {
    vec![doc! { "$set": { "wake": { "$let": {
        "vars": { "first": { "$arrayElemAt": ["$queue", 0] } },
        "in": stamped("$$first.call", " R "),
    } } } }]
}
