//! `GET_LOCK`: holders whose session ended without a release, and what the next client must wait for.

use std::time::Instant;

use crate::common::{MS, PATIENCE, SECOND, config, database_on, eventually, server, session_locks};
use distlock_core::store::{Backend, Query};
use distlock_core::{ErrorKind, Guard, Kind, Locks};
use distlock_mysql::MysqlSessionStore;
use distlock_testkit::proxy::Proxy;

/// A database, and a holder of the lock `a` there that cannot see the end of its session.
struct Blind {
    url: String,
    database: String,
    proxy: Proxy,
    guard: Guard,
    _locks: Locks,
}

impl Blind {
    /// Its guard lasts for this long after its session.
    async fn hold(heartbeat_timeout: &str) -> Self {
        let database = database_on(server());
        let url = server().url_of("mysql+session", &database);
        let proxy = Proxy::start(server().addr());
        let locks = session_locks(&with(&proxy.through(&url), heartbeat_timeout)).await;
        let guard = locks.mutex("a").acquire().await.unwrap();
        Blind { url, database, proxy, guard, _locks: locks }
    }

    /// Its session ends, and it does not see that.
    fn end_session(&self) {
        self.proxy.pause();
        server().sql(&format!("KILL {}", column(&self.database, "connection_id")));
    }
}

fn with(url: &str, heartbeat_timeout: &str) -> String {
    format!("{url}?distlock.heartbeat_timeout={heartbeat_timeout}")
}

fn column(database: &str, column: &str) -> String {
    server().value(&format!("SELECT {column} FROM {database}.distribute_lock_session WHERE name = 'a'"))
}

