//! A pushed grant belongs to one attempt of its waiter and ends with its window. However late the waiter receives it, it
//! never holds together with the next holder.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::bare_store::BareStore;
use common::{MS, SECOND, TestDatabase, connect, eventually, expiring, until_waiting, within};
use distlock_core::faults::{Fault, FaultyStore, Verb, delay_wakes};
use distlock_core::store::{Attempt, Backend, Claim, Inbox, Lease, PushedGrant, Wake, WakeStream};
use distlock_core::{FencingToken, Kind, LockId, Locks};
use distlock_testkit::actors::{Actor, ActorConfig, TestOptions, run_if_actor};
use distlock_testkit::history::{LockSpec, Recorder};
use mongodb::bson::{Document, doc};

const KINDS: [Kind; 3] = [Kind::Mutex, Kind::RwLock, Kind::Semaphore];

fn spec(kind: Kind, name: &str) -> LockSpec {
    match kind {
        Kind::Mutex => LockSpec::mutex(name),
        Kind::RwLock => LockSpec::write(name),
        _ => LockSpec::permits(name, 1, 1),
    }
}

/// Runs a case for all kinds concurrently.
async fn for_each_kind<F>(play: impl Fn(Kind) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let playing: Vec<_> = KINDS.into_iter().map(|kind| tokio::spawn(play(kind))).collect();
    for played in playing {
        played.await.unwrap();
    }
}

/// For this long: while the second client holds, the waiter does not.
async fn never_two(kind: Kind, waits: Duration, second: &distlock_core::Guard, granted: impl Fn() -> bool) {
    let started = Instant::now();
    while started.elapsed() < waits {
        // In this order: a waiter that is granted after the second client lost its lock is correct.
        let (granted, lost) = (granted(), second.is_lost());
        assert!(lost || !granted, "{kind}: two inside, {:?} after the waiter resumed", started.elapsed());
        assert!(!lost, "{kind}: the second holder lost its lock");
        tokio::time::sleep(2 * MS).await;
    }
}

#[test]
fn actor_entry() {
    run_if_actor(|url| async move { connect(&url).await.unwrap() });
}

/// The waiter is paused, the holder releases, and after the window another client acquires the lock. When the waiter
/// resumes, the old grant and its next attempt race.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_paused_for_longer_than_its_grant_never_holds_with_the_next_holder() {
    const ROUNDS: usize = 5;
    for_each_kind(|kind| async move {
        let test_db = TestDatabase::on_replica_set();
        let (holder, other) = (test_db.locks().await, test_db.locks().await);
        let logs = std::env::temp_dir().join(format!("distlock-{}-{kind}", std::process::id()));
        std::fs::create_dir_all(&logs).unwrap();
        let director = Recorder::create(&logs, "director");
        // An attempt that was in flight when the waiter was paused may be granted after the release, for the whole expiry. The next
        // client waits for its end then.
        let terms = TestOptions::with_expiry(10 * SECOND);
        let role = ActorConfig {
            name: "waiter".into(),
            logs: logs.clone(),
            options: terms,
            address: Some(test_db.url.clone()),
        };
        let mut waiter = Actor::spawn_process("actor_entry", &role, &director);
        for round in 0..ROUNDS {
            let name = format!("stopped {round}");
            let spec = spec(kind, &name);
            let held = spec.acquire(&holder).await.unwrap();
            let mut waiting = Box::pin(waiter.acquire(1, &spec));
            until_waiting(&holder, &name, 1).await;
            // At different points of its attempts.
            tokio::time::sleep(Duration::from_millis(230 * u64::try_from(round).unwrap())).await;
            waiter.pause().await;
            held.release().await.unwrap();
            tokio::time::sleep(2150 * MS).await;
            let second = within("the next holder", spec.acquire(&other)).await.unwrap();
            waiter.resume();
            let granted = Arc::new(AtomicU64::new(0));
            let told = Arc::clone(&granted);
            let waiting = tokio::spawn(async move {
                let token = (&mut waiting).await;
                told.store(token, Ordering::SeqCst);
                token
            });
            never_two(kind, 1500 * MS, &second, || granted.load(Ordering::SeqCst) > 0).await;
            let last = second.token().get();
            second.release().await.unwrap();
            assert!(within("the waiter is granted", waiting).await.unwrap() > last);
            waiter.release(1).await;
        }
        waiter.shutdown().await;
        std::fs::remove_dir_all(logs).unwrap();
    })
    .await;
}

