//! Requests that were applied although their replies were lost.

use distlock_core::{Kind, Locks};
use distlock_testkit::proxy::{AfterLoss, Proxy};
use distlock_testkit::servers::ZookeeperServer;

use crate::support::{LIMIT, client, counts, locks, ms, until};

/// A locker behind a proxy, and an operator without one.
async fn behind_a_proxy(server: &ZookeeperServer) -> (Proxy, Locks, Locks) {
    let proxy = Proxy::start(server.addr());
    let locker = locks(&proxy.through(&server.url()), ms(8000)).await;
    // A first lock creates the session and the folders.
    locker.mutex("m").acquire().await.unwrap().release().await.unwrap();
    let operator = locks(&server.url(), ms(8000)).await;
    (proxy, locker, operator)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_creation_whose_reply_was_lost_is_found_and_not_repeated() {
    let server = ZookeeperServer::start();
    let (proxy, locker, operator) = behind_a_proxy(&server).await;
    for round in 0..5 {
        // The words of a creation: the name without a sequence number, and the lock id.
        proxy.lose_reply_to("-lock-\0", AfterLoss::Close);
        let guard = locker.mutex("m").acquire().timeout(LIMIT).await.unwrap();
        assert_eq!(counts(&operator, Kind::Mutex, "m").await, (1, 0), "round {round}");
        let record = &operator.inspect(&distlock_core::store::Query::named("m")).await.unwrap()[0];
        assert_eq!(record.holders[0].token, Some(guard.token()));
        guard.release().await.unwrap();
        assert_eq!(counts(&operator, Kind::Mutex, "m").await, (0, 0), "round {round}");
    }
    assert!(proxy.counters().to_client.lost > 0, "no reply was lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_acquire_whose_reply_was_lost_leaves_no_node() {
    let server = ZookeeperServer::start();
    let (proxy, locker, operator) = behind_a_proxy(&server).await;
    for round in 0..3 {
        // The connection stays open, so the driver learns of the loss only after the acquire was dropped.
        proxy.lose_reply_to("-lock-\0", AfterLoss::Hang);
        let before = proxy.counters().to_client.lost;
        let mut acquiring = Box::pin(async { locker.mutex("m").acquire().await });
        tokio::select! {
            biased;
            _ = &mut acquiring => panic!("the reply was to be lost"),
            () = until("a lost reply", async || proxy.counters().to_client.lost > before) => {}
        }
        drop(acquiring);
        until("no node is left", async || counts(&operator, Kind::Mutex, "m").await == (0, 0)).await;
        let free = operator.mutex("m").acquire().timeout(LIMIT).await.unwrap();
        free.release().await.unwrap();
        assert_eq!(counts(&operator, Kind::Mutex, "m").await, (0, 0), "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_waiter_leaves_no_node_at_any_point() {
    let server = ZookeeperServer::start();
    let (_proxy, locker, operator) = behind_a_proxy(&server).await;
    let held = operator.mutex("m").acquire().await.unwrap();
    for micros in (0..6000).step_by(250) {
        let acquiring = locker.mutex("m").acquire();
        let limit = std::time::Duration::from_micros(micros);
        assert!(tokio::time::timeout(limit, async { acquiring.await }).await.is_err());
    }
    until("only the holder is left", async || counts(&operator, Kind::Mutex, "m").await == (1, 0)).await;
    held.release().await.unwrap();
    until("no node is left", async || counts(&operator, Kind::Mutex, "m").await == (0, 0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_whose_reply_was_lost_frees_the_lock() {
    let server = ZookeeperServer::start();
    let (proxy, locker, operator) = behind_a_proxy(&server).await;
    let bare = client(&server.url()).await;
    for after in [AfterLoss::Close, AfterLoss::Hang] {
        let guard = locker.mutex("m").acquire().timeout(LIMIT).await.unwrap();
        let node = bare.list_children("/distlock/mutex/m").await.unwrap().pop().unwrap();
        // Nothing but the deletion names the node once its watch is armed.
        until("the watch is armed", async || server.monitor("zk_watch_count").unwrap() > 0).await;
        proxy.lose_reply_to(node, after);
        let waiting = tokio::spawn({
            let operator = operator.clone();
            async move { operator.mutex("m").acquire().timeout(LIMIT).await.unwrap() }
        });
        let token = guard.token();
        guard.release().await.unwrap();
        let next = waiting.await.unwrap();
        assert!(next.token() > token);
        next.release().await.unwrap();
        assert_eq!(counts(&operator, Kind::Mutex, "m").await, (0, 0));
    }
}
