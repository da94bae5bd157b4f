//! Asking a pool: granted if the live weights and ours fit the capacity and nobody waits before us.

use mongodb::bson::{Bson, Document, doc};

use super::pool::{Asks, finish, grant, how_many, purge};
use super::{extended, in_ms, literal};

/// What is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Asking<'a> {
    pub(crate) lock_id: &'a str,
    pub(crate) call: &'a str,
    pub(crate) weight: i64,
    pub(crate) capacity: i64,
    pub(crate) expiry_ms: i64,
    /// How long to wait without another word. `None`: one attempt, and no trace of it.
    pub(crate) ttl_ms: Option<i64>,
    /// The number of this attempt of the lock id.
    pub(crate) attempt: i64,
    pub(crate) floor: i64,
    pub(crate) retention_ms: i64,
}

/// A pool in use by others with another capacity stays as it is: two sizes of one semaphore at once would admit more
/// than the smaller one allows.
pub(crate) fn pool_attempt(asking: &Asking<'_>) -> Vec<Document> {
    let asks = Asks { lock_id: literal(asking.lock_id), expiry_ms: asking.expiry_ms };
    let entry = doc! {
        "lockId": asks.lock_id.clone(),
        "call": literal(asking.call),
        "weight": asking.weight,
        "expiry": asking.expiry_ms,
        "attempt": asking.attempt,
        "decidedAt": "$$NOW",
        "expiresAt": in_ms(asking.ttl_ms.unwrap_or_default()),
    };
    let is_ours = doc! { "$eq": ["$$this.lockId", asks.lock_id.clone()] };
    // An attempt that is applied after a later one of the same lock id leaves its entry as it is.
    let is_older = doc! { "$and": [is_ours.clone(), { "$lte": ["$$this.attempt", asking.attempt] }] };
    let in_its_place = doc! { "$map": {
        "input": "$queue",
        "in": { "$cond": [is_older, entry.clone(), "$$this"] },
    } };
    let mut pipeline = vec![
        purge(),
        doc! { "$set": { "t": {
            "other": { "$and": [
                { "$gt": [{ "$add": [{ "$size": "$holders" }, { "$size": "$queue" }] }, 0] },
                { "$ne": ["$capacity", asking.capacity] },
            ] },
            "holds": { "$in": [asks.lock_id.clone(), "$holders.lockId"] },
            "waits": { "$in": [asks.lock_id.clone(), "$queue.lockId"] },
        } } },
        doc! { "$set": {
            "capacity": { "$cond": ["$t.other", "$capacity", asking.capacity] },
            "holders": { "$cond": [
                { "$and": ["$t.holds", { "$not": ["$t.other"] }] },
                { "$map": { "input": "$holders", "in": { "$cond": [
                    is_ours.clone(),
                    { "$mergeObjects": ["$$this", { "expiresAt": extended("$$this.expiresAt", asking.expiry_ms) }] },
                    "$$this",
                ] } } },
                "$holders",
            ] },
            "t.line": { "$switch": {
                "branches": [
                    { "case": { "$or": ["$t.other", "$t.holds"] }, "then": "$queue" },
                    { "case": "$t.waits", "then": in_its_place },
                ],
                "default": { "$concatArrays": ["$queue", [entry]] },
            } },
        } },
    ];
    let count = |line: &str| doc! { "$cond": ["$t.other", 0, how_many(line, "$capacity")] };
    if asking.ttl_ms.is_none() {
        // Not granted now: out of the line again, and whoever stood behind us may fit.
        let place = doc! { "$indexOfArray": ["$t.line.lockId", asks.lock_id.clone()] };
        let granted = doc! { "$lt": [place, count("$t.line")] };
        let without: Bson = doc! { "$filter": { "input": "$t.line", "cond": { "$not": [is_ours] } } }.into();
        pipeline.push(doc! { "$set": { "t.line": { "$cond": [granted, "$t.line", without] } } });
    }
    pipeline.push(doc! { "$set": { "t.count": count("$t.line") } });
    pipeline.extend(grant(Some(&asks), asking.floor));
    pipeline.push(doc! { "$unset": "answer" });
    pipeline.extend(finish(asking.retention_ms));
    pipeline
}
