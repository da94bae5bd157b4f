//! Tokens of one name never go back: many clients, and the sweep beside them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{
    Claims, SECOND, attempt, config, database_on, granted, lease_store, release, server, session_locks,
};
use distlock_core::store::{Attempt, Store};
use distlock_mysql::MysqlStore;

const CLIENTS: usize = 16;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sixteen_clients_never_see_a_token_go_back_in_20_000_grants() {
    const GRANTS: u64 = 20_000;
    let url = server().url_of("mysql", &database_on(server()));
    let (last, grants) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut tasks = Vec::new();
    for n in 0..CLIENTS {
        let (url, last, grants) = (url.clone(), Arc::clone(&last), Arc::clone(&grants));
        tasks.push(tokio::spawn(async move {
            let store = lease_store(&url).await;
            let claims = Claims::new(&format!("c{n}"));
            while grants.load(Ordering::SeqCst) < GRANTS {
                let claim = claims.mutex("one");
                match attempt(&store, &claim).await.unwrap() {
                    Attempt::Granted { token, .. } => {
                        let before = last.swap(token.get(), Ordering::SeqCst);
                        assert!(before < token.get(), "token {token} after {before}");
                        grants.fetch_add(1, Ordering::SeqCst);
                        release(&store, &claim).await.unwrap();
                    }
                    _ => tokio::time::sleep(Duration::from_micros(some_micros())).await,
                }
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert!(grants.load(Ordering::SeqCst) >= GRANTS);
}

/// Rarely enough that the holders get on.
fn some_micros() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    20_000 + std::collections::hash_map::RandomState::new().build_hasher().finish() % 100_000
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tokens_of_get_lock_never_go_back() {
    const GRANTS: u64 = 3000;
    let url = server().url_of("mysql+session", &database_on(server()));
    let (last, grants) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut tasks = Vec::new();
    for _ in 0..CLIENTS {
        let (url, last, grants) = (url.clone(), Arc::clone(&last), Arc::clone(&grants));
        tasks.push(tokio::spawn(async move {
            let locks = session_locks(&url).await;
            while grants.fetch_add(1, Ordering::SeqCst) < GRANTS {
                let guard = locks.mutex("one").acquire().await.unwrap();
                let token = guard.token().get();
                let before = last.swap(token, Ordering::SeqCst);
                assert!(before < token, "token {token} after {before}");
                guard.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sweep_deletes_unused_rows_alone_and_tokens_still_rise() {
    let database = database_on(server());
    let url = server().url_of("mysql", &database);
    let store = MysqlStore::connect(config(&url).retention(SECOND).unwrap()).await.unwrap();
    let claims = Claims::new("sweep");
    let mut before = Vec::new();
    for n in 0..20 {
        for claim in [claims.mutex(&format!("old/{n}")), claims.permit(&format!("old/{n}"), 2)] {
            before.push((claim.clone(), granted(&store, &claim).await));
            release(&store, &claim).await.unwrap();
        }
    }
    let held = [claims.mutex("held"), claims.permit("held", 2)];
    for claim in &held {
        granted(&store, claim).await;
    }
    // A token ahead of the clock must stay, or the next one would be lower.
    server().sql(&format!(
        "UPDATE {database}.distribute_lock SET token = token + 100000000 WHERE name = 'old/0'"
    ));
    let mut deleted = 0;
    common::eventually("forty rows but one are deleted", async || {
        deleted += store.sweep().await.unwrap();
        deleted >= 39
    })
    .await;
    assert_eq!(deleted, 39);
    let count = |table: &str| server().value(&format!("SELECT COUNT(*) FROM {database}.{table}"));
    assert_eq!((count("distribute_lock"), count("distribute_lock_pool")), ("2".to_owned(), "1".to_owned()));
    for (claim, token) in before {
        let next = claim.clone().with_lock_id(claims.mutex("x").lock_id);
        assert!(granted(&store, &next).await > token);
    }
    assert!(!store.inspect(&distlock_core::store::Query::named("held")).await.unwrap().is_empty());
}
