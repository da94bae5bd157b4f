//! The indexes: they delete what nobody needs any more, and nothing depends on them.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use distlock_core::{ErrorKind, Result};
use mongodb::bson::{Bson, Document, doc};

use crate::config::Names;
use crate::core::Core;

/// Deletes documents whose holder died, as other programs expect it.
pub(crate) const EXPIRED: &str = "expiresAt_ttl";
/// Deletes what is left of released names, once the clock alone gives higher tokens.
pub(crate) const RELEASED: &str = "released_ttl";
/// Deletes pools and lines that nobody used for long.
pub(crate) const UNUSED: &str = "purgeAt_ttl";

/// Which of our indexes belong to a collection.
pub(crate) fn wanted(names: &Names) -> [(String, Vec<Document>); 2] {
    let retention = i64::try_from(names.retention.as_secs().max(1)).unwrap_or(i64::MAX);
    [
        (
            names.locks.clone(),
            vec![
                doc! { "key": { "expiresAt": 1 }, "name": EXPIRED, "expireAfterSeconds": 0 },
                doc! {
                    "key": { "acquiredAt": 1 },
                    "name": RELEASED,
                    "expireAfterSeconds": retention,
                    "partialFilterExpression": { "lockId": "" },
                },
            ],
        ),
        (
            names.queues.clone(),
            vec![doc! { "key": { "purgeAt": 1 }, "name": UNUSED, "expireAfterSeconds": 0 }],
        ),
    ]
}

/// Creates the indexes in the background, once for each process and collection.
pub(crate) fn ensure(core: &Arc<Core>, place: &str) {
    static BEGUN: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Mutex::default);
    let begun = || BEGUN.lock().unwrap_or_else(PoisonError::into_inner);
    // Read before it is written: this is on the way of every acquisition.
    if core.indexed.load(Ordering::Relaxed)
        || core.indexed.swap(true, Ordering::Relaxed)
        || !begun().insert(place.to_owned())
    {
        return;
    }
    let (core, place) = (Arc::clone(core), place.to_owned());
    tokio::spawn(async move {
        if let Err(error) = create(&core).await {
            if error.can_retry() {
                // The server was away. Somebody who comes later may have more luck.
                tokio::time::sleep(Duration::from_secs(10)).await;
                begun().remove(&place);
                core.indexed.store(false, Ordering::Relaxed);
            } else if error.kind() == ErrorKind::Denied {
                tracing::info!(%error, "indexes that tidy up cannot be created; see `distlock schema`");
            } else {
                tracing::warn!(%error, "indexes that tidy up are not as they should be; see `distlock doctor`");
            }
        }
    });
}

async fn create(core: &Core) -> Result<()> {
    let mut first_error = Ok(());
    for (collection, indexes) in wanted(core.wire.names()) {
        // One by one: an index that somebody else made differently must not keep the others from being made.
        for index in indexes {
            let created = core
                .wire
                .run(doc! {
                    "createIndexes": &collection,
                    "indexes": [index],
                    "writeConcern": { "w": "majority", "wtimeout": 10_000 },
                })
                .await;
            first_error = first_error.and(created.map(drop));
        }
    }
    first_error
}

/// The commands for people who may not create indexes from an application, for `mongosh`.
pub(crate) fn script(names: &Names) -> String {
    let mut text = String::from(
        "// Run this in mongosh. The indexes delete what nobody needs any more; locks work without them.\n",
    );
    text.push_str(&format!("const locks = db.getSiblingDB({});\n", quoted(&names.database)));
    for (collection, indexes) in wanted(names) {
        for index in indexes {
            let mut options = index.clone();
            let key = options.remove("key").unwrap_or(Bson::Null);
            text.push_str(&format!(
                "locks.getCollection({}).createIndex({}, {});\n",
                quoted(&collection),
                key.into_relaxed_text(),
                Bson::Document(options).into_relaxed_text(),
            ));
        }
    }
    text
}

fn quoted(text: &str) -> String {
    // Names were checked: no quotes, no control characters but what debug escapes the same way.
    format!("{text:?}")
}

trait RelaxedText {
    fn into_relaxed_text(self) -> String;
}

impl RelaxedText for Bson {
    /// Numbers, strings and documents as mongosh reads them.
    fn into_relaxed_text(self) -> String {
        match self {
            Bson::Document(document) => {
                let pairs: Vec<String> = document
                    .into_iter()
                    .map(|(key, value)| format!("{key}: {}", value.into_relaxed_text()))
                    .collect();
                format!("{{ {} }}", pairs.join(", "))
            }
            Bson::String(text) => quoted(&text),
            other => other.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MongoOptions;

    #[test]
    fn the_script_creates_every_index_under_its_name() {
        let names = MongoOptions::new().names(Some("app")).unwrap();
        let script = script(&names);
        assert!(script.contains(
            r#"locks.getCollection("distributed.locks").createIndex({ expiresAt: 1 }, { name: "expiresAt_ttl", expireAfterSeconds: 0 });"#
        ), "{script}");
        for expected in [
            r#"partialFilterExpression: { lockId: "" }"#,
            r#"getSiblingDB("app")"#,
            r#"getCollection("distributed.locks.queues")"#,
            UNUSED,
            "expireAfterSeconds: 3600",
        ] {
            assert!(script.contains(expected), "{expected} is missing in\n{script}");
        }
    }
}
