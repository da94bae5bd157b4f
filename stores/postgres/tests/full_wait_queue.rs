//! More processes wait for one mutex than its wait queue has room for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::{TestSchema, eventually, locks, postgres_store, server, within};
use distlock_core::store::{Attempt, Claim, Inbox, Lease, LeaseStore, Query, Waiting, Wake};
use distlock_core::{FencingToken, Kind, LockId, Resource};
use distlock_postgres::PostgresStore;
use distlock_testkit::proxy::{AfterLoss, Proxy};
use distlock_testkit::servers::PostgresServer;
use futures_util::StreamExt;
use tokio::task::JoinSet;

/// More than [`MOST_WAITERS`].
const CLIENTS: usize = 100;
const MOST_WAITERS: usize = 64;
const LIMIT: Duration = Duration::from_secs(60);

/// None fails, and each gets the mutex: those without an entry in the queue ask until they have one. No two have it at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_of_more_waiting_clients_than_the_queue_has_room_for_gets_the_mutex() {
    let server = PostgresServer::configure().setting("max_connections", "400").start();
    let holder = locks(&server.url()).await;
    let held = holder.mutex("m").acquire().await.unwrap();
    let inside = Arc::new(AtomicU32::new(0));
    let mut waiting = JoinSet::new();
    for _ in 0..CLIENTS {
        let (locks, inside) = (locks(&server.url()).await, Arc::clone(&inside));
        waiting.spawn(async move {
            let guard = locks.mutex("m").acquire().into_future().await.unwrap();
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
            tokio::time::sleep(Duration::from_millis(1)).await;
            inside.fetch_sub(1, Ordering::SeqCst);
            let token = guard.token();
            guard.release().await.unwrap();
            (token, locks)
        });
    }
    let queue = async || {
        let found = holder.inspect(&Query::named("m")).await.unwrap();
        found.iter().map(|record| record.waiters.len()).sum::<usize>()
    };
    eventually("the queue is full", async || queue().await == MOST_WAITERS).await;
    held.release().await.unwrap();
    let mut tokens = Vec::new();
    while let Some(served) = within("the others", LIMIT, waiting.join_next()).await {
        tokens.push(served.unwrap().0);
    }
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), CLIENTS);
}

fn claim(id: &str) -> Claim {
    Claim::new(Resource::new(Kind::Mutex, "m").unwrap(), LockId::from_stored(id), LIMIT)
}

fn waits(id: &str) -> Claim {
    claim(id).with_waiting(Waiting::new(Inbox::new("ours"), LIMIT, 1))
}

async fn send(store: &PostgresStore, claim: Claim) -> Attempt {
    store.try_acquire(&[claim]).await.unwrap().pop().unwrap().unwrap()
}

async fn release(store: &PostgresStore, id: &str) {
    let lease = Lease::of(&claim(id), FencingToken::new(1));
    store.release(&[lease]).await.unwrap().pop().unwrap().unwrap();
}

fn has_entry(answer: &Attempt) -> bool {
    matches!(answer, Attempt::Busy { poll_after: None, .. })
}

/// Each notification wakes every session that listens: a thousand that wait for nothing would be most of the server's work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_without_an_entry_in_a_full_queue_does_not_listen_and_one_with_an_entry_is_notified() {
    let (schema, other_schema) = (TestSchema::new(), "other");
    let store = postgres_store(&schema.url("postgres", &server().url())).await;
    let others = schema.url("postgres", &server().url());
    let others = others.replace("application_name=", &format!("application_name={other_schema}"));
    let others = postgres_store(&others).await;
    let mut messages = store.subscribe(&Inbox::new("ours")).await.unwrap();
    let last = format!(
        "SELECT query FROM pg_stat_activity WHERE application_name = '{}' AND query LIKE '%LISTEN%'",
        schema.name
    );
    send(&others, claim("holder")).await;
    let queued: Vec<String> = (0..MOST_WAITERS).map(|n| format!("waiter {n}")).collect();
    for id in &queued {
        assert!(has_entry(&send(&others, waits(id)).await));
    }
    assert!(server().value(&last).starts_with("LISTEN"));
    for attempt in ["by the claim", "by the read"] {
        assert!(!has_entry(&send(&store, waits("late")).await), "{attempt}");
        eventually("it does not listen", async || server().value(&last).starts_with("UNLISTEN")).await;
    }
    // Room for it, also by the smallest number below which a process finds room.
    for id in &queued[MOST_WAITERS / 2..] {
        release(&others, id).await;
    }
    assert!(has_entry(&send(&store, waits("late")).await));
    assert!(server().value(&last).starts_with("LISTEN"));
    release(&others, "holder").await;
    for id in &queued[..MOST_WAITERS / 2] {
        release(&others, id).await;
    }
    let woken = async {
        loop {
            match messages.next().await {
                Some(Wake::Granted { lock_id, .. }) if lock_id.as_str() == "late" => return,
                Some(_) => {}
                None => panic!("the subscription ended"),
            }
        }
    };
    within("the grant", LIMIT, woken).await;
    release(&store, "late").await;
}

/// The connection for notifications does not answer when it is to listen again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_listener_is_closed_and_delays_a_claim_for_a_moment_only() {
    let (schema, proxy) = (TestSchema::new(), Proxy::start(server().addr()));
    let store = postgres_store(&schema.url("postgres", &proxy.through(&server().url()))).await;
    let others = postgres_store(&schema.url("postgres", &server().url())).await;
    let mut messages = store.subscribe(&Inbox::new("ours")).await.unwrap();
    send(&others, claim("holder")).await;
    for n in 0..MOST_WAITERS {
        send(&others, waits(&format!("waiter {n}"))).await;
    }
    assert!(!has_entry(&send(&store, waits("late")).await));
    let last = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{}' AND query LIKE 'UNLISTEN%'",
        schema.name
    );
    eventually("it does not listen", async || server().value(&last) == "1").await;
    for n in MOST_WAITERS / 2..MOST_WAITERS {
        release(&others, &format!("waiter {n}")).await;
    }
    proxy.lose_reply_to("LISTEN", AfterLoss::Hang);
    assert!(has_entry(&within("an answer", LIMIT, send(&store, waits("late"))).await));
    let ended = async { while messages.next().await.is_some() {} };
    within("the end of the subscription", LIMIT, ended).await;
    assert!(store.subscribe(&Inbox::new("ours")).await.is_ok());
}
