//! What the tests share: one server for a test program, and a corner of it for each test.
#![allow(dead_code)]

use std::future::Future;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use distlock_core::store::{Backend, StoreUrl};
use distlock_core::{Locks, Options};
use distlock_postgres::{ADVISORY_DRIVER, AdvisoryLocks, LEASE_DRIVER, LeaseTable, PostgresConfig};
use distlock_testkit::servers::PostgresServer;

/// The server that the tests of a program share. It ends with the program.
pub(crate) fn server() -> &'static PostgresServer {
    static SERVER: OnceLock<PostgresServer> = OnceLock::new();
    SERVER.get_or_init(|| PostgresServer::configure().setting("max_connections", "400").start())
}

/// A schema that nobody else uses, and an application name to tell its connections by.
#[derive(Clone, Debug)]
pub(crate) struct Corner {
    pub(crate) schema: String,
}

impl Corner {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Corner { schema: format!("corner_{}_{number}", std::process::id()) }
    }

    /// A URL of this corner, on a server or a proxy with the given URL.
    pub(crate) fn url(&self, scheme: &str, server: &str) -> String {
        let rest = server.strip_prefix("postgres").expect("a URL of a server");
        let Corner { schema } = self;
        format!("{scheme}{rest}?application_name={schema}&distlock.schema={schema}")
    }

    /// Makes a role named like the corner, with settings that hold for every session of it, and gives the URL with it.
    pub(crate) fn as_role_with(&self, settings: &[(&str, &str)], url: &str) -> String {
        let Corner { schema } = self;
        server().sql(&format!("CREATE ROLE {schema} LOGIN SUPERUSER"));
        for (name, value) in settings {
            server().sql(&format!("ALTER ROLE {schema} SET {name} = {value}"));
        }
        url.replace("//postgres@", &format!("//{schema}@"))
    }

    /// Ends all sessions of this corner that there are now.
    pub(crate) fn cut(&self, server: &PostgresServer) {
        let ended = server.sql(&format!(
            "SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '{}'",
            self.schema
        ));
        // The server can wait for them itself only from version 14 on.
        let ended: Vec<String> =
            ended.into_iter().filter_map(|row| row.into_iter().next().flatten()).collect();
        let left =
            format!("SELECT count(*) FROM pg_stat_activity WHERE pid = ANY ('{{{}}}')", ended.join(","));
        let begun = Instant::now();
        while server.value(&left) != "0" {
            assert!(begun.elapsed() < Duration::from_secs(5), "the sessions do not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Runs `change` in a transaction, waits until a session of this corner waits for what that has locked, runs `then` and
    /// commits: all on the server, because a session of ours waits for a moment only. Returns when the change is made; the
    /// handle ends with the commit.
    pub(crate) async fn lock_until_waited_for(
        &self,
        change: &str,
        then: &str,
    ) -> tokio::task::JoinHandle<()> {
        let (Corner { schema }, key) = (self, fastrand::i64(..));
        let commands = format!(
            "DO $do$ BEGIN
                 {change};
                 PERFORM pg_advisory_xact_lock({key});
                 FOR try IN 1..20000 LOOP
                     EXIT WHEN EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
                                       WHERE NOT l.granted AND a.application_name = '{schema}');
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

    /// How many sessions of this corner there are.
    pub(crate) fn sessions(&self, server: &PostgresServer) -> usize {
        let count =
            format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{}'", self.schema);
        server.value(&count).parse().expect("a number")
    }
}

pub(crate) async fn backend(url: &str) -> distlock_core::Result<Backend> {
    let url = StoreUrl::parse(url)?;
    let driver = if url.scheme().contains("advisory") { &ADVISORY_DRIVER } else { &LEASE_DRIVER };
    driver.connect(url).await
}

pub(crate) async fn locks(url: &str) -> Locks {
    Locks::new(backend(url).await.expect("a connection")).expect("an engine")
}

pub(crate) async fn lease_table(url: &str) -> LeaseTable {
    LeaseTable::connect(PostgresConfig::from_url(url).expect("a good URL")).await.expect("a connection")
}

pub(crate) async fn advisory_locks(url: &str) -> AdvisoryLocks {
    AdvisoryLocks::connect(PostgresConfig::from_url(url).expect("a good URL")).await.expect("a connection")
}

pub(crate) fn expiry(seconds: f64) -> Options {
    Options::new().expiry(Duration::from_secs_f64(seconds)).expect("a good expiry")
}

/// Fails if something does not end in time.
pub(crate) async fn within<T>(what: &str, limit: Duration, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(limit, future).await {
        Ok(output) => output,
        Err(_) => panic!("did not happen within {limit:?}: {what}"),
    }
}

/// Looks until it is so.
pub(crate) async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !is_so().await {
        assert!(begun.elapsed() < Duration::from_secs(20), "did not come true: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
