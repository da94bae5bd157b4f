//! The driver alone, for benchmarks: one upsert to take the lock and one delete to give it back, both on the disks of a
//! majority.

use std::sync::Arc;

use async_trait::async_trait;
use distlock_core::Result;
use distlock_core::bench::Baseline;
use mongodb::Collection;
use mongodb::bson::{Document, doc};
use mongodb::options::WriteConcern;

use crate::core::Core;
use crate::failure;
use crate::wire::Place;

const EXPIRY_MS: i64 = 30_000;

/// What clients ask for, by the server's names: those that wait for news of a change stream too. Drivers' and members'
/// heartbeats are not requests of anybody.
const REQUESTS: [&str; 8] =
    ["findAndModify", "update", "delete", "insert", "find", "aggregate", "getMore", "killCursors"];

pub(crate) struct BaselineDriver {
    core: Arc<Core>,
    collection: Collection<Document>,
}

/// The bare round trips have a collection of their own, dropped at the end.
pub(crate) fn open(core: &Arc<Core>) -> Box<dyn Baseline> {
    let name = format!("{}.bench_{:08x}", core.wire.collection(Place::Locks), fastrand::u32(..));
    let collection = core.wire.database().collection(&name);
    Box::new(BaselineDriver { core: Arc::clone(core), collection })
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
            .map_err(|error| failure::from_driver(&error))?;
        self.collection
            .delete_one(doc! { "_id": name, "lockId": &id })
            .write_concern(majority())
            .await
            .map_err(|error| failure::from_driver(&error))?;
        Ok(())
    }

    async fn server_requests(&self) -> Result<Option<u64>> {
        let ask = doc! { "serverStatus": 1, "wiredTiger": 0, "locks": 0, "repl": 0 };
        let status = self.core.wire.ask("admin", ask, None).await?;
        let Ok(commands) =
            status.get_document("metrics").and_then(|metrics| metrics.get_document("commands"))
        else {
            return Ok(None);
        };
        let total = |name: &&str| {
            let count = commands.get_document(*name).ok()?.get("total").and_then(failure::number)?;
            u64::try_from(count).ok()
        };
        Ok(Some(REQUESTS.iter().filter_map(total).sum()))
    }

    async fn clean_up(&self, prefix: &str) -> Result<()> {
        self.collection.drop().await.map_err(|error| failure::from_driver(&error))?;
        let database = self.core.wire.database();
        // In the second collection the kind stands in front of the name.
        let kinds = ["mutex:", "rwlock:", "semaphore:", "turn:"];
        let locks = [(Place::Locks, "")].into_iter();
        for (place, kind) in locks.chain(kinds.map(|kind| (Place::Queues, kind))) {
            let first = format!("{kind}{prefix}");
            let past = format!("{first}\u{10ffff}");
            database
                .collection::<Document>(self.core.wire.collection(place))
                .delete_many(doc! { "_id": { "$gte": first, "$lt": past } })
                .await
                .map_err(|error| failure::from_driver(&error))?;
        }
        Ok(())
    }
}
