//! Many claims and leases in one request: few commands, and each item has its own answer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::collections::HashSet;

use common::bare_store::BareStore;
use common::{MS, SECOND, TestDatabase, commands, eventually, until_indexed};
use distlock_core::store::{Attempt, Claim, Lease, Released, Renewal};
use distlock_core::{ErrorKind, FencingToken, Kind};
use distlock_testkit::servers::MongoServer;
use mongodb::Database;
use mongodb::bson::{Document, doc};

fn leases(claims: &[Claim], answers: Vec<distlock_core::Result<Attempt>>) -> Vec<Lease> {
    claims
        .iter()
        .zip(answers)
        .map(|(claim, answer)| match answer.unwrap() {
            Attempt::Granted { token, .. } => Lease::of(claim, token),
            busy => panic!("{claim:?}: {busy:?}"),
        })
        .collect()
}

/// The commands a server executed during `work`: `findAndModify`, `update`, `find`.
async fn cost(database: &Database, work: impl Future<Output = ()>) -> [i64; 3] {
    let count = || async {
        [
            commands(database, &["findAndModify"]).await,
            commands(database, &["update"]).await,
            commands(database, &["find"]).await,
        ]
    };
    let before = count().await;
    work.await;
    let after = count().await;
    [0, 1, 2].map(|n| after[n] - before[n])
}

/// Counts on a server of its own. However many claims a batch has, they wait for the disk once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_claims_are_one_update_and_one_read() {
    let server = MongoServer::start();
    let test_db = TestDatabase::on(&server.url());
    let (bare, database) = (BareStore::new(&test_db).await, test_db.database().await);
    // Create the indexes first, so that their commands are not counted.
    bare.ask(&bare.claim(Kind::Mutex, "first", SECOND)).await;
    eventually("the indexes exist", || async {
        let queues = database.collection::<Document>("distributed.locks.queues");
        queues.list_index_names().await.is_ok_and(|names| names.iter().any(|name| name == "purgeAt_ttl"))
    })
    .await;
    for kind in [Kind::Mutex, Kind::Semaphore] {
        let claims: Vec<Claim> =
            (0..200).map(|n| bare.claim(kind, &format!("many-{n}"), 60 * SECOND)).collect();
        let mut held = Vec::new();
        for _ in ["new names", "known names"] {
            bare.store.release(&held).await.unwrap();
            let taken = cost(&database, async {
                held = leases(&claims, bare.store.try_acquire(&claims).await.unwrap());
            });
            assert_eq!(taken.await, [0, 1, 1], "to acquire 200 of {kind}");
        }
        let tokens: HashSet<FencingToken> = held.iter().map(|lease| lease.token).collect();
        assert!(tokens.iter().all(|token| token.get() > 0));

        let renewed = cost(&database, async {
            for answer in bare.store.renew(&held).await.unwrap() {
                assert_eq!(answer.unwrap(), Renewal::Renewed);
            }
        });
        assert_eq!(renewed.await, [0, 1, 0], "to renew 200 of {kind}");

        let released = cost(&database, async {
            for answer in bare.store.release(&held).await.unwrap() {
                assert!(matches!(answer.unwrap(), Released::Done { .. }));
            }
        });
        assert_eq!(released.await, [0, 1, 0], "to release 200 of {kind}");
        for answer in bare.store.release(&held).await.unwrap() {
            assert_eq!(answer.unwrap(), Released::NotYours, "it was released twice");
        }
    }
}

