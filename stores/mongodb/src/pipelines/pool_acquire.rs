//! Claiming a part of a pool: granted if the live weights and ours fit the capacity and no waiter is before us.

use mongodb::bson::{Bson, Document, doc};

use super::pool_document::{Claimant, GrantTerms, finish, grant, grantable, purge};
use super::{from_now, literal, renewed_until};

/// One claim on a pool.
#[derive(Clone, Debug)]
pub(crate) struct PoolClaim<'a> {
    pub(crate) lock_id: &'a str,
    /// How messages to it begin.
    pub(crate) address: &'a str,
    pub(crate) weight: i64,
    pub(crate) capacity: i64,
    /// A pool in use gets this capacity.
    pub(crate) resizes: bool,
    pub(crate) expiry_ms: i64,
    /// How long the entry of a waiter lasts without another attempt. `None`: one attempt that leaves no entry.
    pub(crate) ttl_ms: Option<i64>,
    /// The number of this attempt of the lock id.
    pub(crate) attempt: i64,
    pub(crate) terms: GrantTerms,
}

/// A pool in use with another capacity is left as it is: two capacities at once would admit more than the smaller allows.
/// A claim that resizes sets it.
pub(crate) fn pool_acquire(claim: &PoolClaim<'_>) -> Vec<Document> {
    let claimant = Claimant { lock_id: literal(claim.lock_id), expiry_ms: claim.expiry_ms };
    let entry = doc! {
        "lockId": claimant.lock_id.clone(),
        "call": literal(claim.address),
        "weight": claim.weight,
        "expiry": claim.expiry_ms,
        "attempt": claim.attempt,
        "decidedAt": "$$NOW",
        "expiresAt": from_now(claim.ttl_ms.unwrap_or_default()),
    };
    let is_ours = doc! { "$eq": ["$$this.lockId", claimant.lock_id.clone()] };
    // An attempt that is applied after a later one of the same lock id leaves the entry unchanged.
    let is_older = doc! { "$and": [is_ours.clone(), { "$lte": ["$$this.attempt", claim.attempt] }] };
    let replaced = doc! { "$map": {
        "input": "$queue",
        "in": { "$cond": [is_older, entry.clone(), "$$this"] },
    } };
    let mut pipeline = vec![
        purge(),
        doc! { "$set": { "t": {
            "mismatch": { "$and": [
                { "$gt": [{ "$add": [{ "$size": "$holders" }, { "$size": "$queue" }] }, 0] },
                { "$ne": ["$capacity", claim.capacity] },
                !claim.resizes,
            ] },
            "holds": { "$in": [claimant.lock_id.clone(), "$holders.lockId"] },
            "waits": { "$in": [claimant.lock_id.clone(), "$queue.lockId"] },
        } } },
        doc! { "$set": {
            "capacity": { "$cond": ["$t.mismatch", "$capacity", claim.capacity] },
            "holders": { "$cond": [
                { "$and": ["$t.holds", { "$not": ["$t.mismatch"] }] },
                { "$map": { "input": "$holders", "in": { "$cond": [
                    is_ours.clone(),
                    { "$mergeObjects": ["$$this", { "expiresAt": renewed_until("$$this.expiresAt", claim.expiry_ms) }] },
                    "$$this",
                ] } } },
                "$holders",
            ] },
            "t.queue": { "$switch": {
                "branches": [
                    { "case": { "$or": ["$t.mismatch", "$t.holds"] }, "then": "$queue" },
                    { "case": "$t.waits", "then": replaced },
                ],
                "default": { "$concatArrays": ["$queue", [entry]] },
            } },
        } },
    ];
    let count = |queue: &str| doc! { "$cond": ["$t.mismatch", 0, grantable(queue, "$capacity")] };
    if claim.ttl_ms.is_none() {
        // Not granted now: the entry is removed again, and the entries behind it may fit.
        let index = doc! { "$indexOfArray": ["$t.queue.lockId", claimant.lock_id.clone()] };
        let granted = doc! { "$lt": [index, count("$t.queue")] };
        let without: Bson = doc! { "$filter": { "input": "$t.queue", "cond": { "$not": [is_ours] } } }.into();
        pipeline.push(doc! { "$set": { "t.queue": { "$cond": [granted, "$t.queue", without] } } });
    }
    pipeline.push(doc! { "$set": { "t.count": count("$t.queue") } });
    pipeline.extend(grant(Some(&claimant), claim.terms));
    pipeline.push(doc! { "$unset": "answer" });
    pipeline.extend(finish(claim.terms));
    pipeline
}
