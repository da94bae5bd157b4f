//! Forced release: the holders are told, and those who wait.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::bare::Bare;
use common::other_program::OtherProgram;
use common::{MS, Place, SECOND, within};
use distlock_core::store::{Attempt, Claim, Inbox, Wake, WakeStream};
use distlock_core::{Kind, LockId};
use mongodb::bson::{Document, doc};

const KINDS: [Kind; 3] = [Kind::Mutex, Kind::RwLock, Kind::Semaphore];

async fn next(wakes: &mut WakeStream) -> Wake {
    let next = std::future::poll_fn(|context| wakes.as_mut().poll_next(context));
    within("a wake-up", next).await.expect("an open stream")
}

/// So many wake-ups, whatever their order.
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

async fn grant(bare: &Bare, claim: &Claim) -> LockId {
    assert!(matches!(bare.ask(claim).await, Attempt::Granted { .. }), "{claim:?}");
    claim.lock_id.clone()
}

/// Whether it ever waited or not, and whether anybody waits for it or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_is_told_at_once_that_its_lock_was_broken() {
    let place = Place::on_one_node();
    let (holder, operator) = (Bare::new(&place).await, Bare::new(&place).await);
    let mut wakes = holder.store.subscribe(&Inbox::new(holder.ids.prefix())).await.unwrap();
    for kind in KINDS {
        for has_waiter in [false, true] {
            for may_wait in [false, true] {
                let name = format!("{has_waiter} {may_wait}");
                let everything = if kind == Kind::Mutex { 1 } else { 10 };
                let claim = match may_wait {
                    false => holder.claim(kind, &name, 60 * SECOND),
                    true => holder.waiting(kind, &name, holder.ids.next(), 60 * SECOND),
                };
                let held = grant(&holder, &claim.with_weight(everything)).await;
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
async fn every_holder_of_a_pool_is_told() {
    let place = Place::on_one_node();
    let (one, other) = (Bare::new(&place).await, Bare::new(&place).await);
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
    // Its time is over: there is nothing to take from it, and nothing to tell.
    grant(&one, &one.claim(Kind::Semaphore, "many", MS)).await;
    tokio::time::sleep(20 * MS).await;
    let resource = one.claim(Kind::Semaphore, "many", SECOND).resource;
    assert_eq!(one.store.break_lock(&resource).await.unwrap().len(), 4);
    for (stream, held) in streams.iter_mut().zip(held) {
        assert_eq!(broken_and_woken(stream, 2).await, (held, Vec::new()));
    }
}

/// Nobody can be told whose lock id does not say where it is; nothing is left in the second collection for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_of_another_program_is_broken_without_a_trace() {
    let place = Place::on_one_node();
    let bare = Bare::new(&place).await;
    let database = place.database().await;
    let other = OtherProgram::new(&database, "other");
    other.acquire("foreign", 60 * SECOND).await;
    let resource = bare.claim(Kind::Mutex, "foreign", SECOND).resource;
    assert_eq!(bare.store.break_lock(&resource).await.unwrap().len(), 1);
    grant(&bare, &bare.claim(Kind::Mutex, "foreign", SECOND)).await;
    let queues = database.collection::<Document>("distributed.locks.queues");
    assert_eq!(queues.count_documents(doc! {}).await.unwrap(), 0);
}
