//! Tokens rise even if documents are deleted and the server's clock is set back.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{MS, SECOND, TestDatabase, eventually, expiring, until_indexed, within};
use distlock_core::Locks;
use distlock_core::store::{Backend, StoreUrl};
use distlock_mongodb::{MongoConfig, MongoStore};
use distlock_testkit::servers::{MongoReplicaSet, MongoServer};
use mongodb::Database;
use mongodb::bson::{Document, doc};

/// Deletes like the TTL monitor, which would sleep for an hour: it sleeps by the clock that the test sets back.
async fn until_deleted_as_expired(database: &Database, name: &str) {
    let all = database.collection::<Document>("distributed.locks");
    let expired =
        doc! { "_id": name, "expiresAt": { "$type": "date" }, "$expr": { "$lte": ["$expiresAt", "$$NOW"] } };
    eventually("the document expires", || async {
        all.delete_one(expired.clone()).await.unwrap().deleted_count == 1
    })
    .await;
}

/// The TTL index deletes the document of a dead holder, and its token with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_after_the_ttl_index_deleted_the_document() {
    let test_db = TestDatabase::on_standalone();
    let locks = test_db.locks_with(expiring(150 * MS).auto_extend(false)).await;
    let held = locks.mutex("expired").acquire().await.unwrap();
    let last = held.token();
    std::mem::forget(held);
    until_indexed(&test_db.database().await).await;
    eventually("the TTL monitor deletes the document", || async { test_db.lock("expired").await.is_none() })
        .await;
    let next = locks.mutex("expired").acquire().await.unwrap();
    assert!(next.token() > last, "{} after {last}", next.token());
}

/// Tombstones are purged after the retention, so that names do not fill the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tombstones_are_purged_and_tokens_still_rise() {
    let test_db = TestDatabase::on_standalone();
    let config = MongoConfig::from_url(&StoreUrl::parse(&test_db.url).unwrap()).unwrap();
    let store = MongoStore::connect(config.retention(SECOND).unwrap()).await.unwrap();
    let locks = Locks::new(Backend::lease(store)).unwrap();
    let held = locks.mutex("released").acquire().await.unwrap();
    let last = held.token();
    held.release().await.unwrap();
    assert!(test_db.lock("released").await.is_some(), "a released name keeps its token for a while");
    let permit = locks.semaphore("released", 2).acquire().await.unwrap();
    let last_permit = permit.token();
    permit.release().await.unwrap();
    let database = test_db.database().await;
    until_indexed(&database).await;
    let queues = database.collection::<Document>("distributed.locks.queues");
    eventually("both are purged", || async {
        let pool = queues.find_one(doc! { "_id": "semaphore:released" }).await.unwrap();
        test_db.lock("released").await.is_none() && pool.is_none()
    })
    .await;
    assert!(locks.mutex("released").acquire().await.unwrap().token() > last);
    assert!(locks.semaphore("released", 2).acquire().await.unwrap().token() > last_permit);
}

/// A document whose token is ahead of the clock must outlive the difference.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_ahead_of_the_clock_is_not_purged() {
    let test_db = TestDatabase::on_standalone();
    let database = test_db.database().await;
    let config = MongoConfig::default().database(database.name()).unwrap().retention(SECOND).unwrap();
    let store = MongoStore::with_client(database.client().clone(), config).await.unwrap();
    let locks = Locks::new(Backend::lease(store)).unwrap();
    locks.mutex("ahead").acquire().await.unwrap().release().await.unwrap();
    until_indexed(&database).await;
    let ahead = i64::MAX / 2;
    let all = database.collection::<Document>("distributed.locks");
    all.update_one(doc! { "_id": "ahead" }, doc! { "$set": { "fencingToken": ahead } }).await.unwrap();
    let held = locks.mutex("ahead").acquire().await.unwrap();
    assert_eq!(held.token().get(), u64::try_from(ahead + 1).unwrap());
    held.release().await.unwrap();
    // Another document, released later, is purged meanwhile.
    locks.mutex("marker").acquire().await.unwrap().release().await.unwrap();
    eventually("the marker is purged", || async { test_db.lock("marker").await.is_none() }).await;
    let held = within("a grant", locks.mutex("ahead").acquire()).await.unwrap();
    assert_eq!(held.token().get(), u64::try_from(ahead + 2).unwrap());
}

/// The clock is set back, a holder dies, and the TTL index deletes its document: neither the clock nor the document has the
/// last token. A client that saw the clock before knows it and writes it down for later clients.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_after_the_clock_was_set_back_and_the_document_deleted() {
    let server = MongoServer::configure().movable_clock().start();
    let test_db = TestDatabase::on_settable_clock(&server.url());
    let (holder, witness) =
        (test_db.locks_with(expiring(500 * MS).auto_extend(false)).await, test_db.locks().await);
    // Released before the clock is set back: a lock that only expired would be held again.
    let before = test_db.locks().await.mutex("back").acquire().await.unwrap();
    let mut last = before.token();
    before.release().await.unwrap();
    let database = test_db.database().await;
    until_indexed(&database).await;
    server.set_clock_offset("-3600");
    let held = within("a grant", holder.mutex("back").acquire()).await.unwrap();
    assert!(held.token() > last);
    last = held.token();
    std::mem::forget(held);
    until_deleted_as_expired(&database, "back").await;
    let held = within("a grant", witness.mutex("back").acquire()).await.unwrap();
    assert!(held.token() > last, "a client that saw the clock before granted {} after {last}", held.token());
    last = held.token();
    held.release().await.unwrap();
    database.collection::<Document>("distributed.locks").delete_many(doc! {}).await.unwrap();
    let clock = database.collection::<Document>("distributed.locks.queues");
    eventually("the clock is written down", || async {
        clock.find_one(doc! { "_id": "clock" }).await.unwrap().is_some()
    })
    .await;
    let late = test_db.locks().await;
    let held = within("a grant", late.mutex("back").acquire()).await.unwrap();
    assert!(held.token() > last, "a later client granted {} after {last}", held.token());
    held.release().await.unwrap();
}

/// No client is left that saw the clock before it was set back: the logical time of the replica set has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_set_keeps_tokens_rising_without_a_witness() {
    let set = MongoReplicaSet::start_with(1, || MongoServer::configure().movable_clock());
    let test_db = TestDatabase::on_settable_clock(&set.url());
    let gone = test_db.locks().await;
    let last = gone.mutex("alone").acquire().await.unwrap().token();
    gone.shutdown().await.unwrap();
    drop(gone);
    let database = test_db.database().await;
    database.collection::<Document>("distributed.locks").delete_many(doc! {}).await.unwrap();
    set.members()[0].set_clock_offset("-3600");
    let hello = || async { database.run_command(doc! { "hello": 1 }).await.unwrap() };
    let was = i64::try_from(last.get()).unwrap();
    eventually("the server reads its clock", || async {
        hello().await.get_datetime("localTime").unwrap().timestamp_millis() < was - 3_000_000
    })
    .await;
    // On a busy machine this server once did not answer within five seconds after its clock was set back.
    let locks = test_db.locks().await;
    let mut outcome = within("a grant", locks.mutex("alone").acquire()).await;
    if outcome.as_ref().is_err_and(|error| error.can_retry()) {
        outcome = within("a grant", locks.mutex("alone").acquire()).await;
    }
    let held = outcome.unwrap();
    assert!(held.token() > last, "{} after {last}", held.token());
    held.release().await.unwrap();
}
