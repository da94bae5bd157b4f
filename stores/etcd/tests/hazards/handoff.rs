//! The cost of a handoff does not depend on the number of waiters.

use distlock_core::{Kind, Locks};
use distlock_testkit::servers::EtcdServer;

use crate::support::{LIMIT, locks, ms, until_waiters};

async fn acquire(locks: Locks, kind: Kind) -> distlock_core::Guard {
    match kind {
        Kind::Mutex => locks.mutex("m").fair().acquire().timeout(LIMIT).await.unwrap(),
        Kind::RwLock => locks.rw_lock("m").write().timeout(LIMIT).await.unwrap(),
        _ => locks.semaphore("m", 2).acquire_many(2).timeout(LIMIT).await.unwrap(),
    }
}

/// The messages that the server receives for each handoff, with this many waiters in the queue of the server.
async fn messages_per_handoff(server: &EtcdServer, kind: Kind, waiters: usize) -> f64 {
    let ours = locks(&server.url(), ms(60_000)).await;
    let held = acquire(ours.clone(), kind).await;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 1..=waiters {
        let waiter = ours.clone();
        tasks.spawn(async move {
            let guard = acquire(waiter, kind).await;
            let token = guard.token();
            guard.release().await.unwrap();
            (number, token)
        });
        until_waiters(&ours, kind, "m", number).await;
    }
    let before = server.messages_received();
    held.release().await.unwrap();
    let mut served = tasks.join_all().await;
    let after = server.messages_received();
    // First come, first served.
    served.sort();
    assert!(served.is_sorted_by_key(|(_, token)| *token), "{served:?}");
    (after - before) as f64 / waiters as f64
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_waiters_cost_as_much_per_handoff_as_four() {
    let server = EtcdServer::start();
    for kind in Kind::VISIBLE {
        let few = messages_per_handoff(&server, kind, 4).await;
        let many = messages_per_handoff(&server, kind, 64).await;
        println!("{kind}: {few:.2} messages per handoff with 4 waiters, {many:.2} with 64");
        // The last of few waiters have no waiter behind them, whose part they save, and whether a watch finds its key gone
        // already depends on the load: up to two messages. A herd would cost 64.
        assert!(many <= few + 2.5, "{kind}: {few} messages with 4 waiters, {many} with 64");
        assert!(many <= if kind == Kind::Semaphore { 9.0 } else { 5.5 }, "{kind}: {many}");
    }
}
