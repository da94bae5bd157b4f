//! A pool of deadpool as the client: the store never keeps a connection that the application waits for, and the other way round.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::str::FromStr;
use std::time::Duration;

use common::{TestSchema, config, eventually, server, wait_for_waiters, within};
use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod};
use distlock_core::store::Backend;
use distlock_core::{ErrorKind, Locks, Options};
use distlock_postgres::{Fence, Listen, PostgresConfig, PostgresStore};
use distlock_testkit::proxy::{Direction, Proxy};
use tokio_postgres::NoTls;

const LIMIT: Duration = Duration::from_secs(25);

/// A pool of the application, whose connections have the name of the schema.
fn pool(test_schema: &TestSchema, url: &str, max_size: usize) -> Pool {
    let mut client = tokio_postgres::Config::from_str(url).unwrap();
    client.application_name(&test_schema.name);
    let manager = ManagerConfig { recycling_method: RecyclingMethod::Verified };
    Pool::builder(Manager::from_config(client, NoTls, manager)).max_size(max_size).build().unwrap()
}

/// The listener is told apart from the pool's connections by its name.
fn listener(test_schema: &TestSchema) -> PostgresConfig {
    let url = test_schema.url("postgres", &server().url());
    config(&url.replace(&format!("application_name={}", test_schema.name), "application_name=listener"))
}

async fn locks(pool: &Pool, config: PostgresConfig) -> Locks {
    Locks::new(Backend::lease(PostgresStore::with_deadpool(pool.clone(), config).await.unwrap())).unwrap()
}

fn often_renewed() -> Options {
    Options::new().extension_cadence(Duration::from_millis(100)).unwrap()
}

/// Waits until the expiry of a lock that is held moves.
async fn is_renewed(test_schema: &TestSchema) {
    let expiry = format!("SELECT max(expire_time) FROM {}.distribute_lock", test_schema.name);
    let before = server().value(&expiry);
    eventually("a renewal", async || server().value(&expiry) != before).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_application_can_use_every_connection_of_its_pool_while_locks_are_held() {
    let test_schema = TestSchema::new();
    let pool = pool(&test_schema, &server().url(), 1);
    let locks = locks(&pool, listener(&test_schema)).await.with_options(often_renewed());
    let guard = locks.mutex("m").acquire().await.unwrap();
    let client = within("a connection of the pool", LIMIT, pool.get()).await.unwrap();
    assert_eq!(test_schema.sessions(server()), 2, "the application's and the store's");
    // Our settings are not on it.
    let row = client.query_one("SELECT current_setting('lock_timeout')", &[]).await.unwrap();
    assert_eq!(row.get::<_, String>(0), "0");
    // The pool is exhausted now, and the lock is still renewed, released and acquired.
    is_renewed(&test_schema).await;
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    within("a grant", LIMIT, locks.mutex("m").acquire().into_future())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exhausted_pool_is_an_error_that_names_the_pool_and_not_a_deadlock() {
    let test_schema = TestSchema::new();
    let pool = pool(&test_schema, &server().url(), 1);
    let only = pool.get().await.unwrap();
    let connecting = PostgresStore::with_deadpool(pool.clone(), listener(&test_schema));
    let error = within("an answer", LIMIT, connecting).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("the pool has no free connection"), "{error}");
    drop(only);
    locks(&pool, listener(&test_schema)).await.mutex("m").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_connection_is_replaced_by_another_of_the_pool_and_the_lock_is_kept() {
    let test_schema = TestSchema::new();
    let pool = pool(&test_schema, &server().url(), 2);
    let locks = locks(&pool, listener(&test_schema)).await.with_options(often_renewed());
    let guard = locks.mutex("kept").acquire().await.unwrap();
    for _ in 0..3 {
        test_schema.cut(server());
        let other = within("a grant", LIMIT, async {
            loop {
                match locks.mutex("other").acquire().await {
                    Ok(guard) => return guard,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
                }
            }
        });
        drop(other.await);
    }
    is_renewed(&test_schema).await;
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_pool_does_not_end_the_stores_connection_and_is_named_when_that_ends() {
    let test_schema = TestSchema::new();
    let pool = pool(&test_schema, &server().url(), 2);
    let locks = locks(&pool, listener(&test_schema)).await;
    pool.close();
    let guard = locks.mutex("m").acquire().await.unwrap();
    guard.release().await.unwrap();
    test_schema.cut(server());
    let error = within("an error", LIMIT, async {
        loop {
            // The first request after the cut may fail with the connection itself.
            match locks.mutex("m").acquire().await {
                Err(error) if error.to_string().contains("the pool is closed") => return error,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
                Ok(_) => panic!("granted without a connection"),
            }
        }
    });
    assert_eq!(error.await.kind(), ErrorKind::Unavailable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_woken_over_a_connection_of_the_stores_own_or_poll() {
    for listen in [Listen::Auto, Listen::Off] {
        let test_schema = TestSchema::new();
        let pool = pool(&test_schema, &server().url(), 1);
        let config = listener(&test_schema).listen(listen);
        let (locks, others) = (locks(&pool, config.clone()).await, locks(&pool, config).await);
        assert_eq!(locks.capabilities().push, listen == Listen::Auto);
        let held = locks.mutex("m").acquire().await.unwrap();
        let waiting = tokio::spawn(others.mutex("m").acquire().into_future());
        wait_for_waiters(&locks, "m", 1).await;
        assert_eq!(test_schema.sessions(server()), 2, "one connection of the pool for each store");
        held.release().await.unwrap();
        within("a grant", LIMIT, waiting).await.unwrap().unwrap().release().await.unwrap();
    }
}

/// Half-open: requests arrive, replies do not, and neither side gets an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_connection_of_the_pool_is_replaced() {
    let test_schema = TestSchema::new();
    let proxy = Proxy::start(server().addr());
    let pool = pool(&test_schema, &proxy.through(&server().url()), 2);
    let locks = locks(&pool, listener(&test_schema)).await;
    locks.mutex("warm").acquire().await.unwrap().release().await.unwrap();
    proxy.black_hole(Direction::ToClient);
    let options = distlock_core::Options::new().request_timeout(Duration::from_secs(1)).unwrap();
    let impatient = locks.with_options(options);
    let error = within("a reply", LIMIT, impatient.mutex("lost").acquire().into_future()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    proxy.heal();
    within("a grant", LIMIT, async {
        loop {
            match locks.mutex("lost").acquire().await {
                Ok(guard) => return guard.release().await,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
        }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_fence_and_a_token_work_in_a_transaction_of_the_pool() {
    let test_schema = TestSchema::new();
    let pool = pool(&test_schema, &server().url(), 1);
    let config = listener(&test_schema);
    let locks = locks(&pool, config.clone()).await;
    let fence = Fence::new(&config);
    let mut client = pool.get().await.unwrap();
    let ledger = format!("{}.ledger", test_schema.name);
    client
        .batch_execute(&format!("{}; CREATE TABLE {ledger} (token bigint)", fence.commands()))
        .await
        .unwrap();
    let guard = locks.mutex("m").acquire().await.unwrap();
    let transaction = client.transaction().await.unwrap();
    fence.admit(&transaction, "ledger", guard.token()).await.unwrap();
    transaction.execute(&format!("INSERT INTO {ledger} VALUES ($1)"), &[&guard.token()]).await.unwrap();
    transaction.commit().await.unwrap();
    let row = client.query_one(&format!("SELECT token FROM {ledger}"), &[]).await.unwrap();
    assert_eq!(row.get::<_, distlock_core::FencingToken>(0), guard.token());
}
