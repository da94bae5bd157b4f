//! More processes wait for one mutex than its wait queue has room for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::{eventually, locks, within};
use distlock_core::store::Query;
use distlock_testkit::servers::PostgresServer;
use tokio::task::JoinSet;

/// More than [`MOST_WAITERS`].
const CLIENTS: usize = 160;
const MOST_WAITERS: usize = 128;
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
