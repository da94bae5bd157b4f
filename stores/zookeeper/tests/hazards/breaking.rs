//! Forced release, and nodes that other programs delete.

use std::time::Instant;

use distlock_core::{Kind, LossReason};
use distlock_testkit::servers::ZookeeperServer;

use crate::support::{LIMIT, client, counts, locks, loss_of, ms, until_waiting};

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_lock_is_lost_at_once_and_goes_to_the_next_waiter_with_a_higher_token() {
    let server = ZookeeperServer::start();
    let (holder, waiter, operator) = (
        locks(&server.url(), ms(30_000)).await,
        locks(&server.url(), ms(30_000)).await,
        locks(&server.url(), ms(30_000)).await,
    );
    let guard = holder.mutex("m").acquire().await.unwrap();
    let waiting = tokio::spawn(async move { waiter.mutex("m").acquire().timeout(LIMIT).await.unwrap() });
    until_waiting(&operator, "m", 1).await;
    let begun = Instant::now();
    let broken = operator.break_lock(Kind::Mutex, "m").await.unwrap();
    assert_eq!(broken[0].lock_id, *guard.lock_id());
    assert_eq!(loss_of(&guard).await, LossReason::NotYours);
    // No heartbeat tells of it: they are almost four seconds apart.
    assert!(begun.elapsed() < ms(3000), "{:?}", begun.elapsed());
    let next = waiting.await.unwrap();
    assert!(next.token() > guard.token());
    assert!(guard.release().await.is_err());
    assert!(!next.is_lost());
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_node_was_deleted_queues_again_and_is_not_granted_without_one() {
    let server = ZookeeperServer::start();
    let (holder, waiter) = (locks(&server.url(), ms(8000)).await, locks(&server.url(), ms(8000)).await);
    let bare = client(&server.url()).await;
    let guard = holder.mutex("m").acquire().await.unwrap();
    let waiting = tokio::spawn(async move { waiter.mutex("m").acquire().timeout(LIMIT).await.unwrap() });
    until_waiting(&holder, "m", 1).await;
    let mut nodes = bare.list_children("/distlock/mutex/m").await.unwrap();
    nodes.sort_by_key(|node| node.rsplit('-').next().unwrap().to_owned());
    bare.delete(&format!("/distlock/mutex/m/{}", nodes[1]), None).await.unwrap();
    until_waiting(&holder, "m", 1).await;
    assert!(!waiting.is_finished());
    guard.release().await.unwrap();
    let next = waiting.await.unwrap();
    assert_eq!(counts(&holder, Kind::Mutex, "m").await, (1, 0));
    assert!(!next.is_lost());
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_rise_after_the_folder_of_a_lock_was_removed() {
    let server = ZookeeperServer::start();
    let locks = locks(&server.url(), ms(8000)).await;
    let bare = client(&server.url()).await;
    let mut last = 0;
    for _ in 0..3 {
        let guard = locks.mutex("m").acquire().await.unwrap();
        assert!(guard.token().get() > last);
        last = guard.token().get();
        guard.release().await.unwrap();
        for path in ["/distlock/mutex/m", "/distlock/mutex", "/distlock"] {
            bare.delete(path, None).await.unwrap();
        }
    }
}
