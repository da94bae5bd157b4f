//! distributed-lock 0.2 on MongoDB.

use std::time::Duration;

use distributed_lock_core::traits::{DistributedLock, LockHandle};
use distributed_lock_mongo::{MongoDistributedLock, MongoDistributedLockOptions};
use mongodb::{Client, Database};

use crate::scenarios::Peer;

pub struct Mongo {
    database: Database,
    options: Option<MongoDistributedLockOptions>,
}

impl Peer for Mongo {
    type Held = <MongoDistributedLock as DistributedLock>::Handle;
    const RENEWS: bool = true;

    async fn connect(url: &str, expiry: Option<Duration>) -> Result<Self, String> {
        let client = Client::with_uri_str(url).await.map_err(|error| error.to_string())?;
        let options = expiry.map(|expiry| MongoDistributedLockOptions {
            expiry,
            extension_cadence: expiry / 3,
            ..MongoDistributedLockOptions::default()
        });
        Ok(Mongo { database: client.database("distlock"), options })
    }

    async fn acquire(&self, name: &str) -> Result<Self::Held, String> {
        let lock =
            MongoDistributedLock::new(name.to_owned(), self.database.clone(), None, self.options.clone());
        lock.acquire(Some(Duration::from_secs(60))).await.map_err(|error| error.to_string())
    }

    async fn release(&self, held: Self::Held) -> Result<(), String> {
        held.release().await.map_err(|error| error.to_string())
    }
}
