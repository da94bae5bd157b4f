//! Extending a place in a pool, if it is still ours; and looking who can be granted, since others' time may be over.

use mongodb::bson::{Document, doc};

use super::pool::{finish, grant, how_many, purge};
use super::{extended, literal};

/// Keeps the larger token.
pub(crate) fn pool_renew(
    lock_id: &str,
    expiry_ms: i64,
    token: i64,
    floor: i64,
    retention_ms: i64,
) -> Vec<Document> {
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
                { "$mergeObjects": [
                    "$$this",
                    { "expiresAt": extended("$$this.expiresAt", expiry_ms), "token": { "$max": ["$$this.token", token] } },
                ] },
                "$$this",
            ] } } },
        } },
        doc! { "$set": { "t": { "line": "$queue", "count": how_many("$queue", "$capacity") } } },
    ];
    pipeline.extend(grant(None, floor));
    pipeline.push(doc! { "$unset": "answer" });
    pipeline.extend(finish(retention_ms));
    pipeline
}
