//! Helpers of the tests.

use std::time::Duration;

use distlock_core::store::{Backend, Query, StoreUrl};
use distlock_core::{Guard, Kind, Locks, LossReason, Options};
use distlock_etcd::{DRIVER, EtcdConfig, EtcdStore};
use distlock_testkit::servers::EtcdServer;

/// No test waits longer than this.
pub(crate) const LIMIT: Duration = Duration::from_secs(40);

pub(crate) const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

pub(crate) fn options(expiry: Duration) -> Options {
    Options::new().expiry(expiry).unwrap()
}

/// Locks with an engine and a connection of their own, like another process.
pub(crate) async fn locks(url: &str, expiry: Duration) -> Locks {
    let backend = DRIVER.connect(StoreUrl::parse(url).unwrap()).await.unwrap();
    Locks::builder(backend).options(options(expiry)).build().unwrap()
}

pub(crate) fn config(url: &str) -> EtcdConfig {
    EtcdConfig::from_url(&StoreUrl::parse(url).unwrap()).unwrap()
}

pub(crate) fn locks_of(store: EtcdStore, expiry: Duration) -> Locks {
    Locks::builder(Backend::session(store)).options(options(expiry)).build().unwrap()
}

/// Waits for the loss of a guard.
pub(crate) async fn loss_of(guard: &Guard) -> LossReason {
    tokio::time::timeout(LIMIT, guard.lost()).await.expect("the guard should have been lost")
}

/// Waits until a condition is true.
pub(crate) async fn until(what: &str, condition: impl AsyncFnMut() -> bool) {
    distlock_testkit::servers::until(what, LIMIT, condition).await;
}

/// Waits until a resource has this many waiters.
pub(crate) async fn until_waiters(locks: &Locks, kind: Kind, name: &str, waiters: usize) {
    let query = Query::named(name).with_kind(kind);
    until(&format!("{waiters} waiters for {name}"), async || {
        let found = locks.inspect(&query).await.unwrap();
        found.iter().map(|record| record.waiters.len()).sum::<usize>() >= waiters
    })
    .await;
}

/// A key as the server has it.
#[derive(Debug)]
pub(crate) struct StoredKey {
    pub(crate) key: String,
    /// Hexadecimal, as `etcdctl lease` takes it.
    pub(crate) lease: String,
}

/// The keys that begin like this.
pub(crate) fn keys(server: &EtcdServer, prefix: &str) -> Vec<StoredKey> {
    let text = server.etcdctl(&["get", "--prefix", prefix, "-w", "fields"]);
    let field = |line: &str, name: &str| {
        line.strip_prefix(&format!("\"{name}\" : ")).map(|value| value.trim_matches('"').to_owned())
    };
    let mut found = Vec::new();
    let mut key = None;
    for line in text.lines() {
        key = field(line, "Key").or(key);
        if let Some(lease) = field(line, "Lease") {
            let lease = format!("{:x}", lease.parse::<i64>().unwrap());
            found.push(StoredKey { key: key.take().unwrap(), lease });
        }
    }
    found
}

/// The lease of the only key that begins like this.
pub(crate) fn lease_of(server: &EtcdServer, prefix: &str) -> String {
    let mut found = keys(server, prefix);
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0).lease
}
