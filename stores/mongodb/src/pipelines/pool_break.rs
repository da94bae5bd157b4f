//! Forced release of a pool: all its holders are removed and told so, and the queue head is granted.

use mongodb::bson::{Bson, Document, doc};

use super::pool_document::{GrantTerms, finish, grant, grantable, purge};
use super::{stamped, wake_field};

pub(crate) fn pool_break(terms: GrantTerms) -> Vec<Document> {
    let has_address = doc! { "$gt": ["$$this", ""] };
    let broken = doc! { "$map": {
        "input": { "$filter": { "input": "$t.broken", "cond": has_address } },
        "in": stamped("$$this", " B "),
    } };
    let granted = doc! { "$cond": [{ "$eq": [{ "$type": "$wake" }, "string"] }, ["$wake"], []] };
    let mut pipeline = vec![
        purge(),
        doc! { "$set": { "t": { "queue": "$queue", "broken": "$holders.call" } } },
        doc! { "$set": { "holders": Bson::Array(Vec::new()) } },
        doc! { "$set": { "t.count": grantable("$queue", "$capacity") } },
    ];
    pipeline.extend(grant(None, terms));
    pipeline.push(doc! { "$set": { "wake": wake_field(doc! { "$concatArrays": [broken, granted] }) } });
    pipeline.push(doc! { "$unset": "answer" });
    pipeline.extend(finish(terms));
    pipeline
}
