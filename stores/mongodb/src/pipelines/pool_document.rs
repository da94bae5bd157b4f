//! The document of a pool: `capacity`, the last `token`, `holders` with their weights, and the `queue`, first come, first
//! served. The stages that several pipelines share.
//!
//! `wake` holds the messages of the last update and of no other, one per line; the change stream shows them to the
//! processes they are addressed to. `t` holds the intermediate values of a pipeline; its last stage removes it.

use mongodb::bson::{Bson, Document, doc};

use super::{date_of_token, from_now, is_countable, live, next_token, slice_from};

/// What every pipeline on a pool is bound to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GrantTerms {
    /// How long a grant to the queue head lasts at most, unless it is renewed.
    pub(crate) window_ms: i64,
    /// No token below this.
    pub(crate) lowest_token: i64,
    pub(crate) retention_ms: i64,
}

/// Drops expired holders and waiters.
pub(super) fn purge() -> Document {
    doc! { "$set": {
        "holders": live("$holders"),
        "queue": live("$queue"),
        "token": { "$ifNull": ["$token", 0_i64] },
    } }
}

/// How many entries of a queue can be granted, strictly in order: a light claim never overtakes a heavy one, or readers
/// would starve a writer.
pub(super) fn grantable(queue: &str, capacity: impl Into<Bson>) -> Document {
    let free = doc! { "$subtract": [capacity.into(), { "$sum": "$holders.weight" }] };
    let fits = doc! { "$and": ["$$value.open", { "$lte": ["$$this.weight", "$$value.left"] }] };
    doc! { "$let": {
        "vars": { "end": { "$reduce": {
            "input": queue,
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

/// The claim that the pipeline answers: it is granted its whole expiry, and its reply tells it, not a message.
#[derive(Clone, Debug)]
pub(super) struct Claimant {
    pub(super) lock_id: Document,
    pub(super) expiry_ms: i64,
}

/// Grants to the first `t.count` entries of `t.queue`; the rest becomes the queue. Grants to none if the token cannot be
/// counted on; the claimant is told.
pub(super) fn grant(claimant: Option<&Claimant>, terms: GrantTerms) -> Vec<Document> {
    let is_claimant = |entry: &str| match claimant {
        Some(claimant) => doc! { "$eq": [format!("{entry}.lockId"), claimant.lock_id.clone()] },
        None => doc! { "$eq": [true, false] },
    };
    let window = doc! { "$min": ["$$entry.expiry", terms.window_ms] };
    let expiry_ms = claimant.map_or(0, |claimant| claimant.expiry_ms);
    let lasts = doc! { "$cond": [is_claimant("$$entry"), expiry_ms, window.clone()] };
    let entry = doc! { "entry": { "$arrayElemAt": ["$t.queue", "$$this"] } };
    // The waiter counts the window from the decision on its newest attempt. In a stalled command `$$NOW` is earlier.
    let granted_at = doc! { "$max": ["$$NOW", "$$entry.decidedAt"] };
    let granted = doc! { "$map": { "input": { "$range": [0, "$t.count"] }, "in": { "$let": {
        "vars": entry.clone(),
        "in": {
            "lockId": "$$entry.lockId",
            "call": "$$entry.call",
            "weight": "$$entry.weight",
            "token": { "$add": ["$t.first", "$$this"] },
            "acquiredAt": granted_at.clone(),
            "expiresAt": { "$add": [granted_at.clone(), lasts] },
        },
    } } } };
    let after = doc! { "$subtract": [granted_at, "$$entry.decidedAt"] };
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
            "in": { "$cond": [is_claimant("$$entry"), "$$value", message] },
        } },
    } };
    vec![
        doc! { "$set": {
            "t.count": { "$cond": [is_countable("$token"), "$t.count", 0] },
            "t.first": { "$cond": [is_countable("$token"), next_token("$token", terms.lowest_token), 0_i64] },
        } },
        doc! { "$set": {
            "holders": { "$concatArrays": ["$holders", granted] },
            "queue": slice_from("$t.queue", "$t.count"),
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

/// The last stages: when the document may be purged. Not while it is in use, and not while its token is ahead of the clock.
pub(super) fn finish(terms: GrantTerms) -> Vec<Document> {
    let last_use = doc! { "$max": [
        from_now(0),
        date_of_token("$token"),
        { "$max": "$holders.expiresAt" },
        { "$max": "$queue.expiresAt" },
    ] };
    vec![doc! { "$set": { "purgeAt": { "$add": [last_use, terms.retention_ms] } } }, doc! { "$unset": "t" }]
}
