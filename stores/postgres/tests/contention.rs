//! Many clients on the same rows: no deadlock, no lost notification, no failure by serialization.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{TestSchema, locks, postgres_store, server, wait_for_waiters, within};
use distlock_core::store::{Attempt, Claim, Lease, LeaseStore};
use distlock_core::{Kind, LockId, LockIds, Resource};
use distlock_testkit::servers::PostgresServer;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_serializable_by_default_costs_only_retries() {
    let test_schema = TestSchema::new();
    let settings = [("default_transaction_isolation", "'serializable'")];
    let url = test_schema.as_role_with(&settings, &test_schema.url("postgres", &server().url()));
    let inside = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (locks, inside) = (locks(&url).await, Arc::clone(&inside));
        tasks.spawn(async move {
            for _ in 0..25 {
                let guard = locks.semaphore("s", 1).acquire().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.unwrap();
            }
        });
    }
    within("all of them", Duration::from_secs(60), tasks.join_all()).await;
}

fn claim(kind: Kind, name: impl Into<Arc<str>>, lock_id: LockId) -> Claim {
    Claim::new(Resource::new(kind, name).unwrap(), lock_id, Duration::from_secs(60))
}

/// Stores lock the same rows, each batch in another order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_in_opposite_orders_never_deadlock() {
    // Shorter than the time for which a statement waits for a row.
    let own = PostgresServer::configure().setting("deadlock_timeout", "10ms").start();
    let mut tasks = tokio::task::JoinSet::new();
    for backwards in [false, true, false, true] {
        let store = postgres_store(&own.url()).await;
        tasks.spawn(async move {
            let ids = LockIds::new("batch");
            for _ in 0..60 {
                for kind in [Kind::Mutex, Kind::Semaphore] {
                    let mut names: Vec<u32> = (0..40).collect();
                    fastrand::shuffle(&mut names);
                    if backwards {
                        names.reverse();
                    }
                    let claims: Vec<Claim> =
                        names.iter().map(|n| claim(kind, format!("row/{n}"), ids.next())).collect();
                    let answers = store.try_acquire(&claims).await.unwrap();
                    let leases: Vec<Lease> = claims
                        .iter()
                        .zip(answers)
                        .filter_map(|(claim, answer)| match answer.unwrap() {
                            Attempt::Granted { token, .. } => Some(Lease::of(claim, token)),
                            _ => None,
                        })
                        .collect();
                    store.renew(&leases).await.unwrap();
                    store.release(&leases).await.unwrap();
                }
            }
        });
    }
    within("all of them", Duration::from_secs(60), tasks.join_all()).await;
    // The server logs each deadlock that it resolves.
    assert!(!own.log().contains("deadlock detected"), "{}", own.log_tail());
}

/// A release that grants to several waiters notifies each of them: PostgreSQL does not evaluate rows that are never read, and
/// would not send their notifications.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_grants_to_many_waiters_notifies_all_of_them() {
    let test_schema = TestSchema::new();
    for scheme in ["postgres", "postgres+advisory"] {
        let url = test_schema.url(scheme, &server().url());
        let holder = locks(&url).await;
        let all = holder.semaphore("granted together", 8).acquire_many(8).await.unwrap();
        let mut waiters = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let locks = locks(&url).await;
            waiters.spawn(async move {
                let guard = locks.semaphore("granted together", 8).acquire().await.unwrap();
                (guard, std::time::Instant::now(), locks)
            });
        }
        wait_for_waiters(&holder, "granted together", 8).await;
        // All have just sent their claims: none would send it again for most of a second.
        let released = std::time::Instant::now();
        all.release().await.unwrap();
        for (guard, granted, _) in waiters.join_all().await {
            let late = granted - released;
            assert!(late < Duration::from_millis(800), "{scheme}: a waiter was notified {late:?} late");
            guard.release().await.unwrap();
        }
    }
}
