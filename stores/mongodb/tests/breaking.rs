//! Forced release: holders and waiters are woken.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::bare_store::BareStore;
use common::foreign_client::ForeignClient;
use common::{MS, SECOND, TestDatabase, within};
use distlock_core::store::{Attempt, Claim, Inbox, Wake, WakeStream};
use distlock_core::{Kind, LockId};
use mongodb::bson::{Document, doc};

const KINDS: [Kind; 3] = [Kind::Mutex, Kind::RwLock, Kind::Semaphore];

async fn next(wakes: &mut WakeStream) -> Wake {
    let next = std::future::poll_fn(|context| wakes.as_mut().poll_next(context));
    within("a wake-up", next).await.expect("an open stream")
}

/// The lock ids of this many wake-ups, in any order.
async fn broken_and_woken(wakes: &mut WakeStream, count: usize) -> (Vec<LockId>, Vec<LockId>) {
    let (mut broken, mut woken) = (Vec::new(), Vec::new());
    for _ in 0..count {
        match next(wakes).await {
            Wake::Broken { lock_id, .. } => broken.push(lock_id),
            Wake::Retry { lock_id, .. } | Wake::Granted { lock_id, .. } => woken.push(lock_id),
            other => panic!("{other:?}"),
        }
    }
    (broken, woken)
}

async fn grant(bare: &BareStore, claim: &Claim) -> LockId {
    assert!(matches!(bare.ask(claim).await, Attempt::Granted { .. }), "{claim:?}");
    claim.lock_id.clone()
}

/// Whether or not it waited before, and with and without a waiter behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_is_woken_when_its_lock_is_broken() {
    let test_db = TestDatabase::on_replica_set();
    let (holder, operator) = (BareStore::new(&test_db).await, BareStore::new(&test_db).await);
    let mut wakes = holder.store.subscribe(&Inbox::new(holder.ids.prefix())).await.unwrap();
    for kind in KINDS {
        for has_waiter in [false, true] {
            for may_wait in [false, true] {
                let name = format!("{has_waiter} {may_wait}");
                let whole_capacity = if kind == Kind::Mutex { 1 } else { 10 };
                let claim = match may_wait {
                    false => holder.claim(kind, &name, 60 * SECOND),
                    true => holder.waiting(kind, &name, holder.ids.next(), 60 * SECOND),
                };
                let held = grant(&holder, &claim.with_weight(whole_capacity)).await;
                let waiter = holder.waiting(kind, &name, holder.ids.next(), 60 * SECOND);
                if has_waiter {
                    assert!(matches!(holder.ask(&waiter).await, Attempt::Busy { .. }));
                }
                let broken = operator.store.break_lock(&waiter.resource).await.unwrap();
                assert_eq!(broken.len(), 1);
                let told = broken_and_woken(&mut wakes, 1 + usize::from(has_waiter)).await;
                let woken = if has_waiter { vec![waiter.lock_id] } else { Vec::new() };
                assert_eq!(told, (vec![held], woken), "{kind} {name}");
            }
        }
    }
}

/// Several holders of one pool, in different processes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_holder_of_a_broken_pool_is_woken() {
    let test_db = TestDatabase::on_replica_set();
    let (one, other) = (BareStore::new(&test_db).await, BareStore::new(&test_db).await);
    let mut held = Vec::new();
    let mut streams = Vec::new();
    for bare in [&one, &other] {
        streams.push(bare.store.subscribe(&Inbox::new(bare.ids.prefix())).await.unwrap());
        let mut ids = Vec::new();
        for _ in 0..2 {
            ids.push(grant(bare, &bare.claim(Kind::Semaphore, "many", 60 * SECOND)).await);
        }
        held.push(ids);
    }
    // An expired holder loses nothing and is not woken.
    grant(&one, &one.claim(Kind::Semaphore, "many", MS)).await;
    tokio::time::sleep(20 * MS).await;
    let resource = one.claim(Kind::Semaphore, "many", SECOND).resource;
    assert_eq!(one.store.break_lock(&resource).await.unwrap().len(), 4);
    for (stream, held) in streams.iter_mut().zip(held) {
        assert_eq!(broken_and_woken(stream, 2).await, (held, Vec::new()));
    }
}

/// A foreign lock id names no inbox, so no message is left in the queue collection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn breaking_a_foreign_lock_leaves_no_message() {
    let test_db = TestDatabase::on_replica_set();
    let bare = BareStore::new(&test_db).await;
    let database = test_db.database().await;
    let other = ForeignClient::new(&database, "other");
    other.acquire("foreign", 60 * SECOND).await;
    let resource = bare.claim(Kind::Mutex, "foreign", SECOND).resource;
    assert_eq!(bare.store.break_lock(&resource).await.unwrap().len(), 1);
    grant(&bare, &bare.claim(Kind::Mutex, "foreign", SECOND)).await;
    let queues = database.collection::<Document>("distributed.locks.queues");
    assert_eq!(queues.count_documents(doc! {}).await.unwrap(), 0);
}
