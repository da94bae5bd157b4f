//! Helpers of the tests.

use std::time::Duration;

use distlock_core::store::{Backend, Query, StoreUrl};
use distlock_core::{Guard, Kind, Locks, LossReason, Options};
use distlock_zookeeper::{DRIVER, ZookeeperConfig, ZookeeperStore};
use zookeeper_client::Client;

/// No test waits longer than this.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Locks with an engine and sessions of their own, like another process.
pub(crate) async fn locks(url: &str, expiry: Duration) -> Locks {
    let backend = DRIVER.connect(StoreUrl::parse(url).unwrap()).await.unwrap();
    locks_of(backend, expiry)
}

pub(crate) fn locks_of(backend: Backend, expiry: Duration) -> Locks {
    Locks::builder(backend).options(Options::new().expiry(expiry).unwrap()).build().unwrap()
}

pub(crate) async fn store(url: &str) -> ZookeeperStore {
    let config = ZookeeperConfig::from_url(&StoreUrl::parse(url).unwrap()).unwrap();
    ZookeeperStore::connect(config).await.unwrap()
}

/// The bare driver, as another program would use it.
pub(crate) async fn client(url: &str) -> Client {
    let servers = url.strip_prefix("zookeeper://").unwrap().split('/').next().unwrap();
    Client::connect(servers).await.unwrap()
}

/// Waits for the loss of a guard.
pub(crate) async fn loss_of(guard: &Guard) -> LossReason {
    tokio::time::timeout(LIMIT, guard.lost()).await.expect("the guard should have been lost")
}

/// Waits until a condition is true.
pub(crate) async fn until(what: &str, condition: impl AsyncFnMut() -> bool) {
    distlock_testkit::servers::until(what, LIMIT, condition).await;
}

/// How many hold and how many wait.
pub(crate) async fn counts(locks: &Locks, kind: Kind, name: &str) -> (usize, usize) {
    let query = Query::named(name).with_kind(kind);
    let records = locks.inspect(&query).await.unwrap();
    records.first().map_or((0, 0), |record| (record.holders.len(), record.waiters.len()))
}

pub(crate) async fn until_waiting(locks: &Locks, name: &str, waiters: usize) {
    until("the waiters are queued", async || counts(locks, Kind::Mutex, name).await.1 == waiters).await;
}
