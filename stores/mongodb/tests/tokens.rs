//! Tokens rise, whatever deletes the documents and whatever becomes of the server's clock.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{MS, Place, SECOND, eventually, expiring, until_indexed, within};
use distlock_core::Locks;
use distlock_core::store::{Backend, StoreUrl};
use distlock_mongodb::{MongoConfig, MongoStore};
use distlock_testkit::servers::{MongoReplicaSet, MongoServer};
use mongodb::Database;
use mongodb::bson::{Document, doc};

/// What the TTL monitor does. Its own pauses go by the clock that the test sets back, so it would take an hour.
async fn until_deleted_as_expired(database: &Database, name: &str) {
    let all = database.collection::<Document>("distributed.locks");
    let expired =
        doc! { "_id": name, "expiresAt": { "$type": "date" }, "$expr": { "$lte": ["$expiresAt", "$$NOW"] } };
    eventually("the document expires", || async {
        all.delete_one(expired.clone()).await.unwrap().deleted_count == 1
    })
    .await;
}

/// A holder that dies leaves a document that the TTL index deletes, token and all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_outlives_the_ttl_monitor() {
    let place = Place::on_standalone();
    let locks = place.locks_with(expiring(150 * MS).auto_extend(false)).await;
    let held = locks.mutex("expired").acquire().await.unwrap();
    let last = held.token();
    std::mem::forget(held);
    until_indexed(&place.database().await).await;
    eventually("the TTL monitor deletes the document", || async { place.lock("expired").await.is_none() })
        .await;
    let next = locks.mutex("expired").acquire().await.unwrap();
    assert!(next.token() > last, "{} after {last}", next.token());
}

/// Millions of names must not stay: what is left of a released one goes after the retention.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_of_a_released_name_is_purged_and_its_token_still_rises() {
    let place = Place::on_standalone();
    let config = MongoConfig::from_url(&StoreUrl::parse(&place.url).unwrap()).unwrap();
    let store = MongoStore::connect(config.retention(SECOND).unwrap()).await.unwrap();
    let locks = Locks::new(Backend::lease(store)).unwrap();
    let held = locks.mutex("released").acquire().await.unwrap();
    let last = held.token();
    held.release().await.unwrap();
    assert!(place.lock("released").await.is_some(), "a released name keeps its token for a while");
    let permit = locks.semaphore("released", 2).acquire().await.unwrap();
    let last_permit = permit.token();
    permit.release().await.unwrap();
    let database = place.database().await;
    until_indexed(&database).await;
    let queues = database.collection::<Document>("distributed.locks.queues");
    eventually("both are purged", || async {
        let pool = queues.find_one(doc! { "_id": "semaphore:released" }).await.unwrap();
        place.lock("released").await.is_none() && pool.is_none()
    })
    .await;
    assert!(locks.mutex("released").acquire().await.unwrap().token() > last);
    assert!(locks.semaphore("released", 2).acquire().await.unwrap().token() > last_permit);
}

/// A document whose token is ahead of the clock must outlast the difference.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_ahead_of_the_clock_is_not_purged() {
    let place = Place::on_standalone();
    let database = place.database().await;
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
    // Another one, released later, is purged meanwhile.
    locks.mutex("marker").acquire().await.unwrap().release().await.unwrap();
    eventually("the marker is purged", || async { place.lock("marker").await.is_none() }).await;
    let held = within("a grant", locks.mutex("ahead").acquire()).await.unwrap();
    assert_eq!(held.token().get(), u64::try_from(ahead + 2).unwrap());
}

/// The clock is set back, a holder dies, and the TTL index deletes its document: neither the clock nor the document
/// remembers the last token, but whoever saw the clock before does, and tells those who come later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_though_the_clock_was_set_back_and_the_document_is_gone() {
    let server = MongoServer::configure().movable_clock().start();
    let place = Place::on_movable(&server.url());
    let (holder, witness) =
        (place.locks_with(expiring(150 * MS).auto_extend(false)).await, place.locks().await);
    // Given back while the clock is right: what merely expired is held again once the clock is set back.
    let before = place.locks().await.mutex("back").acquire().await.unwrap();
    let mut last = before.token();
    before.release().await.unwrap();
    let database = place.database().await;
    until_indexed(&database).await;
    server.set_clock_offset("-3600");
    let held = within("a grant", holder.mutex("back").acquire()).await.unwrap();
    assert!(held.token() > last);
    last = held.token();
    std::mem::forget(held);
    until_deleted_as_expired(&database, "back").await;
    let held = within("a grant", witness.mutex("back").acquire()).await.unwrap();
    assert!(
        held.token() > last,
        "who connected before the clock was set back gave {} after {last}",
        held.token()
    );
    last = held.token();
    held.release().await.unwrap();
    database.collection::<Document>("distributed.locks").delete_many(doc! {}).await.unwrap();
    let clock = database.collection::<Document>("distributed.locks.queues");
    eventually("the clock is written down", || async {
        clock.find_one(doc! { "_id": "clock" }).await.unwrap().is_some()
    })
    .await;
    let late = place.locks().await;
    let held = within("a grant", late.mutex("back").acquire()).await.unwrap();
    assert!(held.token() > last, "who connected later gave {} after {last}", held.token());
    held.release().await.unwrap();
}

/// Nobody is left who saw the clock before it was set back: a replica set remembers by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_set_remembers_its_clock_without_a_witness() {
    let set = MongoReplicaSet::start_with(1, || MongoServer::configure().movable_clock());
    let place = Place::on_movable(&set.url());
    let gone = place.locks().await;
    let last = gone.mutex("alone").acquire().await.unwrap().token();
    gone.shutdown().await.unwrap();
    drop(gone);
    let database = place.database().await;
    database.collection::<Document>("distributed.locks").delete_many(doc! {}).await.unwrap();
    set.members()[0].set_clock_offset("-3600");
    let hello = || async { database.run_command(doc! { "hello": 1 }).await.unwrap() };
    let was = i64::try_from(last.get()).unwrap();
    eventually("the server reads its clock", || async {
        hello().await.get_datetime("localTime").unwrap().timestamp_millis() < was - 3_000_000
    })
    .await;
    let held = within("a grant", place.locks().await.mutex("alone").acquire()).await.unwrap();
    assert!(held.token() > last, "{} after {last}", held.token());
    held.release().await.unwrap();
}
