//! The bare driver, for benchmarks: one upsert to acquire and one delete to release, both journaled by a majority.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use distlock_core::bench::{BareNotification, Baseline};
use distlock_core::store::StoreUrl;
use distlock_core::{Error, ErrorKind, Kind, Result};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use mongodb::Collection;
use mongodb::bson::{DateTime, Document, doc};
use mongodb::change_stream::ChangeStream;
use mongodb::change_stream::event::ChangeStreamEvent;
use mongodb::options::WriteConcern;

use crate::commands::Namespace;
use crate::config::MongoConfig;
use crate::error;
use crate::pool::document_id;
use crate::state::StoreState;
use crate::store::MongoStore;

const EXPIRY_MS: i64 = 30_000;

/// The commands of clients by the server's names, those of change streams included. Heartbeats of drivers and members do
/// not count.
const REQUESTS: [&str; 8] =
    ["findAndModify", "update", "delete", "insert", "find", "aggregate", "getMore", "killCursors"];

struct BareDriver {
    state: Arc<StoreState>,
    collection: Collection<Document>,
    url: StoreUrl,
}

/// Connects. The bare cycles have a collection of their own, dropped at the end.
pub(crate) async fn connect(url: StoreUrl) -> Result<Option<Box<dyn Baseline>>> {
    let store = MongoStore::connect(MongoConfig::from_url(&url)?).await?;
    let state = Arc::clone(store.state());
    let name = format!("{}.bench_{:08x}", state.commands.collection(Namespace::Locks), fastrand::u32(..));
    let collection = state.commands.database().collection(&name);
    Ok(Some(Box::new(BareDriver { state, collection, url })))
}

fn majority() -> WriteConcern {
    let mut concern = WriteConcern::majority();
    concern.journal = Some(true);
    concern
}

/// A document that is updated with a majority, and a change stream of another client.
struct UpdateNotification {
    collection: Collection<Document>,
    stream: Arc<tokio::sync::Mutex<ChangeStream<ChangeStreamEvent<Document>>>>,
    name: String,
}

#[async_trait]
impl BareNotification for UpdateNotification {
    async fn receive(&mut self) -> Result<BoxFuture<'static, Result<Instant>>> {
        let stream = Arc::clone(&self.stream);
        Ok(Box::pin(async move {
            match stream.lock().await.next().await {
                Some(Ok(_)) => Ok(Instant::now()),
                Some(Err(error)) => Err(error::from_driver(&error)),
                None => Err(error::task_ended("the change stream of the baseline")),
            }
        }))
    }

    async fn send(&mut self) -> Result<()> {
        let sent = self
            .collection
            .update_one(doc! { "_id": &self.name }, doc! { "$inc": { "fencingToken": 1_i64 } })
            .upsert(true)
            .write_concern(majority());
        sent.await.map(drop).map_err(|error| error::from_driver(&error))
    }
}

#[async_trait]
impl Baseline for BareDriver {
    async fn cycle(&self, name: &str) -> Result<()> {
        let id = format!("{:016x}", fastrand::u64(..));
        let free = doc! { "_id": name, "expiresAt": { "$lte": DateTime::now() } };
        let expires_at = DateTime::from_millis(DateTime::now().timestamp_millis() + EXPIRY_MS);
        let hold =
            doc! { "$set": { "lockId": &id, "expiresAt": expires_at }, "$inc": { "fencingToken": 1_i64 } };
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
        let command = doc! { "serverStatus": 1, "wiredTiger": 0, "locks": 0, "repl": 0 };
        let status = self.state.commands.run_on("admin", command, None).await?;
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

    async fn notifications(&self, name: &str) -> Result<Option<Box<dyn BareNotification>>> {
        if !self.state.topology.has_change_streams() {
            return Ok(None);
        }
        let receiver = MongoStore::connect(MongoConfig::from_url(&self.url)?).await?;
        let database = receiver.state().commands.database().clone();
        let watched = database.collection::<Document>(self.collection.name());
        let stream = watched.watch().await.map_err(|error| error::from_driver(&error))?;
        Ok(Some(Box::new(UpdateNotification {
            collection: self.collection.clone(),
            stream: Arc::new(tokio::sync::Mutex::new(stream)),
            name: name.to_owned(),
        })))
    }

    async fn clean_up(&self, prefix: &str) -> Result<()> {
        if prefix.is_empty() {
            return Err(Error::new(ErrorKind::InvalidInput, "an empty prefix would remove every lock")
                .advise("use the prefix of the benchmark's names"));
        }
        self.collection.drop().await.map_err(|error| error::from_driver(&error))?;
        let kinds = [Kind::Mutex, Kind::RwLock, Kind::Semaphore, Kind::FairQueue];
        let queues = kinds.map(|kind| (Namespace::Queues, document_id(kind, prefix)));
        for (namespace, first) in [(Namespace::Locks, prefix.to_owned())].into_iter().chain(queues) {
            let past = format!("{first}\u{10ffff}");
            let database = self.state.commands.database();
            database
                .collection::<Document>(self.state.commands.collection(namespace))
                .delete_many(doc! { "_id": { "$gte": first, "$lt": past } })
                .await
                .map_err(|error| error::from_driver(&error))?;
        }
        Ok(())
    }
}
