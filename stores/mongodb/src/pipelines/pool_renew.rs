//! Renewing a part of a pool that our lock id holds, and granting to the queue head if another holder has expired.

use mongodb::bson::{Document, doc};

use super::pool_document::{GrantTerms, finish, grant, grantable, purge};
use super::{literal, renewed_until};

/// The document and the holder's entry keep the larger token.
pub(crate) fn pool_renew(lock_id: &str, expiry_ms: i64, token: i64, terms: GrantTerms) -> Vec<Document> {
    let is_ours = doc! { "$eq": ["$$this.lockId", literal(lock_id)] };
    let mut pipeline = vec![
        purge(),
        doc! { "$set": {
            "token": { "$cond": [
                { "$in": [literal(lock_id), "$holders.lockId"] },
                { "$max": ["$token", token] },
                "$token",
            ] },
            "holders": { "$map": { "input": "$holders", "in": { "$cond": [
                is_ours,
                { "$mergeObjects": ["$$this", {
                    "expiresAt": renewed_until("$$this.expiresAt", expiry_ms),
                    "token": { "$max": ["$$this.token", token] },
                }] },
                "$$this",
            ] } } },
        } },
        doc! { "$set": { "t": { "queue": "$queue", "count": grantable("$queue", "$capacity") } } },
    ];
    pipeline.extend(grant(None, terms));
    pipeline.push(doc! { "$unset": "answer" });
    pipeline.extend(finish(terms));
    pipeline
}