/// A lease that has expired is not ours to renew or release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_leases_are_recognised_in_a_batch() {
    let test_db = TestDatabase::on_standalone();
    let bare = BareStore::new(&test_db).await;
    for kind in [Kind::Mutex, Kind::Semaphore] {
        let mut claims: Vec<Claim> =
            (0..6).map(|n| bare.claim(kind, &format!("some-{n}"), 60 * SECOND)).collect();
        for short in [1, 4] {
            claims[short].expiry = 50 * MS;
        }
        let held = leases(&claims, bare.store.try_acquire(&claims).await.unwrap());
        // The server's clock decides: another client can acquire one of them now.
        eventually("two of them expire", || async {
            let other = bare.claim(kind, "some-1", 10 * MS);
            let free = other.with_capacity(1);
            let seen = bare.store.try_acquire(&[free]).await.unwrap().pop().unwrap();
            match seen {
                Ok(Attempt::Granted { .. }) => true,
                Ok(_) => false,
                // In use with another capacity: still held.
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
                    false
                }
            }
        })
        .await;
        tokio::time::sleep(60 * MS).await;
        let renewed = bare.store.renew(&held).await.unwrap();
        let released = bare.store.release(&held).await.unwrap();
        for (n, (renewed, released)) in renewed.into_iter().zip(released).enumerate() {
            let (renewed, released) = (renewed.unwrap(), released.unwrap());
            if [1, 4].contains(&n) {
                assert_eq!((renewed, released), (Renewal::NotYours, Released::NotYours), "{kind} {n}");
            } else {
                assert_eq!(renewed, Renewal::Renewed, "{kind} {n}");
                assert!(matches!(released, Released::Done { .. }), "{kind} {n}: {released:?}");
            }
        }
    }
}

/// Neither is a lease that was broken, released before, or acquired by another client since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_released_and_reacquired_leases_are_recognised_in_a_batch() {
    let test_db = TestDatabase::on_standalone();
    let bare = BareStore::new(&test_db).await;
    let claims: Vec<Claim> =
        (0..300).map(|n| bare.claim(Kind::Mutex, &format!("some-{n}"), 60 * SECOND)).collect();
    let held = leases(&claims, bare.store.try_acquire(&claims).await.unwrap());
    let (broken, released, reacquired) = (1, 150, 299);
    for gone in [broken, reacquired] {
        assert_eq!(bare.store.break_lock(&held[gone].resource).await.unwrap().len(), 1);
    }
    bare.store.release(&held[released..=released]).await.unwrap().pop().unwrap().unwrap();
    let other = bare.claim(Kind::Mutex, "some-299", 60 * SECOND);
    assert!(matches!(bare.ask(&other).await, Attempt::Granted { .. }));
    // Longer ago than the release below takes, even on a slow machine.
    tokio::time::sleep(2 * SECOND).await;
    for (n, answer) in bare.store.release(&held).await.unwrap().into_iter().enumerate() {
        let expected = if [broken, released, reacquired].contains(&n) {
            Released::NotYours
        } else {
            Released::Done { woke: false }
        };
        assert_eq!(answer.unwrap(), expected, "{n}");
    }
    assert!(matches!(bare.ask(&other).await, Attempt::Granted { .. }), "it was taken from another client");
}

/// The document cache may be wrong: documents are purged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn purged_documents_are_created_again() {
    let test_db = TestDatabase::on_standalone();
    let (bare, database) = (BareStore::new(&test_db).await, test_db.database().await);
    let mut last = FencingToken::new(0);
    for round in 0..3 {
        let claims: Vec<Claim> =
            (0..20).map(|n| bare.claim(Kind::Mutex, &format!("purged-{n}"), 60 * SECOND)).collect();
        let held = leases(&claims, bare.store.try_acquire(&claims).await.unwrap());
        let least = held.iter().map(|lease| lease.token).min().unwrap();
        assert!(least > last, "round {round}: {least} after {last}");
        last = held.iter().map(|lease| lease.token).max().unwrap();
        for answer in bare.store.release(&held).await.unwrap() {
            assert!(matches!(answer.unwrap(), Released::Done { .. }));
        }
        let locks = database.collection::<Document>("distributed.locks");
        let half = doc! { "_id": { "$regex": "^purged-.$" } };
        assert_eq!(locks.delete_many(half).await.unwrap().deleted_count, 10);
        // Tokens of names without a document are the server's clock.
        tokio::time::sleep(2 * MS).await;
    }
}

/// Two claims of one name in one batch: one is granted, the other finds the lock held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_twice_in_a_batch_has_one_holder() {
    let test_db = TestDatabase::on_standalone();
    let bare = BareStore::new(&test_db).await;
    for round in ["new", "known"] {
        let names = ["twice", "once", "twice"];
        let claims = names.map(|name| bare.claim(Kind::Mutex, name, 60 * SECOND));
        let answers: Vec<Attempt> =
            bare.store.try_acquire(&claims).await.unwrap().into_iter().map(Result::unwrap).collect();
        let granted = [0, 1, 2].map(|n| matches!(answers[n], Attempt::Granted { .. }));
        assert_eq!(granted, [true, true, false], "{round}");
        let held = claims.map(|claim| Lease::of(&claim, FencingToken::new(1)));
        let released: Vec<_> =
            bare.store.release(&held).await.unwrap().into_iter().map(Result::unwrap).collect();
        let done = [0, 1, 2].map(|n| matches!(released[n], Released::Done { .. }));
        assert_eq!(done, [true, true, false], "{round}");
    }
}

