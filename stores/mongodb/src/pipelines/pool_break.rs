//! Forced release of a pool: all its holders are gone and told so, and the queue head is granted.

use mongodb::bson::{Bson, Document, doc};

use super::pool::{finish, grant, how_many, purge};
use super::{messages, stamped};

pub(crate) fn pool_break(floor: i64, retention_ms: i64) -> Vec<Document> {
    let has_address = doc! { "$gt": ["$$this", ""] };
    let broken = doc! { "$map": {
        "input": { "$filter": { "input": "$t.broken", "cond": has_address } },
        "in": stamped("$$this", " B "),
    } };
    let granted = doc! { "$cond": [{ "$eq": [{ "$type": "$wake" }, "string"] }, ["$wake"], []] };
    let mut pipeline = vec![
        purge(),
        doc! { "$set": { "t": { "line": "$queue", "broken": "$holders.call" } } },
        doc! { "$set": { "holders": Bson::Array(Vec::new()) } },
        doc! { "$set": { "t.count": how_many("$queue", "$capacity") } },
    ];
    pipeline.extend(grant(None, floor));
    pipeline.push(doc! { "$set": { "wake": messages(doc! { "$concatArrays": [broken, granted] }) } });
    pipeline.push(doc! { "$unset": "answer" });
    pipeline.extend(finish(retention_ms));
    pipeline
}
