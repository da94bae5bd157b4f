//! The TTL indexes: they purge documents that are no longer needed. No lock depends on them.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use distlock_core::{ErrorKind, Result};
use mongodb::bson::{Bson, Document, doc};

use crate::config::Names;
use crate::state::StoreState;

/// Deletes the documents of holders that died, as other programs expect it.
pub(crate) const EXPIRED: &str = "expiresAt_ttl";
/// Deletes tombstones once the clock alone yields higher tokens.
pub(crate) const RELEASED: &str = "released_ttl";
/// Deletes pools and wait queues that were not used for the retention.
pub(crate) const UNUSED: &str = "purgeAt_ttl";

/// Our indexes, by collection.
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

/// Creates the indexes in the background, once per process and collection.
pub(crate) fn ensure(state: &Arc<StoreState>, location: &str) {
    static STARTED: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Mutex::default);
    let started = || STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    // A load before the swap: this runs on every acquisition.
    if state.indexes_started.load(Ordering::Relaxed)
        || state.indexes_started.swap(true, Ordering::Relaxed)
        || !started().insert(location.to_owned())
    {
        return;
    }
    let (state, location) = (Arc::clone(state), location.to_owned());
    tokio::spawn(async move {
        if let Err(error) = create(&state).await {
            if error.can_retry() {
                // The server was unreachable. A later acquisition tries again.
                tokio::time::sleep(Duration::from_secs(10)).await;
                started().remove(&location);
                state.indexes_started.store(false, Ordering::Relaxed);
            } else if error.kind() == ErrorKind::Denied {
                tracing::info!(%error, "indexes that purge old documents cannot be created; see `distlock schema`");
            } else {
                tracing::warn!(%error, "indexes that purge old documents differ from ours; see `distlock doctor`");
            }
        }
    });
}

async fn create(state: &StoreState) -> Result<()> {
    let mut first_error = Ok(());
    for (collection, indexes) in wanted(state.commands.names()) {
        // One by one: an index that exists with other options must not prevent the others.
        for index in indexes {
            let created = state
                .commands
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

/// The `mongosh` commands that create the indexes, for users whose application may not.
pub(crate) fn script(names: &Names) -> String {
    let mut text =
        String::from("// Run this in mongosh. The indexes purge old documents; locks work without them.\n");
    text.push_str(&format!("const locks = db.getSiblingDB({});\n", quoted(&names.database)));
    for (collection, indexes) in wanted(names) {
        for index in indexes {
            let mut options = index.clone();
            let key = options.remove("key").unwrap_or(Bson::Null);
            text.push_str(&format!(
                "locks.getCollection({}).createIndex({}, {});\n",
                quoted(&collection),
                key.into_mongosh(),
                Bson::Document(options).into_mongosh(),
            ));
        }
    }
    text
}

fn quoted(text: &str) -> String {
    // Names are checked: they contain no control characters, and debug escapes quotes as JavaScript does.
    format!("{text:?}")
}

trait MongoshSyntax {
    fn into_mongosh(self) -> String;
}

impl MongoshSyntax for Bson {
    /// Numbers, strings and documents in mongosh syntax.
    fn into_mongosh(self) -> String {
        match self {
            Bson::Document(document) => {
                let pairs: Vec<String> = document
                    .into_iter()
                    .map(|(key, value)| format!("{key}: {}", value.into_mongosh()))
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
    use crate::config::MongoConfig;

    #[test]
    fn the_script_creates_every_index_under_its_name() {
        let names = MongoConfig::default().names(Some("app")).unwrap();
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
