//! Grants that a release pushes to a waiter: each names its attempt, and a stalled waiter does not accept one that expired.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::time::Duration;

use common::fixtures::LeaseFixture;
use common::{TestSchema, postgres_store, server, wait_for_waiters, within};
use distlock_core::store::{
    Attempt, Backend, Claim, Inbox, Lease, LeaseStore, PushedGrant, Waiting, Wake, WakeStream,
};
use distlock_core::{FencingToken, Kind, LockId, Locks, Resource};
use distlock_postgres::PostgresStore;
use distlock_testkit::actors::TestOptions;
use distlock_testkit::conformance::{Harness, run};
use distlock_testkit::history::LockSpec;
use futures_util::StreamExt;

const LIMIT: Duration = Duration::from_secs(25);
const LONG: Duration = Duration::from_secs(60);
const KINDS: [Kind; 3] = [Kind::Mutex, Kind::RwLock, Kind::Semaphore];

fn claim(kind: Kind, id: &str) -> Claim {
    Claim::new(Resource::new(kind, "m").unwrap(), LockId::from_stored(id), LONG)
}

fn attempt(kind: Kind, number: u64, inbox: &str) -> Claim {
    let waiting = Waiting::new(Inbox::new(inbox), LONG, number);
    claim(kind, "waiter").with_waiting(waiting)
}

/// Sends a claim alone or in a batch with a claim for another name: these are two statements.
async fn send(store: &PostgresStore, in_batch: bool, claimed: Claim) -> Attempt {
    let mut claims = vec![claimed];
    if in_batch {
        let resource = Resource::new(claims[0].resource.kind(), "other").unwrap();
        claims.insert(0, claim(Kind::Mutex, "another").with_resource(resource));
    }
    store.try_acquire(&claims).await.unwrap().pop().unwrap().unwrap()
}

async fn release(store: &PostgresStore, kind: Kind) {
    let lease = Lease::of(&claim(kind, "holder"), FencingToken::new(1));
    store.release(&[lease]).await.unwrap().pop().unwrap().unwrap();
}

async fn pushed(messages: &mut WakeStream) -> PushedGrant {
    match within("a grant", LIMIT, messages.next()).await {
        Some(Wake::Granted { lock_id, grant, .. }) if lock_id.as_str() == "waiter" => grant,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_pushed_grant_names_the_newest_attempt_and_counts_from_its_decision() {
    for (kind, in_batch) in KINDS.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let store = postgres_store(&TestSchema::new().url("postgres", &server().url())).await;
        let mut messages = store.subscribe(&Inbox::new("newest")).await.unwrap();
        send(&store, in_batch, claim(kind, "holder")).await;
        for (number, inbox) in [(7, "older"), (9, "newest"), (8, "older"), (7, "older")] {
            let answer = send(&store, in_batch, attempt(kind, number, inbox)).await;
            assert!(matches!(answer, Attempt::Busy { .. }), "{answer:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        release(&store, kind).await;
        let grant = pushed(&mut messages).await;
        assert_eq!(grant.attempt, 9, "{kind}, in a batch: {in_batch}");
        // Attempts that are applied late have no effect: the time counts from the decision on attempt 9.
        assert!(
            grant.after >= Duration::from_millis(300),
            "{kind}, in a batch: {in_batch}: {:?}",
            grant.after
        );
    }
}

/// A program of an earlier version wrote the wait queue: its entries have no attempt number, and no waiter accepts attempt 0.
#[tokio::test]
async fn an_entry_without_a_number_is_pushed_as_attempt_zero() {
    for kind in KINDS {
        let test_schema = TestSchema::new();
        let store = postgres_store(&test_schema.url("postgres", &server().url())).await;
        let mut messages = store.subscribe(&Inbox::new("newest")).await.unwrap();
        send(&store, false, claim(kind, "holder")).await;
        send(&store, false, attempt(kind, 9, "newest")).await;
        let (table, column) = match kind {
            Kind::Mutex => ("distribute_lock", "waiters"),
            _ => ("distribute_lock_pool", "queue"),
        };
        server().sql(&format!(
            "UPDATE {}.{table} SET {column} = (SELECT jsonb_agg(e - 'attempt') FROM jsonb_array_elements({column}) e)",
            test_schema.name
        ));
        release(&store, kind).await;
        assert_eq!(pushed(&mut messages).await.attempt, 0, "{kind}");
    }
}

/// The waiter accepts a grant that names its newest attempt, and sends no further request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pushed_grant_spares_its_waiter_a_request() {
    for spec in [LockSpec::mutex("m"), LockSpec::write("w"), LockSpec::permits("s", 1, 1)] {
        let url = TestSchema::new().url("postgres", &server().url());
        let (store, other) = (postgres_store(&url).await, postgres_store(&url).await);
        let locks = |store: &PostgresStore| Locks::new(Backend::lease(store.clone())).unwrap();
        let (holder, waiter) = (locks(&other), locks(&store));
        let mut requests = Vec::new();
        // A waiter also sends its claim once a second, which may happen just then.
        for _ in 0..5 {
            let held = spec.acquire(&holder).await.unwrap();
            let waiting = tokio::spawn(spec.acquire(&waiter).into_future());
            wait_for_waiters(&holder, spec.name(), 1).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            let before = store.statements();
            held.release().await.unwrap();
            let granted = within("the lock", LIMIT, waiting).await.unwrap().unwrap();
            requests.push(store.statements() - before);
            granted.release().await.unwrap();
        }
        assert!(requests.contains(&0), "{spec:?}: {requests:?} requests after the grants");
    }
}

#[test]
fn actor_entry() {
    distlock_testkit::conformance::run_if_actor::<LeaseFixture>();
}

/// A process is stopped while it waits. The lock is granted to it, the grant expires, another client acquires the lock, and the
/// process resumes.
#[test]
fn a_waiter_that_was_stopped_for_longer_than_its_grant_does_not_hold_beside_the_next_holder() {
    async fn play(harness: Harness<LeaseFixture>, spec: LockSpec) {
        let (holder, next) = (harness.locks().await, harness.locks().await);
        for round in 0..4 {
            let held = spec.acquire(&holder).await.unwrap();
            // If it is stopped while an attempt is in flight, that attempt is granted, and lasts for the expiry.
            let terms = TestOptions { expiry: Duration::from_secs(5), ..harness.long_lease() };
            let mut waiter = harness.actor("stopped", terms);
            let waiting = tokio::spawn(waiter.acquire(1, &spec));
            harness.wait_for_waiters(&holder, &spec, 1).await;
            waiter.pause().await;
            held.release().await.unwrap();
            tokio::time::sleep(Duration::from_millis(2150)).await;
            let second = harness.within("the next holder", spec.acquire(&next).into_future()).await.unwrap();
            waiter.resume();
            for _ in 0..150 {
                tokio::time::sleep(Duration::from_millis(10)).await;
                assert!(!second.is_lost(), "{spec:?}, round {round}: {:?}", second.lost().await);
                assert!(!waiting.is_finished(), "{spec:?}, round {round}: two holders");
            }
            second.release().await.unwrap();
            harness.within("the waiter's grant", waiting).await.unwrap();
            assert!(!waiter.is_lost(1).await);
            waiter.release(1).await;
            waiter.shutdown().await;
        }
    }
    run::<LeaseFixture, _, _>("late_grants::actor_entry", |harness| async move {
        let specs = vec![LockSpec::mutex("m"), LockSpec::write("w"), LockSpec::permits("s", 1, 1)];
        harness.for_each(specs, play).await;
    });
}