/// Whether a session has the lock `a`.
fn is_used(database: &str) -> bool {
    column(database, "IS_FREE_LOCK(CONCAT('distlock.', LOWER(HEX(LEFT(k, 27)))))") == "0"
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_attempt_after_an_ended_session_is_granted_when_its_guard_is_lost() {
    let holder = Blind::hold("1s").await;
    holder.end_session();
    // The server ends a killed session a little later, and one attempt finds a lock that is still held contended.
    eventually("it is free", async || !is_used(&holder.database)).await;
    let next = session_locks(&holder.url).await.mutex("a").try_acquire().await.unwrap();
    let next = next.expect("it is free");
    assert!(holder.guard.is_lost(), "two holders");
    assert!(next.token() > holder.guard.token());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_client_waits_for_the_time_of_the_holder_and_not_its_own() {
    let holder = Blind::hold("2s").await;
    holder.end_session();
    let next = session_locks(&with(&holder.url, "200ms")).await;
    let next = next.mutex("a").acquire().timeout(PATIENCE).await.unwrap();
    assert!(holder.guard.is_lost(), "two holders");
    drop(next);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_ends_before_it_was_granted_does_not_hide_the_holder_before_it() {
    let holder = Blind::hold("2s").await;
    holder.end_session();
    let mut before = column(&holder.database, "connection_id");
    for _ in 0..2 {
        let between = session_locks(&with(&holder.url, "200ms")).await;
        let waiting = tokio::spawn(async move { between.mutex("a").try_acquire().await });
        // It has the lock, wrote the row, and is not granted it yet.
        eventually("the row is another's", async || {
            column(&holder.database, "connection_id") != before && is_used(&holder.database)
        })
        .await;
        before = column(&holder.database, "connection_id");
        waiting.abort();
        let _ = waiting.await;
        server().sql(&format!("KILL {before}"));
        eventually("it is free", async || !is_used(&holder.database)).await;
    }
    let next = session_locks(&with(&holder.url, "200ms")).await;
    let next = next.mutex("a").acquire().timeout(PATIENCE).await.unwrap();
    assert!(holder.guard.is_lost(), "two holders");
    drop(next);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn time_limits_shorter_than_the_wait_add_up_and_let_no_client_in_early() {
    let holder = Blind::hold("1s").await;
    holder.end_session();
    let mut timeouts = 0;
    let next = loop {
        // A new client each time, as a command that is run by a timer.
        let locks = session_locks(&with(&holder.url, "200ms")).await;
        match locks.mutex("a").acquire().timeout(200 * MS).await {
            Ok(next) => break next,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Timeout, "{error}"),
        }
        timeouts += 1;
        assert!(!is_used(&holder.database), "a withdrawn client has the lock");
        assert!(timeouts < 100, "it is never granted");
    };
    assert!(holder.guard.is_lost(), "two holders");
    assert!(next.token() > holder.guard.token());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_wait_for_an_ended_holder_frees_the_lock_and_lets_no_client_in_early() {
    let holder = Blind::hold("2s").await;
    let token = column(&holder.database, "token");
    holder.end_session();
    let locks = session_locks(&holder.url).await;
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.mutex("a").acquire().timeout(PATIENCE).await }
    });
    eventually("it has the lock", async || column(&holder.database, "token") != token).await;
    waiting.abort();
    eventually("it is free", async || !is_used(&holder.database)).await;
    let next = session_locks(&holder.url).await.mutex("a").acquire().timeout(PATIENCE).await.unwrap();
    assert!(holder.guard.is_lost(), "two holders");
    drop(next);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forced_release_lets_no_client_in_before_the_holder_is_lost() {
    let holder = Blind::hold("1s").await;
    holder.proxy.pause();
    let locks = session_locks(&holder.url).await;
    let broken = locks.break_lock(Kind::Mutex, "a").await.unwrap();
    assert_eq!(broken.len(), 1, "{broken:?}");
    let next = locks.mutex("a").acquire().timeout(PATIENCE).await.unwrap();
    assert!(holder.guard.is_lost(), "two holders");
    assert!(next.token() > holder.guard.token());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_leaves_nothing_to_wait_for() {
    let database = database_on(server());
    let url = server().url_of("mysql+session", &database);
    let (locks, other) = (session_locks(&url).await, session_locks(&url).await);
    let guard = locks.mutex("a").acquire().await.unwrap();
    assert_eq!(column(&database, "hold_us"), "3000000");
    // On a session of its own, after a wait.
    let waiting = tokio::spawn(async move { (other.mutex("a").acquire().timeout(PATIENCE).await, other) });
    guard.release().await.unwrap();
    let (next, _other) = waiting.await.unwrap();
    assert_eq!(
        (column(&database, "hold_us"), column(&database, "pending_us")),
        ("3000000".into(), "0".into())
    );
    drop(next.unwrap());
    // The row is written first.
    eventually("it was released", async || column(&database, "hold_us") == "0" && !is_used(&database)).await;
    assert!(locks.mutex("a").try_acquire().await.unwrap().is_some());
    assert_eq!(column(&database, "pending_us"), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_whose_row_is_locked_frees_the_lock_and_makes_the_next_client_wait() {
    let database = database_on(server());
    let url = server().url_of("mysql+session", &database);
    let locks = session_locks(&url).await;
    let (guard, other) =
        (locks.mutex("a").acquire().await.unwrap(), locks.mutex("other").acquire().await.unwrap());
    let mut admin = server().connect().unwrap();
    admin
        .query(&format!(
            "START TRANSACTION; SELECT * FROM {database}.distribute_lock_session WHERE name = 'a' FOR UPDATE"
        ))
        .unwrap();
    guard.release().await.unwrap();
    assert!(!is_used(&database));
    admin.query("ROLLBACK").unwrap();
    assert_eq!(column(&database, "hold_us"), "3000000");
    assert!(!other.is_lost(), "a locked row cost another lock");
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.mutex("a").acquire().timeout(PATIENCE).await.unwrap() }
    });
    eventually("it waits", async || column(&database, "pending_us") == "3000000").await;
    let next = waiting.await.unwrap();
    assert_eq!(
        (column(&database, "hold_us"), column(&database, "pending_us")),
        ("3000000".into(), "0".into())
    );
    next.release().await.unwrap();
    assert_eq!((column(&database, "hold_us"), column(&database, "pending_us")), ("0".into(), "0".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_row_does_not_keep_a_session_from_its_heartbeats() {
    let database = database_on(server());
    let locks = session_locks(&server().url_of("mysql+session", &database)).await;
    locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
    let other = locks.mutex("other").acquire().await.unwrap();
    let mut admin = server().connect().unwrap();
    admin
        .query(&format!(
            "START TRANSACTION; SELECT * FROM {database}.distribute_lock_session WHERE name = 'a' FOR UPDATE"
        ))
        .unwrap();
    // For longer than a guard lasts without a heartbeat.
    let begun = Instant::now();
    while begun.elapsed() < 4 * SECOND {
        let error = locks.mutex("a").try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(!other.is_lost(), "a locked row cost another lock");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_session_sends_its_heartbeats_too() {
    let locks = session_locks(&server().url_of("mysql+session", &database_on(server()))).await;
    let held = locks.mutex("held").acquire().await.unwrap();
    let begun = Instant::now();
    while begun.elapsed() < 4 * SECOND {
        locks.mutex("b").acquire().await.unwrap().release().await.unwrap();
        assert!(!held.is_lost());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_longer_than_a_session_lasts_is_granted() {
    let database = database_on(server());
    let url = server().url_of("mysql+session", &database);
    let short = format!("{}&distlock.session_timeout=2s", with(&url, "1s"));
    let (locks, other) = (session_locks(&url).await, session_locks(&short).await);
    let guard = locks.mutex("a").acquire().await.unwrap();
    let waiting = tokio::spawn(async move {
        let next = other.mutex("a").acquire().timeout(PATIENCE).await;
        next.map(|next| (next.is_lost(), next.token()))
    });
    tokio::time::sleep(3 * SECOND).await;
    assert!(!waiting.is_finished() && !guard.is_lost());
    let token = guard.token();
    guard.release().await.unwrap();
    let (is_lost, next) = waiting.await.unwrap().unwrap();
    assert!(!is_lost && next > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sweep_deletes_the_row_of_an_ended_holder_only_after_its_guard_is_lost() {
    let holder = Blind::hold("2s").await;
    let store = config(&holder.url).retention(SECOND).unwrap();
    let store = MysqlSessionStore::connect(store).await.unwrap();
    // Older than the retention time, and held.
    tokio::time::sleep(1500 * MS).await;
    assert_eq!(store.sweep().await.unwrap(), 0);
    assert!(!holder.guard.is_lost());
    holder.end_session();
    // The server ends killed sessions a moment later, and so that of the sweep before.
    eventually("it is swept", async || store.sweep().await.unwrap() == 1).await;
    assert!(holder.guard.is_lost(), "the next client would not wait");
    let locks = Locks::new(Backend::session(store)).unwrap();
    let next = locks.mutex("a").try_acquire().await.unwrap().expect("it is free");
    assert!(next.token() > holder.guard.token());
    assert_eq!(locks.inspect(&Query::named("a")).await.unwrap().len(), 1);
}
