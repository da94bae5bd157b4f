//! `inspect` with missing rights or unreadable documents: it shows the rest and warns about what is missing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::bare_store::BareStore;
use common::log_capture::{capture_logs, logged};
use common::restricted_users::{auth_url, user_with};
use common::{TestDatabase, connect};
use distlock_core::store::Query;
use distlock_core::{ErrorKind, Kind, Locks};
use mongodb::bson::{DateTime, Document, doc};

async fn shown(locks: &Locks, query: &Query) -> Vec<(Kind, String)> {
    let records = locks.inspect(query).await.unwrap();
    records.into_iter().map(|record| (record.kind, record.name.unwrap())).collect()
}

/// Documents that lack a field.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_document_that_cannot_be_read_does_not_hide_the_others() {
    capture_logs();
    for test_db in [TestDatabase::on_standalone(), TestDatabase::on_replica_set()] {
        let locks = test_db.locks().await;
        let _held = (
            locks.mutex("good").acquire().await.unwrap(),
            locks.semaphore("good", 1).acquire().await.unwrap(),
            locks.rw_lock("well").write().await.unwrap(),
        );
        let database = test_db.database().await;
        let soon = DateTime::from_millis(DateTime::now().timestamp_millis() + 60_000);
        let mutexes = [
            doc! { "_id": "no token", "lockId": "x", "acquiredAt": DateTime::now(), "expiresAt": soon },
            doc! { "_id": "no lock id", "fencingToken": 1_i64, "acquiredAt": DateTime::now(), "expiresAt": soon },
        ];
        database.collection::<Document>("distributed.locks").insert_many(mutexes).await.unwrap();
        let entry = doc! { "lockId": "x", "weight": 1, "expiresAt": soon };
        let pools = [
            doc! { "_id": "semaphore:no capacity", "queue": [], "holders": [entry.clone()] },
            doc! { "_id": "rwlock:no token", "capacity": 1, "queue": [], "holders": [entry.clone()] },
            doc! { "_id": "turn:no date", "capacity": 1, "queue": [entry], "holders": [] },
            doc! { "_id": "mutex:no date", "queue": [{ "lockId": "x" }] },
        ];
        database.collection::<Document>("distributed.locks.queues").insert_many(pools).await.unwrap();
        let all = [
            (Kind::Mutex, "good".to_owned()),
            (Kind::RwLock, "well".to_owned()),
            (Kind::Semaphore, "good".to_owned()),
        ];
        assert_eq!(shown(&locks, &Query::default()).await, all);
        for unreadable in
            ["no token", "no lock id", "semaphore:no capacity", "rwlock:no token", "turn:no date"]
        {
            let name = format!("{unreadable:?}");
            assert!(logged("cannot be read", &name) > 0, "no warning about {name}");
        }
    }
}

/// Rights to the mutexes are enough to acquire one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_with_rights_to_mutexes_only_sees_and_breaks_them() {
    capture_logs();
    let rights: &[&str] = &["find", "insert", "update", "remove"];
    user_with("mutexes", "mutexes", &[("distributed.locks", rights)]).await;
    let locks = Locks::new(connect(&auth_url("mutexes", "s3cret", "mutexes")).await.unwrap()).unwrap();
    let _held = locks.mutex("a").acquire().await.unwrap();
    let only = [(Kind::Mutex, "a".to_owned())];
    for query in
        [Query::default(), Query::named("a"), Query::prefixed("a"), Query::default().with_kind(Kind::Mutex)]
    {
        assert_eq!(shown(&locks, &query).await, only, "{query:?}");
    }
    assert!(logged("cannot be shown", "mutexes.distributed.locks.queues") > 0);
    // A query for pools fails; it does not return an empty list.
    let pools = Query::default().with_kind(Kind::Semaphore);
    let store = BareStore::at(&auth_url("mutexes", "s3cret", "mutexes")).await.store;
    assert_eq!(store.inspect(&pools).await.unwrap_err().kind(), ErrorKind::Denied);
    assert_eq!(locks.break_lock(Kind::Semaphore, "a").await.unwrap_err().kind(), ErrorKind::Denied);
    let broken = locks.break_lock(Kind::Mutex, "a").await.unwrap();
    assert_eq!(broken.len(), 1);
    assert!(shown(&locks, &Query::default()).await.is_empty());
}

/// The same with rights to the pools.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_with_rights_to_pools_only_sees_and_breaks_them() {
    capture_logs();
    let rights: &[&str] = &["find", "insert", "update", "remove"];
    user_with("pools", "pools", &[("distributed.locks.queues", rights)]).await;
    let locks = Locks::new(connect(&auth_url("pools", "s3cret", "pools")).await.unwrap()).unwrap();
    let _held = locks.semaphore("a", 1).acquire().await.unwrap();
    assert_eq!(shown(&locks, &Query::default()).await, [(Kind::Semaphore, "a".to_owned())]);
    assert!(logged("cannot be shown", "pools.distributed.locks") > 0);
    let mutexes = Query::default().with_kind(Kind::Mutex);
    let store = BareStore::at(&auth_url("pools", "s3cret", "pools")).await.store;
    assert_eq!(store.inspect(&mutexes).await.unwrap_err().kind(), ErrorKind::Denied);
    assert_eq!(locks.break_lock(Kind::Semaphore, "a").await.unwrap().len(), 1);
    user_with("nothing", "nothing", &[("other", rights)]).await;
    let locks = Locks::new(connect(&auth_url("nothing", "s3cret", "nothing")).await.unwrap()).unwrap();
    assert_eq!(locks.inspect(&Query::default()).await.unwrap_err().kind(), ErrorKind::Denied);
}
