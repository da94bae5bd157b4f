//! Mutexes shared with programs that follow the same format and know nothing about us.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::bare_store::BareStore;
use common::foreign_client::ForeignClient;
use common::{MS, SECOND, TestDatabase, eventually, expiring, records, until_waiting, within};
use distlock_core::Kind;
use distlock_core::store::{Attempt, Lease, Released};
use mongodb::bson::{Document, doc};

const FIELDS: [&str; 5] = ["_id", "acquiredAt", "expiresAt", "fencingToken", "lockId"];

fn fields(document: &Document) -> Vec<&str> {
    let mut fields: Vec<&str> = document.keys().map(String::as_str).collect();
    fields.sort_unstable();
    fields
}

/// Readers of the format reject unknown fields: no update may add one, held or released, with or without waiters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_document_has_the_five_fields_of_the_format_and_no_other() {
    let test_db = TestDatabase::on_replica_set();
    let (one, other) = (test_db.locks().await, test_db.locks().await);
    let held = one.mutex("shared").acquire().await.unwrap();
    let document = test_db.lock("shared").await.unwrap();
    assert_eq!(fields(&document), FIELDS);
    assert_eq!(document.get_str("lockId").unwrap(), held.lock_id().as_str());
    assert_eq!(document.get_i64("fencingToken").unwrap(), i64::try_from(held.token().get()).unwrap());
    let (acquired, expires) =
        (document.get_datetime("acquiredAt").unwrap(), document.get_datetime("expiresAt").unwrap());
    assert_eq!(expires.timestamp_millis() - acquired.timestamp_millis(), 30_000);

    let waiter = tokio::spawn(async move { other.mutex("shared").acquire().await.unwrap() });
    until_waiting(&one, "shared", 1).await;
    let document = test_db.lock("shared").await.unwrap();
    assert_eq!(
        (fields(&document).as_slice(), document.get_str("lockId").unwrap()),
        (&FIELDS[..], held.lock_id().as_str())
    );

    held.release().await.unwrap();
    let held = within("a handoff", waiter).await.unwrap();
    let document = test_db.lock("shared").await.unwrap();
    assert_eq!(
        (fields(&document).as_slice(), document.get_str("lockId").unwrap()),
        (&FIELDS[..], held.lock_id().as_str())
    );
    assert_eq!(document.get_i64("fencingToken").unwrap(), i64::try_from(held.token().get()).unwrap());

    held.release().await.unwrap();
    let tombstone = test_db.lock("shared").await.unwrap();
    assert_eq!(fields(&tombstone), ["_id", "acquiredAt", "fencingToken", "lockId"]);
    assert_eq!(tombstone.get_str("lockId").unwrap(), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_and_own_clients_exclude_each_other() {
    let test_db = TestDatabase::on_replica_set();
    let locks = test_db.locks().await;
    let other = ForeignClient::new(&test_db.database().await, "other");
    let mutex = locks.mutex("shared");

    // Our tombstone reads as free.
    let held = mutex.acquire().await.unwrap();
    assert!(other.try_acquire("shared", SECOND).await.is_none());
    held.release().await.unwrap();
    let handle = other.try_acquire("shared", 30 * SECOND).await.expect("a released lock is free");

    // Their hold excludes us, is shown, can be renewed, and ends when they release it.
    assert!(mutex.try_acquire().await.unwrap().is_none());
    assert_eq!(records(&locks, "shared").await[0].holders[0].lock_id.as_str(), handle.lock_id);
    assert!(other.renew(&handle, 30 * SECOND).await);
    assert!(other.release(handle).await);
    let held = mutex.try_acquire().await.unwrap().expect("they deleted it");
    held.release().await.unwrap();

    // Expiry, in both directions.
    let plain = test_db.locks_with(expiring(200 * MS).auto_extend(false)).await;
    let lost = plain.mutex("shared").acquire().await.unwrap();
    let taken = within("the foreign client is granted", other.acquire("shared", 300 * MS)).await;
    assert!(lost.is_lost());
    let held = within("we are granted", mutex.acquire()).await.unwrap();
    assert!(
        !other.renew(&taken, SECOND).await && !other.release(taken).await,
        "a lost handle reached our lock"
    );
    assert!(!held.is_lost());
    held.release().await.unwrap();
}

/// A foreign release deletes the document and wakes no waiter: our waiter polls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_waiter_acquires_a_lock_that_a_foreign_client_releases() {
    let test_db = TestDatabase::on_replica_set();
    let locks = test_db.locks().await;
    let other = ForeignClient::new(&test_db.database().await, "other");
    let handle = other.acquire("shared", 30 * SECOND).await;
    let waiting = {
        let locks = locks.clone();
        tokio::spawn(async move { (locks.mutex("shared").acquire().await.unwrap(), Instant::now()) })
    };
    until_waiting(&locks, "shared", 1).await;
    // Our waiter must not disturb the foreign holder.
    assert!(other.renew(&handle, 30 * SECOND).await);
    let released = Instant::now();
    assert!(other.release(handle).await, "our waiter took the lock from its holder");
    let (held, granted) = within("we are granted", waiting).await.unwrap();
    assert!(granted - released < 2 * SECOND, "{:?} after they released", granted - released);
    held.release().await.unwrap();
}

