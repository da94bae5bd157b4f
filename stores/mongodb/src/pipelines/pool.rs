//! The document of a pool: `capacity`, the last `token`, `holders` with their weights, and the `queue`, first come,
//! first served. What several steps on it have in common.
//!
//! `wake` holds the messages of the last step and of no other, one a line: the change stream tells them to those they
//! are for. `t` is where a step keeps what it works out; it is gone at the end.

use mongodb::bson::{Bson, Document, doc};

use super::{from_place, in_ms, is_countable, live, moment_of, next_token};

/// A grant to the head of the queue lasts so long at most, unless it is extended.
pub(super) const WINDOW_MS: i64 = distlock_core::store::GRANT_WINDOW.as_millis() as i64;

/// Whoever is past its time is gone, as holder and as waiter.
pub(super) fn purge() -> Document {
    doc! { "$set": {
        "holders": live("$holders"),
        "queue": live("$queue"),
        "token": { "$ifNull": ["$token", 0_i64] },
    } }
}

/// How many of a line can be granted, strictly in order: a light claim never passes a heavy one, or readers would
/// starve a writer.
pub(super) fn how_many(line: &str, capacity: impl Into<Bson>) -> Document {
    let free = doc! { "$subtract": [capacity.into(), { "$sum": "$holders.weight" }] };
    let fits = doc! { "$and": ["$$value.open", { "$lte": ["$$this.weight", "$$value.left"] }] };
    doc! { "$let": {
        "vars": { "end": { "$reduce": {
            "input": line,
            "initialValue": { "count": 0, "left": free, "open": true },
            "in": { "$cond": [
                fits,
                {
                    "count": { "$add": ["$$value.count", 1] },
                    "left": { "$subtract": ["$$value.left", "$$this.weight"] },
                    "open": true,
                },
                { "count": "$$value.count", "left": "$$value.left", "open": false },
            ] },
        } } },
        "in": "$$end.count",
    } }
}

/// The one who asks just now: it gets its whole expiry, and the answer tells it.
#[derive(Clone, Debug)]
pub(super) struct Asks {
    pub(super) lock_id: Document,
    pub(super) expiry_ms: i64,
}

/// Grants to the first `t.count` of `t.line`; the rest is the queue. To none of them if the token cannot be counted on:
/// whoever asks is told.
pub(super) fn grant(asks: Option<&Asks>, floor: i64) -> Vec<Document> {
    let is_asking = |entry: &str| match asks {
        Some(asks) => doc! { "$eq": [format!("{entry}.lockId"), asks.lock_id.clone()] },
        None => doc! { "$eq": [true, false] },
    };
    let window = doc! { "$min": ["$$entry.expiry", WINDOW_MS] };
    let lasts =
        doc! { "$cond": [is_asking("$$entry"), asks.map_or(0, |asks| asks.expiry_ms), window.clone()] };
    let entry = doc! { "entry": { "$arrayElemAt": ["$t.line", "$$this"] } };
    // The waiter counts the window from the decision on its newest attempt. If this step was stalled, `$$NOW` is earlier.
    let moment = doc! { "$max": ["$$NOW", "$$entry.decidedAt"] };
    let granted = doc! { "$map": { "input": { "$range": [0, "$t.count"] }, "in": { "$let": {
        "vars": entry.clone(),
        "in": {
            "lockId": "$$entry.lockId",
            "call": "$$entry.call",
            "weight": "$$entry.weight",
            "token": { "$add": ["$t.first", "$$this"] },
            "acquiredAt": moment.clone(),
            "expiresAt": { "$add": [moment.clone(), lasts] },
        },
    } } } };
    let after = doc! { "$subtract": [moment, "$$entry.decidedAt"] };
    let message = doc! { "$concat": [
        "$$value",
        { "$cond": [{ "$eq": ["$$value", ""] }, "", "\n"] },
        "$$entry.call",
        " G ",
        { "$toString": { "$add": ["$t.first", "$$this"] } },
        " ",
        { "$toString": after },
        " ",
        { "$toString": { "$toLong": window } },
        " ",
        { "$toString": { "$ifNull": ["$$entry.attempt", 0_i64] } },
    ] };
    let messages = doc! { "$reduce": {
        "input": { "$range": [0, "$t.count"] },
        "initialValue": "",
        "in": { "$let": {
            "vars": entry,
            "in": { "$cond": [is_asking("$$entry"), "$$value", message] },
        } },
    } };
    vec![
        doc! { "$set": {
            "t.count": { "$cond": [is_countable("$token"), "$t.count", 0] },
            "t.first": { "$cond": [is_countable("$token"), next_token("$token", floor), 0_i64] },
        } },
        doc! { "$set": {
            "holders": { "$concatArrays": ["$holders", granted] },
            "queue": from_place("$t.line", "$t.count"),
            "token": { "$cond": [
                { "$gt": ["$t.count", 0] },
                { "$add": ["$t.first", { "$subtract": ["$t.count", 1] }] },
                "$token",
            ] },
            "wake": { "$let": {
                "vars": { "messages": messages },
                "in": { "$cond": [{ "$eq": ["$$messages", ""] }, "$$REMOVE", "$$messages"] },
            } },
        } },
    ]
}

/// The end of every step: when the document may be forgotten. Not while it is of use, and not while its token is
/// ahead of the clock.
pub(super) fn finish(retention_ms: i64) -> Vec<Document> {
    let last_use = doc! { "$max": [
        in_ms(0),
        moment_of("$token"),
        { "$max": "$holders.expiresAt" },
        { "$max": "$queue.expiresAt" },
    ] };
    vec![doc! { "$set": { "purgeAt": { "$add": [last_use, retention_ms] } } }, doc! { "$unset": "t" }]
}
