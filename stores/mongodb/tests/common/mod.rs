//! What the tests share: servers, a database per test, access to the documents, and a foreign client of the same format.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod bare_store;
pub mod foreign_client;
pub mod log_capture;
pub mod restricted_users;

use std::future::Future;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use distlock_core::store::{Backend, Query, Record, StoreUrl};
use distlock_core::{Error, Locks, Options};
use distlock_mongodb::DRIVER;
use distlock_testkit::servers::{MongoReplicaSet, MongoServer};
use mongodb::bson::{Bson, Document, doc};
use mongodb::{Client, Database};

pub const MS: Duration = Duration::from_millis(1);
pub const SECOND: Duration = Duration::from_secs(1);
/// How long an expected event may take on a busy machine. It is shorter than the default expiry, so that a lock that is
/// only freed by its expiry is noticed.
pub const PATIENCE: Duration = Duration::from_secs(25);

/// A replica set of one member for the whole test program.
pub fn replica_set() -> &'static MongoReplicaSet {
    static SET: OnceLock<MongoReplicaSet> = OnceLock::new();
    SET.get_or_init(|| MongoReplicaSet::start(1))
}

/// A standalone server for the whole test program.
pub fn standalone() -> &'static MongoServer {
    static SERVER: OnceLock<MongoServer> = OnceLock::new();
    SERVER.get_or_init(MongoServer::start)
}

/// A database of its own for a test.
pub struct TestDatabase {
    pub url: String,
    name: String,
}

impl TestDatabase {
    pub fn on(url: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("t{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        TestDatabase { url: url.replace("/?", &format!("/{name}?")), name }
    }

    /// On a server whose clock the test sets. With `poll`: the driver's streaming monitor waits by the server's clock, and
    /// closes every connection once if that is set back.
    pub fn on_settable_clock(url: &str) -> Self {
        TestDatabase::on(&format!("{url}&serverMonitoringMode=poll"))
    }

    pub fn on_replica_set() -> Self {
        TestDatabase::on(&replica_set().url())
    }

    pub fn on_standalone() -> Self {
        TestDatabase::on(&standalone().url())
    }

    /// A new engine, like that of another process.
    pub async fn locks(&self) -> Locks {
        self.locks_with(Options::new()).await
    }

    /// The bare driver.
    pub async fn baseline(&self) -> Box<dyn distlock_core::bench::Baseline> {
        let url = distlock_core::store::StoreUrl::parse(&self.url).unwrap();
        distlock_mongodb::DRIVER.baseline(url).await.unwrap().expect("a driver to compare with")
    }

    pub async fn locks_with(&self, options: Options) -> Locks {
        Locks::builder(connect(&self.url).await.unwrap()).options(options).build().unwrap()
    }

    /// Direct access to the documents.
    pub async fn database(&self) -> Database {
        let url = self.url.split("&distlock.").next().unwrap();
        Client::with_uri_str(url).await.unwrap().database(&self.name)
    }

    /// The document of a mutex.
    pub async fn lock(&self, name: &str) -> Option<Document> {
        let locks = self.database().await.collection::<Document>("distributed.locks");
        locks.find_one(doc! { "_id": name }).await.unwrap()
    }
}

pub async fn connect(url: &str) -> Result<Backend, Error> {
    DRIVER.connect(StoreUrl::parse(url)?).await
}

/// Options with this expiry.
pub fn expiring(expiry: Duration) -> Options {
    Options::new().expiry(expiry).unwrap()
}

/// Polls until a condition is true.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let started = Instant::now();
    while !is_so().await {
        assert!(started.elapsed() < PATIENCE, "was not true within {PATIENCE:?}: {what}");
        tokio::time::sleep(5 * MS).await;
    }
}

/// Awaits an expected event.
pub async fn within<T>(what: &str, future: impl IntoFuture<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future.into_future()).await {
        Ok(output) => output,
        Err(_) => panic!("did not happen within {PATIENCE:?}: {what}"),
    }
}

pub async fn records(locks: &Locks, name: &str) -> Vec<Record> {
    locks.inspect(&Query::named(name)).await.unwrap()
}

/// Waits until a name has this many waiters.
pub async fn until_waiting(locks: &Locks, name: &str, count: usize) {
    let what = format!("{count} waiting for {name}");
    eventually(&what, || async { records(locks, name).await.iter().any(|r| r.waiters.len() >= count) }).await;
}

/// How many of these commands a server has executed.
pub async fn commands(database: &Database, names: &[&str]) -> i64 {
    let status = database.client().database("admin").run_command(doc! { "serverStatus": 1 }).await.unwrap();
    let commands = status.get_document("metrics").unwrap().get_document("commands").unwrap();
    let total = |name: &&str| match commands.get_document(*name).ok().and_then(|c| c.get("total")) {
        Some(Bson::Int64(n)) => *n,
        Some(Bson::Int32(n)) => i64::from(*n),
        _ => 0,
    };
    names.iter().map(total).sum()
}

async fn index_names(database: &Database, collection: &str) -> Vec<String> {
    database.collection::<Document>(collection).list_index_names().await.unwrap_or_default()
}

/// Waits until the indexes exist: creating them locks the collections.
pub async fn until_indexed(database: &Database) {
    eventually("the indexes are created in the background", || async {
        let locks = index_names(database, "distributed.locks").await;
        let queues = index_names(database, "distributed.locks.queues").await;
        locks.iter().any(|name| name == "expiresAt_ttl")
            && locks.iter().any(|name| name == "released_ttl")
            && queues.iter().any(|name| name == "purgeAt_ttl")
    })
    .await;
}
