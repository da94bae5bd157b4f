//! A pool of the application as the client: of sqlx, of which the store takes no connection, and of the driver.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::str::FromStr;
use std::time::Duration;

use common::{MS, PATIENCE, config, database_on, eventually, server};
use distlock_core::store::{Backend, Query};
use distlock_core::{ErrorKind, FencingToken, Locks};
use distlock_mysql::{MysqlConfig, MysqlSessionStore, MysqlStore};
use sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlPoolOptions};

/// A pool of one connection, and the name of its database.
async fn pool() -> (MySqlPool, String) {
    // A server of MySQL offers TLS by itself. Another store of the same build may bring a second provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let database = database_on(server());
    let options = MySqlConnectOptions::from_str(&server().url_of("mysql", &database)).unwrap();
    let pool = MySqlPoolOptions::new().max_connections(1).acquire_timeout(PATIENCE);
    (pool.connect_with(options).await.unwrap(), database)
}

/// The names of the tables. Its address leads nowhere: that of the pool is used.
fn tables() -> MysqlConfig {
    config("mysql://127.0.0.1:1/nowhere").table("own_locks").unwrap()
}

async fn locks(pool: &MySqlPool) -> Locks {
    Locks::new(Backend::lease(MysqlStore::with_sqlx_pool(pool, tables()).await.unwrap())).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_work_while_the_application_uses_every_connection_of_its_pool() {
    let (pool, _) = pool().await;
    let only = pool.acquire().await.unwrap();
    let (first, second) = (locks(&pool).await, locks(&pool).await);
    let held = first.mutex("m").acquire().await.unwrap();
    let waiting = tokio::spawn(second.mutex("m").acquire().timeout(PATIENCE).into_future());
    eventually("it waits", async || first.inspect(&Query::named("m")).await.unwrap()[0].waiters.len() == 1)
        .await;
    held.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    drop(only);
    // And the application has all of them while a lock is held.
    let guard = first.mutex("m").acquire().await.unwrap();
    let mut only = pool.acquire().await.unwrap();
    sqlx::raw_sql("CREATE TABLE ledger (token BIGINT NOT NULL)").execute(&mut *only).await.unwrap();
    sqlx::query("INSERT INTO ledger VALUES (?)").bind(guard.token()).execute(&mut *only).await.unwrap();
    let stored: FencingToken =
        sqlx::query_scalar("SELECT token FROM ledger").fetch_one(&mut *only).await.unwrap();
    assert_eq!(stored, guard.token());
    // Nor are its settings those of the store.
    let wait: u64 =
        sqlx::query_scalar("SELECT @@innodb_lock_wait_timeout").fetch_one(&mut *only).await.unwrap();
    assert_eq!(wait, 50);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_pool_and_killed_connections_lose_no_lock() {
    let (pool, database) = pool().await;
    let locks = locks(&pool).await;
    let guard = locks.mutex("m").acquire().await.unwrap();
    pool.close().await;
    let sessions = format!("SELECT id FROM information_schema.processlist WHERE db = '{database}'");
    for id in server().sql(&sessions).into_iter().flatten().flatten() {
        // It may be gone.
        let _ = server().connect().unwrap().query(&format!("KILL {id}"));
    }
    tokio::time::timeout(PATIENCE, async {
        loop {
            match locks.mutex("other").acquire().await {
                Ok(guard) => return guard.release().await,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
        }
    })
    .await
    .unwrap()
    .unwrap();
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn get_lock_has_sessions_of_its_own() {
    let (pool, database) = pool().await;
    let only = pool.acquire().await.unwrap();
    let store = MysqlSessionStore::with_sqlx_pool(&pool, tables()).await.unwrap();
    let locks = Locks::new(Backend::session(store)).unwrap();
    let guard = locks.mutex("a").acquire().await.unwrap();
    drop(only);
    // A session of the pool does not hold it.
    let is_used = format!(
        "SELECT IS_USED_LOCK(CONCAT('distlock.', LOWER(HEX(LEFT(k, 27))))) <> CONNECTION_ID()
         FROM {database}.own_locks_session WHERE name = 'a'"
    );
    let by_another: bool = sqlx::query_scalar(&is_used).fetch_one(&pool).await.unwrap();
    assert!(by_another);
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_held_a_session_lock_never_goes_back_to_the_drivers_pool() {
    use mysql_async::prelude::Queryable;
    let database = database_on(server());
    let opts = mysql_async::Opts::from_url(&server().url_of("mysql", &database)).unwrap();
    let pool = mysql_async::Pool::new(mysql_async::OptsBuilder::from_opts(opts).prefer_socket(false));
    let store = MysqlSessionStore::with_client(pool.clone(), MysqlConfig::default()).await.unwrap();
    let locks = Locks::new(Backend::session(store)).unwrap();
    for n in 0..30_u64 {
        // Dropped at some point: before it is sent, while it waits for the reply, or with the guard in hand.
        let acquiring = locks.mutex(format!("n{n}")).acquire().into_future();
        let _ = tokio::time::timeout(Duration::from_micros(n * 150), acquiring).await;
    }
    // A wait in the server's queue that is dropped.
    let guard = locks.mutex("a").acquire().await.unwrap();
    let holder = session_locks_through(&pool).await;
    for n in 1..5 {
        assert!(holder.mutex("a").acquire().timeout(n * 20 * MS).await.is_err());
    }
    let held = format!("SELECT connection_id FROM {database}.distribute_lock_session WHERE name = 'a'");
    let holding: u32 = server().value(&held).parse().unwrap();
    drop((guard, locks, holder));
    // Whatever the pool lends now has the application's settings and no lock.
    let mut lent = Vec::new();
    for _ in 0..8 {
        let mut conn = pool.get_conn().await.unwrap();
        let (id, wait): (u32, i64) =
            conn.query_first("SELECT CONNECTION_ID(), @@innodb_lock_wait_timeout").await.unwrap().unwrap();
        assert!(id != holding && wait == 50, "{id} {wait}");
        lent.push(conn);
    }
    drop(lent);
    pool.disconnect().await.unwrap();
    let open = format!("SELECT COUNT(*) FROM information_schema.processlist WHERE db = '{database}'");
    eventually("no connection is left", async || server().value(&open) == "0").await;
}

async fn session_locks_through(pool: &mysql_async::Pool) -> Locks {
    let store = MysqlSessionStore::with_client(pool.clone(), MysqlConfig::default()).await.unwrap();
    Locks::new(Backend::session(store)).unwrap()
}
