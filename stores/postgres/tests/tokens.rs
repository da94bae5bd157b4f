//! Tokens of one name rise, whoever is granted and however often.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use common::{TestSchema, locks, server};

const CLIENTS: usize = 16;
const GRANTS: usize = 20_000;

/// PostgreSQL forms the row of an `INSERT … ON CONFLICT` before it finds out about the conflict: a token drawn there
/// may be old by the time it is granted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn not_one_token_of_twenty_thousand_grants_goes_back() {
    let url = TestSchema::new().url("postgres", &server().url());
    let last = Arc::new(AtomicU64::new(0));
    let granted = Arc::new(AtomicUsize::new(0));
    let inside = Arc::new(AtomicUsize::new(0));
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        let url = url.clone();
        let (last, granted, inside) = (Arc::clone(&last), Arc::clone(&granted), Arc::clone(&inside));
        clients.spawn(async move {
            let locks = locks(&url).await;
            let mut mine = 0;
            while granted.load(Ordering::SeqCst) < GRANTS {
                let guard = locks.mutex("hammered").acquire().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                let token = guard.token().get();
                let before = last.swap(token, Ordering::SeqCst);
                assert!(token > before, "{token} after {before}");
                granted.fetch_add(1, Ordering::SeqCst);
                mine += 1;
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.unwrap();
            }
            mine
        });
    }
    let shares = clients.join_all().await;
    let (fewest, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
    assert!(*most <= fewest * 2, "some were served far more often than others: {shares:?}");
}
