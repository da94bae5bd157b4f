//! Many claims and leases in one request: few commands, and each item has its own answer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::collections::HashSet;

use common::bare::Bare;
use common::{MS, Place, SECOND, commands, eventually};
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

/// What a server was asked while something was done: single steps, updates, reads.
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

/// A server that nobody else asks anything: one wait for the disk for all of them, however many they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_claims_are_one_update_and_one_read() {
    let server = MongoServer::start();
    let place = Place::on(&server.url());
    let (bare, database) = (Bare::new(&place).await, place.database().await);
    // The indexes first: what makes them is no concern of this test.
    bare.ask(&bare.claim(Kind::Mutex, "first", SECOND)).await;
    eventually("the indexes are made", || async {
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
            assert_eq!(taken.await, [0, 1, 1], "to take 200 of {kind}");
        }
        let tokens: HashSet<FencingToken> = held.iter().map(|lease| lease.token).collect();
        assert!(tokens.iter().all(|token| token.get() > 0));

        let extended = cost(&database, async {
            for answer in bare.store.renew(&held).await.unwrap() {
                assert_eq!(answer.unwrap(), Renewal::Renewed);
            }
        });
        assert_eq!(extended.await, [0, 1, 0], "to extend 200 of {kind}");

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

/// What expired meanwhile was not ours to give back, alone or among others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_expired_is_told_apart_in_a_batch() {
    let place = Place::on_standalone();
    let bare = Bare::new(&place).await;
    for kind in [Kind::Mutex, Kind::Semaphore] {
        let mut claims: Vec<Claim> =
            (0..6).map(|n| bare.claim(kind, &format!("some-{n}"), 60 * SECOND)).collect();
        for short in [1, 4] {
            claims[short].expiry = 50 * MS;
        }
        let held = leases(&claims, bare.store.try_acquire(&claims).await.unwrap());
        // The server's clock decides; somebody else could take one of them now.
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

/// So was what an operator broke, what was given back before, and what somebody else has by now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_broken_or_given_back_before_is_told_apart_in_a_batch() {
    let place = Place::on_standalone();
    let bare = Bare::new(&place).await;
    let claims: Vec<Claim> =
        (0..300).map(|n| bare.claim(Kind::Mutex, &format!("some-{n}"), 60 * SECOND)).collect();
    let held = leases(&claims, bare.store.try_acquire(&claims).await.unwrap());
    let (broken, given_back, taken) = (1, 150, 299);
    for gone in [broken, taken] {
        assert_eq!(bare.store.break_lock(&held[gone].resource).await.unwrap().len(), 1);
    }
    bare.store.release(&held[given_back..=given_back]).await.unwrap().pop().unwrap().unwrap();
    let other = bare.claim(Kind::Mutex, "some-299", 60 * SECOND);
    assert!(matches!(bare.ask(&other).await, Attempt::Granted { .. }));
    // Longer ago than the release below takes, even on a slow machine.
    tokio::time::sleep(2 * SECOND).await;
    for (n, answer) in bare.store.release(&held).await.unwrap().into_iter().enumerate() {
        let expected = if [broken, given_back, taken].contains(&n) {
            Released::NotYours
        } else {
            Released::Done { woke: false }
        };
        assert_eq!(answer.unwrap(), expected, "{n}");
    }
    assert!(matches!(bare.ask(&other).await, Attempt::Granted { .. }), "it was taken from another");
}

/// Whoever asks for many at once knows which names have a document. That can be wrong: documents are purged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_that_went_meanwhile_are_made_again() {
    let place = Place::on_standalone();
    let (bare, database) = (Bare::new(&place).await, place.database().await);
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

/// Two claims of one name in one request: one has it, the other finds it taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_twice_in_a_batch_has_one_holder() {
    let place = Place::on_standalone();
    let bare = Bare::new(&place).await;
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

/// Something that was never there, and something that is no pool at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn releasing_what_is_not_there_makes_nothing_and_changes_nothing() {
    let place = Place::on_standalone();
    let (bare, database) = (Bare::new(&place).await, place.database().await);
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

/// Two upserts of a new name meet all the time: one of them has it, and nobody hears of an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upserts_that_meet_are_no_error() {
    let place = Place::on_standalone();
    let bares = [Bare::new(&place).await, Bare::new(&place).await, Bare::new(&place).await];
    for round in 0..20 {
        for kind in [Kind::Mutex, Kind::Semaphore] {
            // Three lone ones and three batches, all of new names.
            let asking = bares.iter().enumerate().map(|(n, bare)| {
                let count = if (round + n) % 2 == 0 { 1 } else { 8 };
                let claims: Vec<Claim> = (0..count)
                    .map(|name| {
                        let claim = bare.claim(kind, &format!("met-{round}-{name}"), 60 * SECOND);
                        claim.with_capacity(1)
                    })
                    .collect();
                async move { bare.store.try_acquire(&claims).await.unwrap() }
            });
            let mut holders = [0; 8];
            for answers in futures_util::future::join_all(asking).await {
                for (name, answer) in answers.into_iter().enumerate() {
                    holders[name] += u32::from(matches!(answer.unwrap(), Attempt::Granted { .. }));
                }
            }
            assert_eq!(holders, [1; 8], "holders of {kind} in round {round}");
        }
    }
}
