//! Leaving a pool, as holder or as waiter, and granting to the queue head in the same step.

use mongodb::bson::{Document, doc};

use super::pool_document::{GrantTerms, finish, grant, grantable, purge};
use super::{conversion_failure, literal};

/// What to do if this lock id neither holds nor waits, or has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IfNotHeld {
    /// `answer` says whether it held or waited, and under which address.
    Answer,
    /// For one update of many, which are not answered one by one: fail with
    /// [`CONVERSION_FAILURE`](super::CONVERSION_FAILURE) and change nothing.
    Fail,
}

pub(crate) fn pool_release(lock_id: &str, if_not_held: IfNotHeld, terms: GrantTerms) -> Vec<Document> {
    let others = |list: &str| {
        doc! { "$filter": { "input": list, "cond": { "$ne": ["$$this.lockId", literal(lock_id)] } } }
    };
    let ours = |list: &str| {
        doc! { "$filter": { "input": list, "cond": { "$eq": ["$$this.lockId", literal(lock_id)] } } }
    };
    let is_found = doc! { "$gt": [{ "$size": "$t.ours" }, 0] };
    let mut pipeline = vec![
        purge(),
        doc! { "$set": { "t": {
            "ours": { "$concatArrays": [ours("$holders"), ours("$queue")] },
            "queue": others("$queue"),
        } } },
        doc! { "$set": {
            "holders": others("$holders"),
            "capacity": { "$ifNull": ["$capacity", 0_i64] },
            "answer": { "$cond": [
                is_found.clone(),
                { "lockId": literal(lock_id), "call": { "$arrayElemAt": ["$t.ours.call", 0] } },
                "$$REMOVE",
            ] },
        } },
        doc! { "$set": { "t.count": grantable("$t.queue", "$capacity") } },
    ];
    if if_not_held == IfNotHeld::Fail {
        pipeline.push(doc! { "$set": { "t.checked": { "$cond": [is_found, true, conversion_failure()] } } });
    }
    pipeline.extend(grant(None, terms));
    pipeline.extend(finish(terms));
    pipeline
}
