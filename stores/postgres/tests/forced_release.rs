//! Forced release: each holder is notified at once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::time::{Duration, Instant};

use common::fixtures::AdvisoryFixture;
use common::{TestSchema, eventually, locks, postgres_store, server, within};
use distlock_core::store::{Attempt, Claim, Inbox, LeaseStore, LossReason, Query, Store, Wake, WakeStream};
use distlock_core::{Kind, LockId, LockIds, Resource};
use distlock_postgres::PostgresStore;
use distlock_testkit::conformance::run;
use distlock_testkit::history::LockSpec;
use futures_util::StreamExt;

const LIMIT: Duration = Duration::from_secs(25);

async fn hold(store: &PostgresStore, kind: Kind, lock_id: LockId) {
    let claim = Claim::new(Resource::new(kind, "m").unwrap(), lock_id, Duration::from_secs(60))
        .with_capacity(if kind == Kind::Mutex { 1 } else { 3 });
    let answer = store.try_acquire(&[claim]).await.unwrap().pop().unwrap().unwrap();
    assert!(matches!(answer, Attempt::Granted { .. }), "{answer:?}");
}

async fn broken(messages: &mut WakeStream) -> LockId {
    match within("a notification", LIMIT, messages.next()).await {
        Some(Wake::Broken { lock_id, .. }) => lock_id,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn each_holder_of_a_broken_lock_is_notified_whatever_its_id() {
    for kind in [Kind::Mutex, Kind::Semaphore] {
        let store = postgres_store(&TestSchema::new().url("postgres", &server().url())).await;
        for label in ["web-3:812", "größe - x#0 ' -- ", "a#0123456789abcdef-1"] {
            let (ids, others) = (LockIds::new(label), LockIds::new(label));
            let mut messages = store.subscribe(&Inbox::new(ids.prefix())).await.unwrap();
            let mut theirs = store.subscribe(&Inbox::new(others.prefix())).await.unwrap();
            let held = ids.next();
            hold(&store, kind, held.clone()).await;
            if kind == Kind::Semaphore {
                hold(&store, kind, others.next()).await;
                // Not the id of an engine: it has no inbox.
                hold(&store, kind, LockId::from_stored("foreign")).await;
            }
            let resource = Resource::new(kind, "m").unwrap();
            let before = store.statements();
            let taken = store.break_lock(&resource).await.unwrap();
            assert_eq!(store.statements(), before + 1, "one round trip");
            assert_eq!(broken(&mut messages).await, held);
            if kind == Kind::Semaphore {
                assert_eq!(taken.len(), 3);
                assert!(taken.iter().any(|holder| Some(holder.lock_id.as_str()) == Some("foreign")));
                broken(&mut theirs).await;
            }
            // Without a holder no notification is sent.
            assert!(store.break_lock(&resource).await.unwrap().is_empty());
        }
    }
}

/// The value of another program may be longer than a notification.
#[tokio::test]
async fn a_holder_whose_id_does_not_fit_into_a_notification_can_be_broken() {
    let store = postgres_store(&TestSchema::new().url("postgres", &server().url())).await;
    for kind in [Kind::Mutex, Kind::Semaphore] {
        let id = LockId::from_stored(format!("{}#0123456789abcdef-1", "x".repeat(9_000)));
        assert!(id.inbox().is_some());
        hold(&store, kind, id.clone()).await;
        let taken = store.break_lock(&Resource::new(kind, "m").unwrap()).await.unwrap();
        assert_eq!(taken.iter().map(|holder| &holder.lock_id).collect::<Vec<_>>(), [&id]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_of_broken_advisory_locks_are_notified_at_once() {
    let url = TestSchema::new().url("postgres+advisory", &server().url());
    let other = locks(&url).await;
    for kind in [Kind::Mutex, Kind::RwLock, Kind::Semaphore] {
        let holder = locks(&url).await;
        let guard = match kind {
            Kind::Mutex => holder.mutex("m").acquire().await.unwrap(),
            Kind::RwLock => holder.rw_lock("m").read().await.unwrap(),
            _ => holder.semaphore("m", 1).acquire().await.unwrap(),
        };
        let started = Instant::now();
        assert_eq!(other.break_lock(kind, "m").await.unwrap().len(), 1);
        let reason = within("the loss", LIMIT, guard.lost()).await;
        assert!(started.elapsed() < Duration::from_secs(2), "{kind}: notified after {:?}", started.elapsed());
        assert!(matches!(reason, LossReason::NotYours | LossReason::SessionEnded(_)), "{kind}: {reason:?}");
    }
}

/// Sessions that outlive the pause of their client.
type LongSessions = AdvisoryFixture<60>;

#[test]
fn actor_entry() {
    distlock_testkit::conformance::run_if_actor::<LongSessions>();
}

/// A process is stopped while it waits for a permit. The permit is granted to it, broken, and granted to another client. Then
/// the process resumes, and receives both notifications at once.
#[test]
fn a_permit_that_was_granted_and_broken_while_its_waiter_was_stopped_is_lost() {
    run::<LongSessions, _, _>("broken::actor_entry", |harness| async move {
        let (holder, next) = (harness.locks().await, harness.locks().await);
        let spec = LockSpec::permits("s", 1, 1);
        for round in 0..20 {
            let held = spec.acquire(&holder).await.unwrap();
            let mut waiter = harness.actor("stopped", harness.long_lease());
            let waiting = tokio::spawn(waiter.acquire(1, &spec));
            harness.wait_for_waiters(&holder, &spec, 1).await;
            waiter.pause().await;
            held.release().await.unwrap();
            let taken = harness.break_lock(&holder, &spec).await;
            assert_eq!(taken.len(), 1, "the stopped waiter was granted the permit");
            let second = harness.within("the next holder", spec.acquire(&next).into_future()).await.unwrap();
            waiter.resume();
            harness.within("the waiter's grant", waiting).await.unwrap();
            eventually(&format!("round {round}: the permit is lost"), async || waiter.is_lost(1).await).await;
            assert!(!second.is_lost());
            assert_eq!(next.inspect(&Query::named("s")).await.unwrap()[0].holders.len(), 1);
            second.release().await.unwrap();
            waiter.kill().await;
        }
    });
}
