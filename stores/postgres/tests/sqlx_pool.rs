//! A pool of sqlx as the client: the store takes no connection of it, and works in its transactions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::str::FromStr;
use std::time::Duration;

use common::{TestSchema, config, eventually, server, wait_for_waiters, within};
use distlock_core::store::Backend;
use distlock_core::{ErrorKind, FencingToken, Kind, Locks};
use distlock_postgres::{
    AdvisoryKey, AdvisoryStore, Fence, KeyScheme, PostgresConfig, PostgresStore, SqlxTransactionLocks,
};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};

const LIMIT: Duration = Duration::from_secs(25);

async fn pool(test_schema: &TestSchema, connections: u32) -> PgPool {
    let options = PgConnectOptions::from_str(&server().url()).unwrap().application_name(&test_schema.name);
    PgPoolOptions::new().max_connections(connections).connect_with(options).await.unwrap()
}

/// The tables of the schema. Its address leads nowhere: that of the pool is used.
fn tables(test_schema: &TestSchema) -> PostgresConfig {
    config(&format!("postgres://127.0.0.1:1/nowhere?distlock.schema={}", test_schema.name))
}

async fn locks(pool: &PgPool, test_schema: &TestSchema) -> Locks {
    let store = PostgresStore::with_sqlx_pool(pool, tables(test_schema)).await.unwrap();
    Locks::new(Backend::lease(store)).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_work_while_the_application_uses_every_connection_of_its_pool() {
    let test_schema = TestSchema::new();
    let pool = pool(&test_schema, 1).await;
    let only = pool.acquire().await.unwrap();
    let connecting = within("a store", LIMIT, locks(&pool, &test_schema)).await;
    let others = within("a second store", LIMIT, locks(&pool, &test_schema)).await;
    let held = connecting.mutex("m").acquire().await.unwrap();
    let waiting = tokio::spawn(others.mutex("m").acquire().into_future());
    wait_for_waiters(&connecting, "m", 1).await;
    held.release().await.unwrap();
    within("a grant", LIMIT, waiting).await.unwrap().unwrap().release().await.unwrap();
    drop(only);
    // And the application has all of them while a lock is held.
    let _held = connecting.mutex("m").acquire().await.unwrap();
    within("a connection of the pool", LIMIT, pool.acquire()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_pool_and_killed_connections_lose_no_lock() {
    let test_schema = TestSchema::new();
    let pool = pool(&test_schema, 2).await;
    let locks = locks(&pool, &test_schema).await;
    let guard = locks.mutex("m").acquire().await.unwrap();
    pool.close().await;
    test_schema.cut(server());
    within("a grant", LIMIT, async {
        loop {
            match locks.mutex("other").acquire().await {
                Ok(guard) => return guard.release().await,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
        }
    })
    .await
    .unwrap();
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn advisory_locks_have_sessions_of_their_own() {
    let test_schema = TestSchema::new();
    let pool = pool(&test_schema, 1).await;
    let only = pool.acquire().await.unwrap();
    let connecting = AdvisoryStore::with_sqlx_pool(&pool, tables(&test_schema).keys(KeyScheme::Raw));
    let store = within("a store", LIMIT, connecting).await.unwrap();
    let locks = Locks::new(Backend::session(store)).unwrap();
    let guard = locks.mutex("4217").acquire().await.unwrap();
    drop(only);
    // A session of the pool does not hold it.
    let mut transaction = pool.begin().await.unwrap();
    let key = AdvisoryKey::One(4217);
    assert!(!SqlxTransactionLocks::of(&mut transaction).try_lock(key).await.unwrap());
    guard.release().await.unwrap();
    within("the lock", LIMIT, SqlxTransactionLocks::of(&mut transaction).lock(key)).await.unwrap();
}

#[tokio::test]
async fn a_stale_token_writes_nothing_in_a_transaction_of_sqlx() {
    let test_schema = TestSchema::new();
    let pool = pool(&test_schema, 1).await;
    drop(locks(&pool, &test_schema).await);
    let fence = Fence::new(&tables(&test_schema));
    sqlx::raw_sql(&fence.commands()).execute(&pool).await.unwrap();
    let ledger = format!("{}.ledger", test_schema.name);
    sqlx::raw_sql(&format!("CREATE TABLE {ledger} (token bigint)")).execute(&pool).await.unwrap();
    let insert = format!("INSERT INTO {ledger} VALUES ($1)");
    for (number, passes) in [(10, true), (10, true), (12, true), (11, false), (1, false), (13, true)] {
        let token = FencingToken::new(number);
        let mut transaction = pool.begin().await.unwrap();
        match fence.admit_sqlx(&mut transaction, "ledger/7", token).await {
            Ok(()) => {
                assert!(passes, "{number} passed");
                sqlx::query(&insert).bind(token).execute(&mut *transaction).await.unwrap();
                transaction.commit().await.unwrap();
            }
            Err(error) => {
                assert!(!passes, "{number}: {error}");
                assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
                assert!(error.to_string().contains("12 was seen"), "{error}");
                transaction.rollback().await.unwrap();
            }
        }
    }
    let select = format!("SELECT token FROM {ledger} ORDER BY token");
    let stored: Vec<FencingToken> = sqlx::query_scalar(&select).fetch_all(&pool).await.unwrap();
    assert_eq!(stored, [10, 10, 12, 13].map(FencingToken::new));
    let mut transaction = pool.begin().await.unwrap();
    let error = fence.admit_sqlx(&mut transaction, "", FencingToken::new(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    // A number that is no BIGINT is refused before anything is sent.
    let error = fence.admit_sqlx(&mut transaction, "r", FencingToken::new(u64::MAX)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
    sqlx::query("SELECT 1").execute(&mut *transaction).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_of_a_transaction_of_sqlx_end_with_it() {
    let test_schema = TestSchema::new();
    let pool = pool(&test_schema, 2).await;
    for key in [AdvisoryKey::of(Kind::Mutex, &test_schema.name), AdvisoryKey::Pair(7, -9)] {
        let (mut one, mut other) = (pool.begin().await.unwrap(), pool.begin().await.unwrap());
        SqlxTransactionLocks::of(&mut one).lock(key).await.unwrap();
        let mut others = SqlxTransactionLocks::of(&mut other);
        assert!(!others.try_lock(key).await.unwrap());
        assert!(!others.try_lock_shared(key).await.unwrap());
        one.commit().await.unwrap();
        others.lock_shared(key).await.unwrap();
        let mut third = pool.begin().await.unwrap();
        assert!(SqlxTransactionLocks::of(&mut third).try_lock_shared(key).await.unwrap());
        sqlx::query("SET LOCAL lock_timeout = '50ms'").execute(&mut *third).await.unwrap();
        let error = SqlxTransactionLocks::of(&mut third).lock(key).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        third.rollback().await.unwrap();
        other.rollback().await.unwrap();
    }
}

/// The transaction's own connection is killed between two statements.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_transaction_of_sqlx_is_unavailable_and_not_contended() {
    let test_schema = TestSchema::new();
    let pool = pool(&test_schema, 1).await;
    let mut transaction = pool.begin().await.unwrap();
    test_schema.cut(server());
    let mut locks = SqlxTransactionLocks::of(&mut transaction);
    let error = locks.try_lock(AdvisoryKey::of(Kind::Mutex, "killed")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.is_outcome_unknown());
}

/// sqlx has no cancel request: the statement of the dropped future ends by itself, and the only connection of the pool is usable
/// again, while the lock is still held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_lock_in_a_transaction_of_sqlx_stops_waiting() {
    let test_schema = TestSchema::new();
    let (holders, waiters) = (pool(&test_schema, 1).await, pool(&test_schema, 1).await);
    let key = AdvisoryKey::of(Kind::Mutex, &test_schema.name);
    let mut holder = holders.begin().await.unwrap();
    SqlxTransactionLocks::of(&mut holder).lock(key).await.unwrap();
    let mut transaction = waiters.begin().await.unwrap();
    let pid = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *transaction);
    let pid: i32 = pid.await.unwrap();
    let waits =
        || server().value(&format!("SELECT count(*) FROM pg_locks WHERE pid = {pid} AND NOT granted")) == "1";
    {
        let mut locks = SqlxTransactionLocks::of(&mut transaction);
        let mut lock = std::pin::pin!(locks.lock(key));
        tokio::select! {
            locked = &mut lock => panic!("{locked:?}"),
            () = eventually("it waits", async || waits()) => {}
        }
    }
    drop(transaction);
    eventually("it waits no more", async || !waits()).await;
    let next = within("the connection", LIMIT, waiters.begin()).await;
    next.unwrap().rollback().await.unwrap();
    holder.commit().await.unwrap();
}

/// A statement waits for two seconds at most, a transaction for as long as it must, and `lock_timeout` is what it was before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_longer_than_one_statement_gets_the_lock_and_keeps_the_settings() {
    let test_schema = TestSchema::new();
    let pool = pool(&test_schema, 2).await;
    let key = AdvisoryKey::of(Kind::Mutex, &test_schema.name);
    let mut holder = pool.begin().await.unwrap();
    SqlxTransactionLocks::of(&mut holder).lock(key).await.unwrap();
    let mut waiter = pool.begin().await.unwrap();
    sqlx::query("SET LOCAL lock_timeout = '77s'").execute(&mut *waiter).await.unwrap();
    let release = async {
        tokio::time::sleep(Duration::from_millis(2500)).await;
        holder.commit().await.unwrap();
    };
    let mut locks = SqlxTransactionLocks::of(&mut waiter);
    let (locked, ()) = tokio::join!(within("the lock", LIMIT, locks.lock(key)), release);
    locked.unwrap();
    let setting: String =
        sqlx::query_scalar("SELECT current_setting('lock_timeout')").fetch_one(&mut *waiter).await.unwrap();
    assert_eq!(setting, "77s");
    waiter.commit().await.unwrap();
}
