//! Forced release of a pool: all its holders are gone, and whoever is next is granted.

use mongodb::bson::{Bson, Document, doc};

use super::pool::{finish, grant, how_many, purge};

pub(crate) fn pool_break(floor: i64, retention_ms: i64) -> Vec<Document> {
    let mut pipeline = vec![
        purge(),
        doc! { "$set": { "holders": Bson::Array(Vec::new()) } },
        doc! { "$set": { "t": { "line": "$queue", "count": how_many("$queue", "$capacity") } } },
    ];
    pipeline.extend(grant(None, floor));
    pipeline.push(doc! { "$unset": "answer" });
    pipeline.extend(finish(retention_ms));
    pipeline
}