/// The message of a grant arrives after its window. There is no other fault.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_whose_message_arrives_after_its_window_is_rejected() {
    for_each_kind(|kind| async move {
        for late_ms in [1200, 2150, 3000, 4100] {
            let mut tries = 0;
            while !is_woken_late(kind, late_ms).await {
                tries += 1;
                assert!(tries < 10, "{kind}: the waiter always tries in time");
            }
        }
    })
    .await;
}

/// False: the waiter tried again within the window, so it holds the lock correctly.
async fn is_woken_late(kind: Kind, late_ms: u64) -> bool {
    let test_db = TestDatabase::on_replica_set();
    let theirs = test_db.locks().await;
    let Backend::Lease(inner) = connect(&test_db.url).await.unwrap() else { panic!("no leases") };
    let (late, delay) = delay_wakes(inner);
    let (late, faults) = FaultyStore::new(Arc::new(late));
    let ours = Locks::builder(Backend::lease(late)).options(expiring(500 * MS)).build().unwrap();
    let spec = spec(kind, "late");
    let held = spec.acquire(&theirs).await.unwrap();
    let mut waiting = {
        let spec = spec.clone();
        tokio::spawn(async move { spec.acquire(&ours).await.unwrap() })
    };
    until_waiting(&theirs, "late", 1).await;
    tokio::time::sleep(100 * MS).await;
    delay.set(Duration::from_millis(late_ms));
    // Its next attempt is sent after the window.
    faults.next(Verb::Acquire, 1, Fault::none().delay_before(700 * MS));
    held.release().await.unwrap();
    let second = tokio::select! {
        biased;
        second = within("the next holder", spec.acquire(&theirs)) => second.unwrap(),
        _ = &mut waiting => return false,
    };
    never_two(kind, Duration::from_millis(late_ms + 700), &second, || waiting.is_finished()).await;
    second.release().await.unwrap();
    assert!(!within("the waiter is granted", waiting).await.unwrap().is_lost());
    true
}

async fn next(wakes: &mut WakeStream) -> Wake {
    let next = std::future::poll_fn(|context| wakes.as_mut().poll_next(context));
    within("a wake-up", next).await.expect("an open stream")
}

async fn pushed(wakes: &mut WakeStream, lock_id: &LockId) -> PushedGrant {
    match next(wakes).await {
        Wake::Granted { lock_id: told, grant, .. } if told == *lock_id => grant,
        other => panic!("{other:?}"),
    }
}

fn numbered(claim: &Claim, attempt: u64) -> Claim {
    let mut claim = claim.clone();
    claim.waiting.as_mut().unwrap().attempt = attempt;
    claim
}

/// The waiter sent three attempts: the grant has the number of the third and counts from it. An older attempt that is
/// applied later changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pushed_grant_carries_the_number_of_the_newest_attempt() {
    let test_db = TestDatabase::on_replica_set();
    let bare = BareStore::new(&test_db).await;
    let mut wakes = bare.store.subscribe(&Inbox::new(bare.ids.prefix())).await.unwrap();
    for kind in KINDS {
        for newest in [1, 3] {
            let name = format!("numbered {newest}");
            let held =
                bare.claim(kind, &name, 60 * SECOND).with_weight(if kind == Kind::Mutex { 1 } else { 10 });
            assert!(matches!(bare.ask(&held).await, Attempt::Granted { .. }));
            let waiter = bare.waiting(kind, &name, bare.ids.next(), 60 * SECOND);
            let mut sent = Instant::now();
            for attempt in 1..=newest {
                tokio::time::sleep(30 * MS).await;
                sent = Instant::now();
                assert!(matches!(bare.ask(&numbered(&waiter, attempt)).await, Attempt::Busy { .. }));
            }
            tokio::time::sleep(30 * MS).await;
            if newest > 1 {
                assert!(matches!(bare.ask(&numbered(&waiter, 2)).await, Attempt::Busy { .. }));
            }
            bare.store.release(&[Lease::of(&held, FencingToken::new(0))]).await.unwrap();
            let grant = pushed(&mut wakes, &waiter.lock_id).await;
            assert_eq!(grant.attempt, newest, "{kind}");
            assert!(grant.after >= 29 * MS && grant.after <= sent.elapsed(), "{kind}: {:?}", grant.after);
            bare.store.release(&[Lease::of(&waiter, grant.token)]).await.unwrap();
        }
    }
}

