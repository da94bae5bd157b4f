//! `GET_LOCK`: sessions that end, waits that are withdrawn, names that the server would fold.

use std::time::Instant;

use crate::common::{
    Claims, MS, PATIENCE, SECOND, config, database_on, eventually, server, session_locks, session_store,
};
use distlock_core::store::{Backend, Lease, Query, SessionStore};
use distlock_core::{CancellationToken, ErrorKind, Locks};
use distlock_mysql::{MysqlConfig, MysqlSessionStore};

const WAITS: &str = "info LIKE 'SELECT GET_LOCK(%'";

/// The sessions of a database that hold or wait for locks of ours, without those for inspection.
fn sessions(database: &str, condition: &str) -> Vec<String> {
    let sql =
        format!("SELECT id FROM information_schema.processlist WHERE db = '{database}' AND {condition}");
    server().sql(&sql).into_iter().flatten().flatten().collect()
}

fn url() -> (String, String) {
    let database = database_on(server());
    (server().url_of("mysql+session", &database), database)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_session_holds_many_locks_and_frees_them_one_by_one() {
    let (url, database) = url();
    let (locks, other) = (session_locks(&url).await, session_locks(&url).await);
    let mut guards = Vec::new();
    for n in 0..30 {
        guards.push(locks.mutex(format!("n{n}")).try_acquire().await.unwrap().expect("it is free"));
    }
    // A second GET_LOCK of a session frees the first on servers that are refused.
    assert!(guards.iter().all(|guard| !guard.is_lost()));
    for n in 0..30 {
        assert!(other.mutex(format!("n{n}")).try_acquire().await.unwrap().is_none(), "n{n}");
    }
    assert!(sessions(&database, "TRUE").len() <= 6, "{:?}", sessions(&database, "TRUE"));
    guards.remove(7).release().await.unwrap();
    assert!(other.mutex("n7").try_acquire().await.unwrap().is_some());
    assert!(other.mutex("n8").try_acquire().await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_frees_only_what_its_own_lock_id_holds() {
    let (url, _) = url();
    let (store, other) = (session_store(&url).await, session_locks(&url).await);
    let claims = Claims::new("ours");
    let (held, stale) = (claims.mutex("a"), claims.mutex("a"));
    let grant = store.acquire(&held, &CancellationToken::new()).await.unwrap().expect("it is free");
    store.release(&Lease::of(&stale, grant.token)).await.unwrap();
    assert!(other.mutex("a").try_acquire().await.unwrap().is_none());
    store.release(&Lease::of(&held, grant.token)).await.unwrap();
    let guard = other.mutex("a").try_acquire().await.unwrap().expect("it was released");
    // A repeated release is none of the next holder's lock.
    store.release(&Lease::of(&held, grant.token)).await.unwrap();
    assert!(!guard.is_lost() && store.acquire(&stale, &cancelled()).await.unwrap().is_none());
}

/// For one attempt.
fn cancelled() -> CancellationToken {
    let token = CancellationToken::new();
    token.cancel();
    token
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_engines_on_one_session_never_hold_the_same_lock() {
    let (url, _) = url();
    let store = session_store(&url).await;
    let engines = [0, 1].map(|_| Locks::new(Backend::session(store.clone())).unwrap());
    let guard = engines[0].mutex("a").acquire().await.unwrap();
    // GET_LOCK would grant the session its own lock again.
    assert!(engines[1].mutex("a").try_acquire().await.unwrap().is_none());
    let waiting = tokio::spawn({
        let locks = engines[1].clone();
        async move { locks.mutex("a").acquire().timeout(PATIENCE).await }
    });
    tokio::time::sleep(100 * MS).await;
    assert!(!waiting.is_finished());
    guard.release().await.unwrap();
    assert!(waiting.await.unwrap().is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_session_loses_its_guards_soon_and_the_next_acquire_works() {
    let (url, _) = url();
    let locks = session_locks(&url).await;
    let guard = locks.mutex("a").acquire().await.unwrap();
    let token = guard.token();
    let session = server().value(&format!(
        "SELECT connection_id FROM {}.distribute_lock_session",
        url.rsplit('/').next().unwrap()
    ));
    server().sql(&format!("KILL {session}"));
    let begun = Instant::now();
    eventually("the guard is lost", async || guard.is_lost()).await;
    // Before the server would end a session that sends nothing.
    assert!(begun.elapsed() < 15 * SECOND, "{:?}", begun.elapsed());
    let next = locks.mutex("a").acquire().timeout(PATIENCE).await.unwrap();
    assert!(next.token() > token);
    drop(guard);
    assert!(!next.is_lost());
}

/// Whose session holds the lock.
fn holding_session(database: &str) -> String {
    server().value(&format!("SELECT connection_id FROM {database}.distribute_lock_session"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_guard_of_a_killed_session_is_lost_before_the_waiter_is_granted() {
    let (url, database) = url();
    let (locks, other) = (session_locks(&url).await, session_locks(&url).await);
    let guard = locks.mutex("a").acquire().await.unwrap();
    let session = holding_session(&database);
    let waiting = tokio::spawn(async move {
        let next = other.mutex("a").acquire().timeout(PATIENCE).await.unwrap();
        (next, other)
    });
    eventually("it waits", async || !sessions(&database, WAITS).is_empty()).await;
    server().sql(&format!("KILL {session}"));
    let (next, _other) = waiting.await.unwrap();
    assert!(guard.is_lost(), "two holders");
    assert!(next.token() > guard.token() && !next.is_lost());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_cannot_see_its_session_end_is_lost_before_the_next_grant() {
    let (url, database) = url();
    let proxy = distlock_testkit::proxy::Proxy::start(server().addr());
    let (locks, other) = (session_locks(&proxy.through(&url)).await, session_locks(&url).await);
    let guard = locks.mutex("a").acquire().await.unwrap();
    // Neither the end of the connection nor any reply reaches the holder.
    proxy.pause();
    server().sql(&format!("KILL {}", holding_session(&database)));
    let next = other.mutex("a").acquire().timeout(PATIENCE).await.unwrap();
    assert!(guard.is_lost(), "two holders");
    drop(next);
    proxy.heal();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_session_is_killed_waits_on() {
    let (url, database) = url();
    let (locks, other) = (session_locks(&url).await, session_locks(&url).await);
    let guard = locks.mutex("a").acquire().await.unwrap();
    let waiting = tokio::spawn(async move { other.mutex("a").acquire().timeout(PATIENCE).await });
    eventually("it waits", async || !sessions(&database, WAITS).is_empty()).await;
    let first = sessions(&database, WAITS);
    server().sql(&format!("KILL {}", first[0]));
    eventually("it waits again", async || {
        let now = sessions(&database, WAITS);
        !now.is_empty() && now != first
    })
    .await;
    guard.release().await.unwrap();
    assert!(waiting.await.unwrap().is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_withdrawn_or_dropped_wait_leaves_no_session_that_waits() {
    let (url, database) = url();
    let (locks, other) = (session_locks(&url).await, session_locks(&url).await);
    let guard = locks.mutex("a").acquire().await.unwrap();
    for _ in 0..3 {
        let error = other.mutex("a").acquire().timeout(500 * MS).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        let dropped = tokio::time::timeout(50 * MS, other.mutex("a").acquire().timeout(PATIENCE)).await;
        assert!(dropped.is_err());
    }
    eventually("no session waits", async || sessions(&database, WAITS).is_empty()).await;
    guard.release().await.unwrap();
    assert!(other.mutex("a").try_acquire().await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_sends_nothing_ends_at_the_server_after_its_guard_is_lost_here() {
    let (url, _) = url();
    let proxy = distlock_testkit::proxy::Proxy::start(server().addr());
    let through = format!("{}?distlock.session_timeout=3s", proxy.through(&url));
    let (locks, other) = (session_locks(&through).await, session_locks(&url).await);
    let guard = locks.mutex("a").acquire().await.unwrap();
    // Nothing reaches the server any more, and neither side sees the connection close.
    proxy.pause();
    let next = other.mutex("a").acquire().timeout(PATIENCE).await.unwrap();
    assert!(guard.is_lost(), "two holders");
    drop(next);
    proxy.heal();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_never_gets_a_session_back_that_held_a_lock() {
    use mysql_async::prelude::Queryable;
    let (url, database) = url();
    let opts = mysql_async::Opts::from_url(&url.replace("mysql+session", "mysql")).unwrap();
    let pool = mysql_async::Pool::new(mysql_async::OptsBuilder::from_opts(opts).prefer_socket(false));
    let store = MysqlSessionStore::with_client(pool.clone(), MysqlConfig::default()).await.unwrap();
    let locks = Locks::new(Backend::session(store)).unwrap();
    let guard = locks.mutex("a").acquire().await.unwrap();
    let session = server().value(&format!("SELECT connection_id FROM {database}.distribute_lock_session"));
    drop(guard);
    locks.shutdown().await.unwrap();
    drop(locks);
    eventually("the session is gone", async || sessions(&database, &format!("id = {session}")).is_empty())
        .await;
    for _ in 0..10 {
        let mut conn = pool.get_conn().await.unwrap();
        let id: u64 = conn.query_first("SELECT CONNECTION_ID()").await.unwrap().unwrap();
        assert_ne!(id.to_string(), session);
    }
    pool.disconnect().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_row_that_stays_locked_fails_its_own_lock_and_leaves_it_free() {
    let (url, database) = url();
    let locks = session_locks(&url).await;
    for name in ["a", "b"] {
        locks.mutex(name).acquire().await.unwrap().release().await.unwrap();
    }
    let mut admin = server().connect().unwrap();
    admin
        .query(&format!(
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION;
             SELECT * FROM {database}.distribute_lock_session WHERE name = 'a' FOR UPDATE"
        ))
        .unwrap();
    let (a, b) = tokio::join!(locks.mutex("a").try_acquire(), locks.mutex("b").try_acquire());
    assert_eq!(a.err().map(|error| error.kind()), Some(ErrorKind::Unavailable));
    assert!(b.unwrap().is_some());
    admin.query("ROLLBACK").unwrap();
    assert!(locks.mutex("a").try_acquire().await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_get_lock_cannot_do_is_refused() {
    let (url, _) = url();
    let locks = session_locks(&url).await;
    for error in [
        locks.semaphore("s", 2).acquire().await.unwrap_err(),
        locks.rw_lock("r").read().await.unwrap_err(),
        locks.mutex("m").fair().acquire().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("mysql://"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sweep_keeps_the_tokens_of_held_locks() {
    let (url, database) = url();
    let store = MysqlSessionStore::connect(config(&url).retention(SECOND).unwrap()).await.unwrap();
    let locks = Locks::new(Backend::session(store.clone())).unwrap();
    let _held = locks.mutex("held").acquire().await.unwrap();
    locks.mutex("free").acquire().await.unwrap().release().await.unwrap();
    eventually("the free one is deleted", async || store.sweep().await.unwrap() == 1).await;
    assert_eq!(server().value(&format!("SELECT name FROM {database}.distribute_lock_session")), "held");
    assert_eq!(locks.inspect(&Query::named("held")).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_time_out_is_sent_that_the_servers_read_differently() {
    let mut session = server().connect().unwrap();
    let mut value = |sql: &str| session.query(sql).unwrap().remove(0).remove(0);
    let is_mariadb = value("SELECT VERSION()").unwrap().contains("MariaDB");
    // A negative one is an error on MariaDB, and means for ever on MySQL.
    let negative = value("SELECT GET_LOCK('time-out', -1)");
    assert_eq!(negative.as_deref(), if is_mariadb { None } else { Some("1") });
    // Both know how many locks of a session there are, and that it took one twice.
    value("SELECT GET_LOCK('twice', 0) + GET_LOCK('twice', 0)");
    let expected = if is_mariadb { "2" } else { "3" };
    assert_eq!(value("SELECT RELEASE_ALL_LOCKS()").as_deref(), Some(expected));

    let (url, database) = url();
    let (locks, other) = (session_locks(&url).await, session_locks(&url).await);
    let _guard = locks.mutex("a").acquire().await.unwrap();
    let waiting = tokio::spawn(async move { other.mutex("a").acquire().timeout(PATIENCE).await });
    let ours = "info LIKE 'SELECT GET_LOCK(%, 3600) AS got%'";
    eventually("it waits", async || sessions(&database, ours).len() == 1).await;
    waiting.abort();
}
