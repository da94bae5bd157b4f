//! The load of processes that wait for one lock, counted by the server.

use std::time::Instant;

use crate::common::{SECOND, database_on, eventually, lease_locks, session_locks};
use distlock_core::Locks;
use distlock_core::store::Query;
use distlock_testkit::servers::MysqlServer;

/// Each has a store and an engine of its own, as a process has.
const PROCESSES: usize = 8;

fn statements(server: &MysqlServer) -> f64 {
    let row = server.sql("SHOW GLOBAL STATUS LIKE 'Questions'").remove(0);
    row[1].as_ref().unwrap().parse().unwrap()
}

/// Statements per second and waiting process.
async fn load(server: &MysqlServer, holder: &Locks, waiters: Vec<Locks>) -> f64 {
    let guard = holder.mutex("a").acquire().await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    let all = waiters.len();
    for locks in waiters {
        tasks.spawn(async move { locks.mutex("a").acquire().await.map(drop) });
    }
    eventually("all wait", async || {
        holder.inspect(&Query::named("a")).await.unwrap()[0].waiters.len() == all
    })
    .await;
    // The pauses between two questions have grown by then.
    tokio::time::sleep(2 * SECOND).await;
    let (begun, before) = (Instant::now(), statements(server));
    tokio::time::sleep(2 * SECOND).await;
    let load = (statements(server) - before) / begun.elapsed().as_secs_f64() / all as f64;
    assert!(!guard.is_lost());
    tasks.shutdown().await;
    load
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_load_of_waiting_processes_is_small_and_that_of_get_lock_smaller() {
    // Of its own, since all its statements are counted.
    let server = MysqlServer::start();
    let url = server.url_of("mysql", &database_on(&server));
    let mut waiters = Vec::new();
    for _ in 0..PROCESSES {
        waiters.push(lease_locks(&url).await);
    }
    let polling = load(&server, &lease_locks(&url).await, waiters).await;
    let url = server.url_of("mysql+session", &database_on(&server));
    let mut waiters = Vec::new();
    for _ in 0..PROCESSES {
        waiters.push(session_locks(&url).await);
    }
    let queued = load(&server, &session_locks(&url).await, waiters).await;
    println!("statements per second and waiting process: {polling:.2} lease table, {queued:.2} GET_LOCK");
    assert!(polling < 50.0, "{polling}");
    assert!(queued < 3.0, "{queued}");
}
