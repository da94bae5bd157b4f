//! Leaving a pool, as holder or as waiter, and granting to whoever is next in the same step.

use mongodb::bson::{Document, doc};

use super::pool::{finish, grant, how_many, purge};
use super::{NOT_OURS, failing, literal};

/// What to do where there is nothing of ours, or its time is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotOurs {
    /// `answer` says whether there was anything, and under which address it was known.
    Answer,
    /// For one item of many, which get no answer each: fail with [`NOT_OURS`], and change nothing.
    Fail,
}

pub(crate) fn pool_release(lock_id: &str, not_ours: NotOurs, floor: i64, retention_ms: i64) -> Vec<Document> {
    let others = |list: &str| {
        doc! { "$filter": { "input": list, "cond": { "$ne": ["$$this.lockId", literal(lock_id)] } } }
    };
    let ours = |list: &str| {
        doc! { "$filter": { "input": list, "cond": { "$eq": ["$$this.lockId", literal(lock_id)] } } }
    };
    let mut pipeline = vec![
        purge(),
        doc! { "$set": { "t": {
            "ours": { "$concatArrays": [ours("$holders"), ours("$queue")] },
            "line": others("$queue"),
        } } },
        doc! { "$set": {
            "holders": others("$holders"),
            "capacity": { "$ifNull": ["$capacity", 0_i64] },
            "answer": { "$cond": [
                { "$gt": [{ "$size": "$t.ours" }, 0] },
                { "lockId": literal(lock_id), "call": { "$arrayElemAt": ["$t.ours.call", 0] } },
                "$$REMOVE",
            ] },
        } },
        doc! { "$set": { "t.count": how_many("$t.line", "$capacity") } },
    ];
    if not_ours == NotOurs::Fail {
        let found = doc! { "$gt": [{ "$size": "$t.ours" }, 0] };
        pipeline.push(doc! { "$set": { "t.checked": { "$cond": [found, true, failing(NOT_OURS)] } } });
    }
    pipeline.extend(grant(None, floor));
    pipeline.extend(finish(retention_ms));
    pipeline
}