/// Both kinds of clients contend for one mutex.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_and_own_clients_never_hold_at_once() {
    let test_db = TestDatabase::on_replica_set();
    let inside = Arc::new(AtomicU32::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let (ours, theirs) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let (locks, inside, stop, ours) = (test_db.locks().await, inside.clone(), stop.clone(), ours.clone());
        tasks.push(tokio::spawn(async move {
            while !stop.load(Ordering::SeqCst) {
                let held = locks.mutex("shared").acquire().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                tokio::time::sleep(MS).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                held.release().await.unwrap();
                ours.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(20 * MS).await;
            }
        }));
    }
    for n in 0..2 {
        let other = ForeignClient::new(&test_db.database().await, &format!("other-{n}"));
        let (inside, stop, theirs) = (inside.clone(), stop.clone(), theirs.clone());
        tasks.push(tokio::spawn(async move {
            while !stop.load(Ordering::SeqCst) {
                let handle = other.acquire("shared", 30 * SECOND).await;
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                tokio::time::sleep(MS).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                assert!(other.release(handle).await);
                theirs.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(20 * MS).await;
            }
        }));
    }
    eventually("both kinds held it a few times", || async {
        ours.load(Ordering::SeqCst) >= 20 && theirs.load(Ordering::SeqCst) >= 20
    })
    .await;
    stop.store(true, Ordering::SeqCst);
    for task in tasks {
        within("an end of the contest", task).await.unwrap();
    }
}

/// Their tokens start at one in a new document. Ours follow the clock and keep rising.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_tokens_rise_although_a_foreign_client_deletes_the_document() {
    let test_db = TestDatabase::on_replica_set();
    let locks = test_db.locks().await;
    let other = ForeignClient::new(&test_db.database().await, "other");
    let mut last = 0;
    for _ in 0..5 {
        let held = locks.mutex("counted").acquire().await.unwrap();
        assert!(held.token().get() > last, "{} after {last}", held.token());
        last = held.token().get();
        held.release().await.unwrap();
        let handle = other.acquire("counted", SECOND).await;
        assert!(u64::try_from(handle.token).unwrap() > last, "theirs continues from ours");
        assert!(other.release(handle).await);
        let fresh = other.acquire("counted", SECOND).await;
        assert_eq!(fresh.token, 1, "theirs starts again");
        assert!(other.release(fresh).await);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The document of a held lock is deleted, for instance by an operator. The release reports the loss, with and without a
/// waiter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_whose_document_was_deleted_is_not_handed_off() {
    let test_db = TestDatabase::on_replica_set();
    let bare = BareStore::new(&test_db).await;
    for name in ["alone", "with a waiter"] {
        // Without overtaking, so that the holder is in the wait queue.
        let first = bare.waiting(Kind::Mutex, name, bare.ids.next(), 60 * SECOND).with_no_overtaking(true);
        let Attempt::Granted { token, .. } = bare.ask(&first).await else { panic!("a new name is free") };
        if name == "with a waiter" {
            let second = first.clone().with_lock_id(bare.ids.next());
            assert!(matches!(bare.ask(&second).await, Attempt::Busy { .. }));
        }
        let locks = test_db.database().await.collection::<Document>("distributed.locks");
        assert_eq!(locks.delete_one(doc! { "_id": name }).await.unwrap().deleted_count, 1);
        let released = bare.store.release(&[Lease::of(&first, token)]).await.unwrap().pop().unwrap();
        assert_eq!(released.unwrap(), Released::NotYours, "{name}");
    }
}
