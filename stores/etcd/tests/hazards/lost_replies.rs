//! Replies that are lost, and requests that are applied late.

use std::time::Instant;

use distlock_core::{ErrorKind, Kind, Locks};
use distlock_testkit::proxy::{AfterLoss, Direction, Proxy};
use distlock_testkit::servers::EtcdServer;

use crate::support::{LIMIT, config, keys, locks, locks_of, ms, until};

fn queue_length(server: &EtcdServer) -> usize {
    Kind::VISIBLE.iter().map(|kind| keys(server, &format!("distlock/{kind}/")).len()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_reply_was_lost_is_recognised_and_granted_once() {
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.addr());
    let ours = locks(&proxy.through(&server.url()), ms(30_000)).await;
    let other = locks(&server.url(), ms(30_000)).await;
    // The session exists before replies are lost.
    ours.mutex("first").acquire().await.unwrap().release().await.unwrap();
    for attempt in 0..2 {
        for (kind, wait) in Kind::VISIBLE.into_iter().flat_map(|kind| [(kind, true), (kind, false)]) {
            let name = format!("lost{attempt}{wait}");
            proxy.lose_reply_to(format!("distlock/{kind}/{name}/"), AfterLoss::Close);
            let held = match (kind, wait) {
                (Kind::Mutex, true) => ours.mutex(name.as_str()).acquire().await.unwrap(),
                (Kind::Mutex, false) => ours.mutex(name.as_str()).try_acquire().await.unwrap().unwrap(),
                (Kind::RwLock, true) => ours.rw_lock(name.as_str()).write().await.unwrap(),
                (Kind::RwLock, false) => ours.rw_lock(name.as_str()).try_write().await.unwrap().unwrap(),
                (_, true) => ours.semaphore(name.as_str(), 1).acquire().await.unwrap(),
                (_, false) => ours.semaphore(name.as_str(), 1).try_acquire().await.unwrap().unwrap(),
            };
            proxy.heal();
            assert_eq!(keys(&server, &format!("distlock/{kind}/{name}/")).len(), 1, "{kind} {wait}");
            assert!(is_held_for(&other, kind, &name).await);
            held.release().await.unwrap();
            assert_eq!(queue_length(&server), 0, "{kind} {wait}");
        }
    }
}

async fn is_held_for(other: &Locks, kind: Kind, name: &str) -> bool {
    match kind {
        Kind::Mutex => other.mutex(name).try_acquire().await.unwrap().is_none(),
        Kind::RwLock => other.rw_lock(name).try_read().await.unwrap().is_none(),
        _ => other.semaphore(name, 1).try_acquire().await.unwrap().is_none(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_whose_reply_was_lost_completes() {
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.addr());
    let ours = locks(&proxy.through(&server.url()), ms(30_000)).await;
    let held = ours.mutex("m").acquire().await.unwrap();
    proxy.lose_reply_to("distlock/mutex/m/", AfterLoss::Close);
    held.release().await.unwrap();
    assert_eq!(queue_length(&server), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_dropped_before_its_reply_leaves_no_key_although_its_session_lives_on() {
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.addr());
    let ours = locks(&proxy.through(&server.url()), ms(60_000)).await;
    let kept = ours.mutex("kept").acquire().await.unwrap();
    for delay in [0, 1, 5, 30] {
        proxy.black_hole(Direction::ToClient);
        for _ in 0..4 {
            let acquire = async { ours.semaphore("dropped", 4).acquire().await };
            let _ = tokio::time::timeout(ms(delay), acquire).await;
        }
        let acquire = async { ours.mutex("dropped").acquire().await };
        let _ = tokio::time::timeout(ms(delay), acquire).await;
        proxy.heal();
        until("only the kept key", async || queue_length(&server) == 1).await;
    }
    assert!(!kept.is_lost(), "{:?}", kept.loss());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_replies_were_all_lost_is_an_error_and_is_deleted_although_its_session_lives_on() {
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.addr());
    let short = "?distlock.response_timeout=200ms&distlock.failover_timeout=500ms";
    let ours = locks(&format!("{}{short}", proxy.through(&server.url())), ms(60_000)).await;
    let kept = ours.mutex("kept").acquire().await.unwrap();
    let wanted = ours.mutex("wanted").acquire().await.unwrap();
    proxy.black_hole(Direction::ToClient);
    let error = ours.semaphore("lost", 2).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(wanted.release().await.is_err(), "a release without a reply");
    proxy.heal();
    until("only the kept key", async || queue_length(&server) == 1).await;
    assert!(!kept.is_lost(), "{:?}", kept.loss());
    ours.semaphore("lost", 2).acquire_many(2).timeout(LIMIT).await.unwrap().release().await.unwrap();
}

/// A claim is sent to a member that stalls, and again to another one, which grants it. After the release, the stalled member
/// applies the first one.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_applied_after_its_release_leaves_no_key() {
    let server = EtcdServer::start();
    let (stalls, works) = (Proxy::start(server.addr()), Proxy::start(server.addr()));
    let url = format!("etcd://{},{}?distlock.response_timeout=300ms", stalls.addr(), works.addr());
    let store = distlock_etcd::EtcdStore::connect(config(&url)).await.unwrap();
    let ours = locks_of(store, ms(60_000));
    let kept = ours.mutex("kept").acquire().await.unwrap();
    for round in 0..3 {
        // Requests go back to the first endpoint when the second one breaks.
        let name = format!("late{round}");
        let entered = if round == 0 { &stalls } else { current(&ours, &stalls, &works).await };
        entered.pause();
        let held = ours.mutex(name.as_str()).acquire().timeout(LIMIT).await.unwrap();
        held.release().await.unwrap();
        entered.resume();
        let begun = Instant::now();
        while begun.elapsed() < ms(500) {
            let left = keys(&server, &format!("distlock/mutex/{name}/"));
            assert!(left.is_empty(), "{left:?}");
            tokio::time::sleep(ms(20)).await;
        }
    }
    assert!(!kept.is_lost(), "{:?}", kept.loss());
}

/// The proxy that requests go through.
async fn current<'a>(ours: &Locks, one: &'a Proxy, other: &'a Proxy) -> &'a Proxy {
    let before = one.counters().to_server.bursts;
    ours.mutex("probe").acquire().await.unwrap().release().await.unwrap();
    if one.counters().to_server.bursts > before { one } else { other }
}
