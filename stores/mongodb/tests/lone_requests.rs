//! Attempts and releases that are sent alone: what they cost the server, and what a release finds that comes too late.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::bare_store::BareStore;
use common::{MS, SECOND, TestDatabase, connect, eventually, until_indexed};
use distlock_core::store::{Attempt, Backend, Claim, Lease, LeaseStore, Released};
use distlock_core::{FencingToken, Kind, LockId};
use distlock_testkit::servers::{MongoReplicaSet, MongoServer};
use mongodb::bson::{Document, doc};

/// A server that deletes no expired documents.
fn without_ttl_monitor() -> MongoReplicaSet {
    let args = ["--setParameter", "ttlMonitorEnabled=false"];
    MongoReplicaSet::start_with(1, || MongoServer::configure().args(args))
}

fn granted(attempt: &Attempt) -> FencingToken {
    match attempt {
        Attempt::Granted { token, .. } => *token,
        busy => panic!("{busy:?}"),
    }
}

async fn release(store: &dyn LeaseStore, claim: &Claim, token: FencingToken) -> Released {
    store.release(&[Lease::of(claim, token)]).await.unwrap().pop().unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lone_attempt_or_release_needs_no_query_plan() {
    let test_db = TestDatabase::on_replica_set();
    let (bare, database) = (BareStore::new(&test_db).await, test_db.database().await);
    granted(&bare.ask(&bare.claim(Kind::Mutex, "first", SECOND)).await);
    until_indexed(&database).await;
    database.run_command(doc! { "profile": 2 }).await.unwrap();
    for _ in ["a new name", "a known name"] {
        let claim = bare.claim(Kind::Mutex, "planned", 60 * SECOND);
        let token = granted(&bare.ask(&claim).await);
        assert_eq!(release(&*bare.store, &claim, token).await, Released::Done { woke: false });
    }
    database.run_command(doc! { "profile": 0 }).await.unwrap();
    let profile = database.collection::<Document>("system.profile");
    let ours = doc! { "command.findAndModify": "distributed.locks" };
    let planned = doc! { "command.findAndModify": "distributed.locks", "planSummary": { "$ne": "IDHACK" } };
    assert_eq!(profile.count_documents(ours).await.unwrap(), 4);
    assert_eq!(profile.find_one(planned).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lone_release_of_a_hold_that_is_gone_changes_nothing() {
    let set = without_ttl_monitor();
    let test_db = TestDatabase::on(&set.url());
    let bare = BareStore::new(&test_db).await;
    let Backend::Lease(store) = connect(&test_db.url).await.unwrap() else { panic!("a lease store") };

    let never_held = bare.claim(Kind::Mutex, "never", SECOND);
    assert_eq!(release(&*store, &never_held, FencingToken::new(1)).await, Released::NotYours);
    assert_eq!(test_db.lock("never").await, None);

    let expired = bare.claim(Kind::Mutex, "expired", 50 * MS);
    let token = granted(&bare.ask(&expired).await);
    let before = test_db.lock("expired").await;
    let next = bare.claim(Kind::Mutex, "beside", 60 * SECOND);
    eventually("the hold has expired", || async {
        let now = doc! { "_id": "expired", "$expr": { "$lte": ["$expiresAt", "$$NOW"] } };
        let locks = test_db.database().await.collection::<Document>("distributed.locks");
        locks.find_one(now).await.unwrap().is_some()
    })
    .await;
    assert_eq!(release(&*store, &expired, token).await, Released::NotYours);
    assert_eq!(test_db.lock("expired").await, before);

    let token = granted(&bare.ask(&next).await);
    let other = next.clone().with_lock_id(LockId::from_stored("bare#ffff-ff"));
    let before = test_db.lock("beside").await;
    assert_eq!(release(&*store, &other, token).await, Released::NotYours);
    assert_eq!(test_db.lock("beside").await, before);
    assert_eq!(release(&*store, &next, token).await, Released::Done { woke: false });
    assert_eq!(release(&*store, &next, token).await, Released::NotYours, "it was released already");
}
