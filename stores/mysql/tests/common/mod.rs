//! What the tests share: a server, a database per test, claims without an engine.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use distlock_core::store::{Attempt, Backend, Claim, Lease, LeaseStore, Released, StoreUrl};
use distlock_core::{FencingToken, Kind, LockIds, Locks, Resource, Result};
use distlock_mysql::{MysqlConfig, MysqlSessionStore, MysqlStore};
use distlock_testkit::servers::MysqlServer;

pub const MS: Duration = Duration::from_millis(1);
pub const SECOND: Duration = Duration::from_secs(1);
/// How long an expected event may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(25);

/// A server for the whole test program.
pub fn server() -> &'static MysqlServer {
    static SERVER: OnceLock<MysqlServer> = OnceLock::new();
    SERVER.get_or_init(MysqlServer::start)
}

/// A database of its own.
pub fn database_on(server: &MysqlServer) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("t_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    server.sql(&format!("CREATE DATABASE {name}"));
    name
}

pub fn config(url: &str) -> MysqlConfig {
    MysqlConfig::from_url(&StoreUrl::parse(url).unwrap()).unwrap()
}

pub async fn lease_store(url: &str) -> MysqlStore {
    MysqlStore::connect(config(url)).await.unwrap()
}

pub async fn session_store(url: &str) -> MysqlSessionStore {
    MysqlSessionStore::connect(config(url)).await.unwrap()
}

pub async fn lease_locks(url: &str) -> Locks {
    Locks::new(Backend::lease(lease_store(url).await)).unwrap()
}

pub async fn session_locks(url: &str) -> Locks {
    Locks::new(Backend::session(session_store(url).await)).unwrap()
}

/// Makes claims, each with a lock id of its own.
pub struct Claims(LockIds);

impl Claims {
    pub fn new(label: &str) -> Self {
        Claims(LockIds::new(label))
    }

    pub fn mutex(&self, name: &str) -> Claim {
        Claim::new(Resource::new(Kind::Mutex, name).unwrap(), self.0.next(), 60 * SECOND)
    }

    pub fn permit(&self, name: &str, capacity: u32) -> Claim {
        Claim::new(Resource::new(Kind::Semaphore, name).unwrap(), self.0.next(), 60 * SECOND)
            .with_capacity(capacity)
    }
}

pub async fn attempt(store: &dyn LeaseStore, claim: &Claim) -> Result<Attempt> {
    store.try_acquire(std::slice::from_ref(claim)).await.and_then(|mut answers| answers.pop().unwrap())
}

pub async fn granted(store: &dyn LeaseStore, claim: &Claim) -> FencingToken {
    match attempt(store, claim).await.unwrap() {
        Attempt::Granted { token, .. } => token,
        busy => panic!("{claim:?} should have been granted: {busy:?}"),
    }
}

pub async fn release(store: &dyn LeaseStore, claim: &Claim) -> Result<Released> {
    let lease = Lease::of(claim, FencingToken::new(0));
    store.release(&[lease]).await.and_then(|mut answers| answers.pop().unwrap())
}

/// Waits until a condition holds.
pub async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !condition().await {
        assert!(begun.elapsed() < PATIENCE, "did not come true: {what}");
        tokio::time::sleep(5 * MS).await;
    }
}
