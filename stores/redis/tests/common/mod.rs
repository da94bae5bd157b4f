//! Helpers of the tests.
#![allow(dead_code)]

use std::time::Duration;

use distlock_core::store::{Backend, StoreUrl};
use distlock_core::{Guard, Locks, LossReason, Options, Result};
use distlock_redis::{DRIVER, RedisConfig, RedisStore, RedlockConfig};
use distlock_testkit::servers::RedisServer;

/// No test waits longer than this. Shorter than the default expiry, so that a lock left to its expiry fails the test.
pub(crate) const LIMIT: Duration = Duration::from_secs(25);

pub(crate) fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Locks with an engine and a connection of their own, like another process.
pub(crate) async fn locks(url: &str, expiry: Duration) -> Locks {
    let url = StoreUrl::parse(url).unwrap();
    let backend = DRIVER.connect(url).await.unwrap();
    Locks::builder(backend).options(Options::new().expiry(expiry).unwrap()).build().unwrap()
}

pub(crate) fn config(url: &str) -> Result<RedisConfig> {
    RedisConfig::from_url(&StoreUrl::parse(url)?)
}

pub(crate) fn redlock_config(url: &str) -> Result<RedlockConfig> {
    RedlockConfig::from_url(&StoreUrl::parse(url)?)
}

/// A store without an engine.
pub(crate) async fn store(url: &str) -> RedisStore {
    RedisStore::connect(config(url).unwrap()).await.unwrap()
}

pub(crate) fn locks_of(store: &RedisStore, expiry: Duration) -> Locks {
    let options = Options::new().expiry(expiry).unwrap();
    Locks::builder(Backend::lease(store.clone())).options(options).build().unwrap()
}

/// Waits for the loss of a guard.
pub(crate) async fn loss_of(guard: &Guard) -> LossReason {
    tokio::time::timeout(LIMIT, guard.lost()).await.expect("the guard should have been lost")
}

/// Waits until a condition is true.
pub(crate) async fn until(what: &str, condition: impl AsyncFnMut() -> bool) {
    distlock_testkit::servers::until(what, LIMIT, condition).await;
}

/// The value of the lock key of a mutex that this guard holds.
pub(crate) fn value_of(guard: &Guard) -> String {
    format!("{} {}", guard.lock_id(), guard.token())
}

/// How often the server executed a command.
pub(crate) fn calls(server: &RedisServer, command: &str) -> u64 {
    let text = server.command(&["INFO", "commandstats"]).text();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_")?.strip_prefix(command)?.strip_prefix(":calls="));
    line.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
}

/// How many commands the server executed, those inside scripts included, without INFO.
pub(crate) fn commands(server: &RedisServer) -> u64 {
    let text = server.command(&["INFO", "commandstats"]).text();
    let lines = text.lines().filter(|line| line.starts_with("cmdstat_") && !line.starts_with("cmdstat_info"));
    lines.filter_map(|line| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok()).sum()
}

/// Claims for tests of the store without an engine.
pub(crate) mod claims;
