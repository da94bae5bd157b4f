//! A client of the application: it is shared, its pool is small, and it is shut down too early.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{MS, SECOND, TestDatabase, replica_set, until_waiting, within};
use distlock_core::store::Backend;
use distlock_core::{ErrorKind, Locks, Options};
use distlock_mongodb::{MongoConfig, MongoStore};
use mongodb::Client;
use mongodb::bson::{Document, doc};

/// A client of the application for one database, with a pool of this size.
async fn client(test_db: &TestDatabase, size: u32) -> Client {
    Client::with_uri_str(format!("{}&maxPoolSize={size}", test_db.url)).await.unwrap()
}

async fn locks(client: &Client) -> Locks {
    let store = MongoStore::with_client(client.clone(), MongoConfig::default()).await.unwrap();
    // Requests wait for the connection longer than usual.
    let options = Options::new().request_timeout(20 * SECOND).unwrap();
    Locks::new(Backend::lease(store)).unwrap().with_options(options)
}

/// The change stream and every request share one connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_of_one_connection_does_not_deadlock() {
    let test_db = TestDatabase::on(&replica_set().url());
    let client = client(&test_db, 1).await;
    let (one, other) = (locks(&client).await, locks(&client).await);
    let held = one.mutex("m").acquire().await.unwrap();
    let waiting = tokio::spawn(other.mutex("m").acquire().into_future());
    until_waiting(&one, "m", 1).await;
    // Requests of the application go through as well.
    let orders = client.default_database().unwrap().collection::<Document>("orders");
    within("a write", orders.insert_one(doc! { "token": held.token() }).into_future()).await.unwrap();
    held.release().await.unwrap();
    within("a grant", waiting).await.unwrap().unwrap().release().await.unwrap();
}

/// A slow query of the application has the only connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exhausted_pool_is_not_contention_and_blocks_nothing_for_longer_than_it_lasts() {
    let test_db = TestDatabase::on(&replica_set().url());
    let client = client(&test_db, 1).await;
    let locks = locks(&client).await;
    locks.mutex("m").acquire().await.unwrap().release().await.unwrap();
    let database = client.default_database().unwrap();
    database.collection::<Document>("orders").insert_one(doc! { "_id": 1 }).await.unwrap();
    let slow = tokio::spawn(async move {
        let sleep = doc! { "$where": "sleep(3000) || true" };
        database.collection::<Document>("orders").find_one(sleep).await
    });
    tokio::time::sleep(300 * MS).await;
    let limited = locks.mutex("m").acquire().timeout(200 * MS);
    match within("an answer", limited.into_future()).await {
        Err(error) => assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unavailable), "{error}"),
        // The query had not begun yet, or is over.
        Ok(guard) => drop(guard),
    }
    assert!(within("the query", slow).await.unwrap().unwrap().is_some());
    within("a grant", locks.mutex("m").acquire()).await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_was_shut_down_is_an_error_and_not_a_hang() {
    let test_db = TestDatabase::on(&replica_set().url());
    let client = client(&test_db, 10).await;
    let locks = locks(&client).await;
    let guard = locks.mutex("m").acquire().await.unwrap();
    within("the shutdown", client.shutdown().immediate(true).into_future()).await;
    let error = within("an answer", locks.mutex("other").acquire()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ShutDown, "{error}");
    assert!(within("an answer", guard.release()).await.is_err());
    // Another client is not affected.
    assert!(test_db.locks().await.mutex("m").try_acquire().await.unwrap().is_none());
}
