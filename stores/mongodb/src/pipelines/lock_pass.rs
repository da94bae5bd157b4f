//! Looking who is next and handing the mutex on to it, in one request: an aggregation over the line that merges what it
//! found into the lock. The lock itself is changed by one atomic step, which decides on the lock as it is then.

use mongodb::bson::{Bson, Document, doc};

use super::lock::{Mark, granted_token, held_by, is_held};
use super::{behind, failing, in_ms, is_countable, literal};

/// The words with which it fails if the lock is not ours any more, and nothing is changed.
pub(crate) const NOT_OURS: &str = "not ours any more, ";
/// The words with which it fails if nobody is next who can be handed the lock, and nothing is changed.
pub(crate) const NO_HEIR: &str = "nobody to hand it to, ";

/// Whose lock, and where its line is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passing<'a> {
    pub(crate) name: &'a str,
    pub(crate) lock_id: &'a str,
    pub(crate) line: &'a str,
    pub(crate) locks: &'a str,
    pub(crate) window_ms: i64,
    pub(crate) floor: i64,
}

pub(crate) fn lock_pass(passing: Passing<'_>) -> Vec<Document> {
    let lock_id = literal(passing.lock_id);
    let window = doc! { "$min": ["$$heir.expiry", passing.window_ms] };
    let handed = held_by("$$heir.lockId", in_ms(window), granted_token(passing.floor), Mark::Always);
    let step: Bson = doc! { "$replaceWith": { "$switch": {
        "branches": [
            {
                "case": { "$not": [{ "$and": [is_held(), { "$eq": ["$lockId", lock_id.clone()] }] }] },
                "then": { "failed": failing(NOT_OURS) },
            },
            {
                "case": { "$or": [{ "$ne": ["$$heir.direct", true] }, { "$not": [is_countable("$fencingToken")] }] },
                "then": { "failed": failing(NO_HEIR) },
            },
        ],
        "default": handed,
    } } }
    .into();
    vec![
        doc! { "$match": { "_id": passing.line } },
        // One document, also if there is no line: then nobody is next.
        doc! { "$facet": { "line": [{ "$limit": 1 }] } },
        doc! { "$project": {
            "_id": literal(passing.name),
            "queue": { "$ifNull": [{ "$arrayElemAt": ["$line.queue", 0] }, []] },
        } },
        doc! { "$project": { "heir": { "$arrayElemAt": [behind("$queue", &lock_id), 0] } } },
        doc! { "$merge": {
            "into": passing.locks,
            "on": "_id",
            // What is missing would be an undefined variable.
            "let": { "heir": { "$ifNull": ["$heir", Bson::Null] } },
            "whenMatched": [step],
            "whenNotMatched": "fail",
        } },
    ]
}
