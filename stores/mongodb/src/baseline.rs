//! The bare driver, for benchmarks: one upsert to acquire and one delete to release, both journaled by a majority.

use std::sync::Arc;

use async_trait::async_trait;
use distlock_core::Result;
use distlock_core::store::Baseline;
use mongodb::Collection;
use mongodb::bson::{Document, doc};
use mongodb::options::WriteConcern;

use crate::commands::Namespace;
use crate::error;
use crate::state::StoreState;

const EXPIRY_MS: i64 = 30_000;

/// The commands of clients by the server's names, those of change streams included. Heartbeats of drivers and members do
/// not count.
const REQUESTS: [&str; 8] =
    ["findAndModify", "update", "delete", "insert", "find", "aggregate", "getMore", "killCursors"];

pub(crate) struct BaselineDriver {
    state: Arc<StoreState>,
    collection: Collection<Document>,
}

/// The baseline has a collection of its own, dropped at the end.
pub(crate) fn open(state: &Arc<StoreState>) -> Box<dyn Baseline> {
    let name = format!("{}.bench_{:08x}", state.commands.collection(Namespace::Locks), fastrand::u32(..));
    let collection = state.commands.database().collection(&name);
    Box::new(BaselineDriver { state: Arc::clone(state), collection })
}

fn majority() -> WriteConcern {
    let mut concern = WriteConcern::majority();
    concern.journal = Some(true);
    concern
}

#[async_trait]
impl Baseline for BaselineDriver {
    async fn cycle(&self, name: &str) -> Result<()> {
        let id = format!("{:016x}", fastrand::u64(..));
        let free = doc! { "_id": name, "expiresAt": { "$lte": mongodb::bson::DateTime::now() } };
        let lasts = mongodb::bson::DateTime::from_millis(
            mongodb::bson::DateTime::now().timestamp_millis() + EXPIRY_MS,
        );
        let hold = doc! { "$set": { "lockId": &id, "expiresAt": lasts }, "$inc": { "fencingToken": 1_i64 } };
        self.collection
            .find_one_and_update(free, hold)
            .upsert(true)
            .write_concern(majority())
            .await
            .map_err(|error| error::from_driver(&error))?;
        self.collection
            .delete_one(doc! { "_id": name, "lockId": &id })
            .write_concern(majority())
            .await
            .map_err(|error| error::from_driver(&error))?;
        Ok(())
    }

    async fn server_requests(&self) -> Result<Option<u64>> {
        let ask = doc! { "serverStatus": 1, "wiredTiger": 0, "locks": 0, "repl": 0 };
        let status = self.state.commands.run_on("admin", ask, None).await?;
        let Ok(commands) =
            status.get_document("metrics").and_then(|metrics| metrics.get_document("commands"))
        else {
            return Ok(None);
        };
        let total = |name: &&str| {
            let count = commands.get_document(*name).ok()?.get("total").and_then(error::number)?;
            u64::try_from(count).ok()
        };
        Ok(Some(REQUESTS.iter().filter_map(total).sum()))
    }

    async fn clean_up(&self, prefix: &str) -> Result<()> {
        self.collection.drop().await.map_err(|error| error::from_driver(&error))?;
        let database = self.state.commands.database();
        // In the queue collection ids begin with the kind.
        let kinds = ["mutex:", "rwlock:", "semaphore:", "turn:"];
        let locks = [(Namespace::Locks, "")].into_iter();
        for (namespace, kind) in locks.chain(kinds.map(|kind| (Namespace::Queues, kind))) {
            let first = format!("{kind}{prefix}");
            let past = format!("{first}\u{10ffff}");
            database
                .collection::<Document>(self.state.commands.collection(namespace))
                .delete_many(doc! { "_id": { "$gte": first, "$lt": past } })
                .await
                .map_err(|error| error::from_driver(&error))?;
        }
        Ok(())
    }
}
