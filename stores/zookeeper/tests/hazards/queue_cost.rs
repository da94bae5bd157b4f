//! What a handoff costs, whatever the number of waiters.

use std::future::IntoFuture;
use std::sync::Arc;

use distlock_core::{Kind, Locks};
use distlock_testkit::servers::ZookeeperServer;
use tokio::task::JoinSet;

use crate::support::{LIMIT, counts, locks, ms, until};

/// Requests of each handoff while this many waiters are served one after the other.
async fn requests_per_handoff(server: &ZookeeperServer, kind: Kind, waiters: usize) -> f64 {
    let engines: Vec<Locks> =
        [locks(&server.url(), ms(60_000)).await, locks(&server.url(), ms(60_000)).await].into();
    let name: Arc<str> = format!("{kind}-{waiters}").into();
    let held = match kind {
        Kind::Mutex => engines[0].mutex(Arc::clone(&name)).acquire().await.unwrap(),
        _ => engines[0].semaphore(Arc::clone(&name), 2).acquire_many(2).await.unwrap(),
    };
    let mut tasks = JoinSet::new();
    for waiter in 0..waiters {
        let (locks, name) = (engines[waiter % 2].clone(), Arc::clone(&name));
        tasks.spawn(async move {
            // Fair: every task queues in the server, not in its process.
            let guard = match kind {
                Kind::Mutex => locks.mutex(name).fair().acquire().timeout(LIMIT).into_future().await.unwrap(),
                _ => locks.semaphore(name, 2).acquire().timeout(LIMIT).into_future().await.unwrap(),
            };
            guard.release().await.unwrap();
        });
    }
    until("all are queued", async || counts(&engines[0], kind, &name).await.1 == waiters).await;
    // Their watches are armed when nothing is sent any more.
    let packets = || server.monitor("zk_packets_received").unwrap();
    let mut before = packets();
    until("the watches are armed", async || {
        tokio::time::sleep(ms(300)).await;
        let now = packets();
        // The two counts themselves, and a heartbeat or a ping at times.
        std::mem::replace(&mut before, now) + 2 >= now
    })
    .await;
    let before = packets();
    held.release().await.unwrap();
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    (packets() - before) as f64 / waiters as f64
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_waiters_cost_the_same_requests_per_handoff_as_four() {
    let server = ZookeeperServer::start();
    for (kind, most) in [(Kind::Mutex, 4.0), (Kind::Semaphore, 9.0)] {
        let few = requests_per_handoff(&server, kind, 4).await;
        let many = requests_per_handoff(&server, kind, 64).await;
        println!("{kind}: {few:.2} requests per handoff with 4 waiters, {many:.2} with 64");
        // The last handoffs of a queue cost less, because nothing is behind them, and whether a watch finds its node gone
        // already depends on the load: up to two requests. A herd would cost a request for each waiter, sixteen times as many.
        assert!(many <= few + 2.5, "{kind}: {few:.2} requests with 4 waiters, {many:.2} with 64");
        assert!(many <= most, "{kind}: {many:.2} requests");
    }
}
