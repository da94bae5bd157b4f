//! The MongoDB store of distlock: mutexes, reader-writer locks and semaphores on MongoDB 4.2 and later, standalone,
//! replica set or sharded.
//!
//! A mutex is one document in the collection `distributed.locks`, in a format that programs in other languages share:
//! `_id` (the name), `lockId`, `acquiredAt`, `expiresAt`, `fencingToken`. Reader-writer locks, semaphores and the wait
//! queues of mutexes are in a second collection, with `.queues` appended to its name. Every verb is one atomic update of
//! one document, decided by the server's clock, and a majority has journaled every grant before it is returned.
//!
//! On a replica set a change stream wakes waiters. It is filtered to what concerns this process and open only while the
//! process has waiters. A standalone server has no change streams: waiters poll.
//!
//! ```no_run
//! # async fn example() -> distlock_core::Result<()> {
//! use distlock_core::Locks;
//! use distlock_core::store::{Backend, StoreUrl};
//! use distlock_mongodb::{MongoConfig, MongoStore};
//!
//! let url = StoreUrl::parse("mongodb://localhost/app")?;
//! let store = MongoStore::connect(MongoConfig::from_url(&url)?).await?;
//! let locks = Locks::new(Backend::lease(store))?;
//! let guard = locks.semaphore("gpu", 4).acquire().await?;
//! guard.release().await?;
//! # Ok(()) }
//! ```
//!
//! # TLS and bson
//! The driver does not compile without a crypto provider of rustls. The feature `tls-ring` (default) or `tls-aws-lc-rs` brings
//! one; an application that depends on the driver itself has one and needs neither. The store uses the bson that the driver
//! uses: version 3 if the application enables the driver's feature `bson-3`, and 2 otherwise.

#[cfg(feature = "bench")]
mod baseline;
mod batch;
mod change_stream;
mod commands;
mod config;
mod connect;
mod doctor;
mod document_cache;
mod documents;
mod error;
mod indexes;
mod inspect;
mod mutex;
mod pipelines;
mod pool;
mod raw_bson;
mod renewals;
mod server_clock;
mod state;
mod store;
mod topology;
mod update_outcome;
mod waiter_cache;
mod wake_messages;

pub use config::{DEFAULT_COLLECTION, DEFAULT_DATABASE, DEFAULT_RETENTION, MongoConfig};
pub use store::MongoStore;

use distlock_core::store::{Backend, Driver};

/// `mongodb://` and `mongodb+srv://`.
pub static DRIVER: Driver = driver();

const fn driver() -> Driver {
    let driver = Driver::new(&["mongodb", "mongodb+srv"], "mongodb://host:27017/database", |url| {
        Box::pin(async move { Ok(Backend::lease(MongoStore::connect(MongoConfig::from_url(&url)?).await?)) })
    })
    .with_options(config::URL_OPTIONS)
    .with_check(|url| MongoConfig::from_url(url).map(drop))
    .with_schema(|url| {
        let config = MongoConfig::from_url(url)?;
        Ok(indexes::script(&config.names(config.default_database())?))
    });
    #[cfg(feature = "bench")]
    let driver = driver.with_baseline(|url| Box::pin(baseline::connect(url)));
    driver
}