/// The queue entry after an attempt that is applied after a later one of the same lock id.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_attempt_does_not_change_the_entry_of_a_later_one() {
    let test_db = TestDatabase::on_replica_set();
    let bare = BareStore::new(&test_db).await;
    let held = bare.claim(Kind::Semaphore, "queue", 60 * SECOND).with_weight(10);
    assert!(matches!(bare.ask(&held).await, Attempt::Granted { .. }));
    let waiter = bare.waiting(Kind::Semaphore, "queue", bare.ids.next(), 60 * SECOND);
    let queues = test_db.database().await.collection::<Document>("distributed.locks.queues");
    let entry = || async {
        let pool = queues.find_one(doc! { "_id": "semaphore:queue" }).await.unwrap().unwrap();
        pool.get_array("queue").unwrap().clone()
    };
    assert!(matches!(bare.ask(&numbered(&waiter, 5)).await, Attempt::Busy { .. }));
    let newest = entry().await;
    tokio::time::sleep(20 * MS).await;
    assert!(matches!(bare.ask(&numbered(&waiter, 4)).await, Attempt::Busy { .. }));
    assert_eq!(entry().await, newest);
    assert!(matches!(bare.ask(&numbered(&waiter, 6)).await, Attempt::Busy { .. }));
    assert_ne!(entry().await, newest);
}

/// A waiter that was handed the lock sends no further request for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pushed_grant_needs_no_further_request() {
    let test_db = TestDatabase::on_replica_set();
    let (holder, waiter) = (test_db.locks().await, test_db.locks().await);
    let database = test_db.database().await;
    for kind in KINDS {
        let mut without_request = 0;
        for round in 0..10 {
            let name = format!("{kind} {round}");
            let spec = spec(kind, &name);
            let held = spec.acquire(&holder).await.unwrap();
            let waiting = {
                let (spec, waiter) = (spec.clone(), waiter.clone());
                tokio::spawn(async move { spec.acquire(&waiter).await.unwrap() })
            };
            until_waiting(&holder, &name, 1).await;
            let id = if kind == Kind::Mutex { name.clone() } else { format!("{kind}:{name}") };
            let collection =
                if kind == Kind::Mutex { "distributed.locks" } else { "distributed.locks.queues" };
            let collection = database.collection::<Document>(collection);
            held.release().await.unwrap();
            let next = within("the waiter is granted", waiting).await.unwrap();
            // A waiter that tried again holds for its whole expiry; one that was woken has the window.
            let found = collection.find_one(doc! { "_id": id }).await.unwrap().unwrap();
            let hold = match found.get_array("holders") {
                Ok(holders) => holders[0].as_document().unwrap().clone(),
                Err(_) => found,
            };
            let (from, until) =
                (hold.get_datetime("acquiredAt").unwrap(), hold.get_datetime("expiresAt").unwrap());
            without_request += usize::from(until.timestamp_millis() - from.timestamp_millis() <= 2000);
            next.release().await.unwrap();
            eventually("it is free", || async { common::records(&holder, &name).await.is_empty() }).await;
        }
        assert!(without_request >= 5, "{kind}: {without_request} of 10 grants needed no further request");
    }
}
