//! What the tests share: one server for a test program, and a schema for each test.
#![allow(dead_code)]

pub(crate) mod fixtures;

use std::future::Future;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use distlock_core::store::{Backend, Query, StoreUrl};
use distlock_core::{Locks, Options};
use distlock_postgres::{ADVISORY_DRIVER, AdvisoryStore, DRIVER, PostgresConfig, PostgresStore};
use distlock_testkit::servers::{PgBouncer, PostgresServer};

/// The server that the tests of a program share. It ends with the program.
pub(crate) fn server() -> &'static PostgresServer {
    static SERVER: OnceLock<PostgresServer> = OnceLock::new();
    SERVER.get_or_init(|| PostgresServer::configure().setting("max_connections", "400").start())
}

/// PgBouncer in transaction mode, in front of the shared server.
pub(crate) fn bouncer() -> &'static PgBouncer {
    static BOUNCER: OnceLock<PgBouncer> = OnceLock::new();
    BOUNCER.get_or_init(|| PgBouncer::start(server()))
}

/// A schema that no other test uses. It is also the application name of its connections.
#[derive(Clone, Debug)]
pub(crate) struct TestSchema {
    pub(crate) name: String,
}

impl TestSchema {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        TestSchema { name: format!("test_{}_{number}", std::process::id()) }
    }

    /// A URL of this schema, on a server or a proxy with the given URL.
    pub(crate) fn url(&self, scheme: &str, server: &str) -> String {
        let rest = server.strip_prefix("postgres").expect("a URL of a server");
        let TestSchema { name } = self;
        format!("{scheme}{rest}?application_name={name}&distlock.schema={name}")
    }

    /// Creates a role named like the schema, with settings for all its sessions, and returns the URL with that role.
    pub(crate) fn as_role_with(&self, settings: &[(&str, &str)], url: &str) -> String {
        let TestSchema { name: role } = self;
        server().sql(&format!("CREATE ROLE {role} LOGIN SUPERUSER"));
        for (setting, value) in settings {
            server().sql(&format!("ALTER ROLE {role} SET {setting} = {value}"));
        }
        url.replace("//postgres@", &format!("//{role}@"))
    }

    /// Ends all present sessions of this schema.
    pub(crate) fn cut(&self, server: &PostgresServer) {
        let ended = server.sql(&format!(
            "SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '{}'",
            self.name
        ));
        // Only PostgreSQL 14 and later can wait for them itself.
        let ended: Vec<String> =
            ended.into_iter().filter_map(|row| row.into_iter().next().flatten()).collect();
        let left =
            format!("SELECT count(*) FROM pg_stat_activity WHERE pid = ANY ('{{{}}}')", ended.join(","));
        let started = Instant::now();
        while server.value(&left) != "0" {
            assert!(started.elapsed() < Duration::from_secs(5), "the sessions do not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Runs `change` in a transaction, waits until a session of this schema waits for a lock of that transaction, runs `then`
    /// and commits: all on the server, because our sessions wait only briefly. Returns when the change is made; the handle ends
    /// with the commit.
    pub(crate) async fn lock_until_waited_for(
        &self,
        change: &str,
        then: &str,
    ) -> tokio::task::JoinHandle<()> {
        let (TestSchema { name }, key) = (self, fastrand::i64(..));
        let commands = format!(
            "DO $do$ BEGIN
                 {change};
                 PERFORM pg_advisory_xact_lock({key});
                 FOR try IN 1..20000 LOOP
                     EXIT WHEN EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
                                       WHERE NOT l.granted AND a.application_name = '{name}');
                     PERFORM pg_sleep(0.001), pg_stat_clear_snapshot();
                 END LOOP;
                 {then};
             END $do$"
        );
        let running = tokio::task::spawn_blocking(move || drop(server().sql(&commands)));
        let made = format!(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted
             AND (classid::bigint << 32) | objid::bigint = {key}"
        );
        eventually("the change is made", async || running.is_finished() || server().value(&made) == "1")
            .await;
        running
    }

    /// How many sessions this schema has.
    pub(crate) fn sessions(&self, server: &PostgresServer) -> usize {
        let count = format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{}'", self.name);
        server.value(&count).parse().expect("a number")
    }
}

pub(crate) fn config(url: &str) -> PostgresConfig {
    let url = StoreUrl::parse(url).expect("a well-formed URL");
    PostgresConfig::from_url(&url).expect("known options")
}

pub(crate) async fn backend(url: &str) -> distlock_core::Result<Backend> {
    let url = StoreUrl::parse(url)?;
    let driver = if url.scheme().contains("advisory") { &ADVISORY_DRIVER } else { &DRIVER };
    driver.connect(url).await
}

pub(crate) async fn locks(url: &str) -> Locks {
    Locks::new(backend(url).await.expect("a connection")).expect("an engine")
}

pub(crate) async fn postgres_store(url: &str) -> PostgresStore {
    PostgresStore::connect(config(url)).await.expect("a connection")
}

pub(crate) async fn advisory_store(url: &str) -> AdvisoryStore {
    AdvisoryStore::connect(config(url)).await.expect("a connection")
}

pub(crate) fn expiry(seconds: f64) -> Options {
    Options::new().expiry(Duration::from_secs_f64(seconds)).expect("a valid expiry")
}

/// Waits until a lock of this name has so many waiters.
pub(crate) async fn wait_for_waiters(locks: &Locks, name: &str, waiters: usize) {
    eventually(&format!("{name} has {waiters} waiters"), async || {
        let found = locks.inspect(&Query::named(name)).await.expect("an inspection");
        found.iter().any(|record| record.waiters.len() == waiters)
    })
    .await;
}

/// Fails if the future does not end in time.
pub(crate) async fn within<T>(what: &str, limit: Duration, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(limit, future).await {
        Ok(output) => output,
        Err(_) => panic!("not within {limit:?}: {what}"),
    }
}

/// Polls until the condition is true.
pub(crate) async fn eventually(what: &str, mut is_true: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !is_true().await {
        assert!(started.elapsed() < Duration::from_secs(20), "not within 20 s: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
