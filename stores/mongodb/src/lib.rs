//! The MongoDB store of distlock: mutexes, reader-writer locks and semaphores on MongoDB 4.2 and later, standalone,
//! replica set or sharded.
//!
//! A mutex is one document in the collection `distributed.locks`, in a format that programs in other languages use
//! too, and they share the lock with us: `_id` (the name), `lockId`, `acquiredAt`, `expiresAt`, `fencingToken`.
//! Reader-writer locks, semaphores and those who wait for a mutex are in a second collection, with `.queues` behind
//! its name. Every verb is one atomic step on one document, decided by the server's clock, and every grant is on the
//! disks of a majority before it is returned.
//!
//! On a replica set a change stream, filtered to what concerns this process and open only while somebody waits, tells
//! waiters of their turn. A standalone server has no change streams: there they ask again and again.
//!
//! ```no_run
//! # async fn example() -> distlock_core::Result<()> {
//! use distlock_core::Locks;
//! use distlock_core::store::Backend;
//! use distlock_mongodb::{MongoOptions, MongoStore};
//!
//! let store = MongoStore::connect("mongodb://localhost/app", &MongoOptions::new()).await?;
//! let locks = Locks::new(Backend::lease(store))?;
//! let guard = locks.semaphore("gpu", 4).acquire().await?;
//! guard.release().await?;
//! # Ok(()) }
//! ```

#[cfg(feature = "bench")]
mod baseline;
mod batch;
mod config;
mod core;
mod doctor;
mod failure;
mod floor;
mod index;
mod inspect;
mod known;
mod lock;
mod message;
mod pipelines;
mod pool;
mod record;
mod seen;
mod store;
mod topology;
mod url;
mod wakes;
mod wire;

pub use config::{DEFAULT_COLLECTION, DEFAULT_DATABASE, DEFAULT_RETENTION, MongoOptions};
pub use store::MongoStore;

use config::Target;
use distlock_core::Result;
use distlock_core::store::{Backend, Driver, StoreUrl};

/// `mongodb://` and `mongodb+srv://`.
pub static DRIVER: Driver = driver();

const fn driver() -> Driver {
    let driver = Driver::new(&["mongodb", "mongodb+srv"], "mongodb://host:27017/database", |url| {
        Box::pin(async move { Ok(Backend::lease(open(url).await?)) })
    })
    .with_schema(|url| Ok(index::script(&Target::from_url(url.clone())?.names)));
    #[cfg(feature = "bench")]
    let driver = driver.with_baseline(|url| Box::pin(async move { Ok(Some(open(url).await?.baseline())) }));
    driver
}

async fn open(url: StoreUrl) -> Result<MongoStore> {
    let target = Target::from_url(url)?;
    let place = target.place();
    MongoStore::open(target).await.map_err(|error| error.on(place))
}
