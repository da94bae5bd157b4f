//! The tokens of one name rise with every grant.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use common::{TestSchema, locks, server};

const CLIENTS: usize = 16;

/// Sixteen clients acquire one mutex until it was granted this often. Checks exclusion and tokens, and returns the
/// grants of each client.
async fn acquire_repeatedly(url: &str, grants: usize) -> Vec<usize> {
    let last = Arc::new(AtomicU64::new(0));
    let (granted, inside) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        let locks = locks(url).await;
        let (last, granted, inside) = (Arc::clone(&last), Arc::clone(&granted), Arc::clone(&inside));
        clients.spawn(async move {
            let mut own = 0;
            while granted.load(Ordering::SeqCst) < grants {
                let guard = locks.mutex("contended").acquire().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                let token = guard.token().get();
                let before = last.swap(token, Ordering::SeqCst);
                assert!(token > before, "{token} after {before}");
                granted.fetch_add(1, Ordering::SeqCst);
                own += 1;
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.unwrap();
            }
            own
        });
    }
    clients.join_all().await
}

/// PostgreSQL computes the row of an `INSERT … ON CONFLICT` before it detects the conflict: a token from there may be old by the
/// time it is granted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_token_of_twenty_thousand_grants_is_lower_than_the_one_before() {
    let url = TestSchema::new().url("postgres", &server().url());
    let shares = acquire_repeatedly(&url, 20_000).await;
    let (fewest, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
    assert!(*most <= fewest * 2, "some clients were granted far more often than others: {shares:?}");
}

/// Tokens of advisory locks are drawn after the lock is granted, so they have the order of the grants.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_token_of_an_advisory_lock_is_lower_than_the_one_before() {
    let url = TestSchema::new().url("postgres+advisory", &server().url());
    let shares = acquire_repeatedly(&url, 3_000).await;
    assert!(shares.iter().sum::<usize>() >= 3_000, "{shares:?}");
}