/// How often the server's TTL monitor has looked for documents to purge.
async fn ttl_passes(database: &Database) -> i64 {
    let status = database.client().database("admin").run_command(doc! { "serverStatus": 1 }).await.unwrap();
    let ttl = status.get_document("metrics").unwrap().get_document("ttl").unwrap();
    ttl.get_i64("passes").unwrap()
}

/// The server purges nothing between the creation of a batch's documents and their update: each of those claims would be
/// sent once more, alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_documents_of_a_batch_are_not_purged() {
    let server = MongoServer::start();
    let test_db = TestDatabase::on(&server.url());
    let (bare, database) = (BareStore::new(&test_db).await, test_db.database().await);
    bare.ask(&bare.claim(Kind::Mutex, "first", SECOND)).await;
    until_indexed(&database).await;
    let (before, first_pass) = (commands(&database, &["findAndModify"]).await, ttl_passes(&database).await);
    let mut batch = 0;
    while ttl_passes(&database).await < first_pass + 5 {
        batch += 1;
        let claims: Vec<Claim> =
            (0..1000).map(|n| bare.claim(Kind::Mutex, &format!("new-{batch}-{n}"), 60 * SECOND)).collect();
        leases(&claims, bare.store.try_acquire(&claims).await.unwrap());
    }
    assert_eq!(commands(&database, &["findAndModify"]).await - before, 0, "claims that were sent alone");
}

/// A pool that does not exist, and a document that is not a pool.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn releasing_a_missing_pool_creates_and_changes_nothing() {
    let test_db = TestDatabase::on_standalone();
    let (bare, database) = (BareStore::new(&test_db).await, test_db.database().await);
    let queues = database.collection::<Document>("distributed.locks.queues");
    let stranger = doc! { "_id": "semaphore:stranger", "queue": "of customers" };
    queues.insert_one(stranger.clone()).await.unwrap();
    let never = |name| Lease::of(&bare.claim(Kind::Semaphore, name, SECOND), FencingToken::new(1));
    for answer in bare.store.release(&[never("nothing"), never("stranger")]).await.unwrap() {
        assert_eq!(answer.unwrap(), Released::NotYours);
    }
    assert_eq!(queues.find_one(doc! { "_id": "semaphore:nothing" }).await.unwrap(), None);
    assert_eq!(queues.find_one(doc! { "_id": "semaphore:stranger" }).await.unwrap(), Some(stranger));
}

/// Concurrent upserts of a new name collide: one claim is granted, and no caller gets an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn colliding_upserts_are_no_error() {
    let test_db = TestDatabase::on_standalone();
    let bares =
        [BareStore::new(&test_db).await, BareStore::new(&test_db).await, BareStore::new(&test_db).await];
    for round in 0..20 {
        for kind in [Kind::Mutex, Kind::Semaphore] {
            // Single claims and batches, all of new names.
            let attempts = bares.iter().enumerate().map(|(n, bare)| {
                let count = if (round + n) % 2 == 0 { 1 } else { 8 };
                let claims: Vec<Claim> = (0..count)
                    .map(|name| {
                        let claim = bare.claim(kind, &format!("collide-{round}-{name}"), 60 * SECOND);
                        claim.with_capacity(1)
                    })
                    .collect();
                async move { bare.store.try_acquire(&claims).await.unwrap() }
            });
            let mut holders = [0; 8];
            for answers in futures_util::future::join_all(attempts).await {
                for (name, answer) in answers.into_iter().enumerate() {
                    holders[name] += u32::from(matches!(answer.unwrap(), Attempt::Granted { .. }));
                }
            }
            assert_eq!(holders, [1; 8], "holders of {kind} in round {round}");
        }
    }
}
