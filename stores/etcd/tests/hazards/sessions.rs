//! Sessions that end, that are cut off, and that are shared.

use std::time::Instant;

use distlock_core::{Guard, Kind, LossReason};
use distlock_testkit::proxy::Proxy;
use distlock_testkit::servers::EtcdServer;

use crate::support::{LIMIT, keys, lease_of, locks, loss_of, ms, until, until_waiters};

/// etcd issue 19597: a waiter whose session ends must not be granted under it. It waits on under another session, behind those
/// that came meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_does_not_outlive_its_session() {
    let server = EtcdServer::start();
    let (holder, waiter) = (locks(&server.url(), ms(60_000)).await, locks(&server.url(), ms(61_000)).await);
    let kinds = [Kind::Mutex, Kind::RwLock, Kind::Semaphore];
    for kind in kinds {
        let held = match kind {
            Kind::Mutex => holder.mutex("m").acquire().await.unwrap(),
            Kind::RwLock => holder.rw_lock("m").write().await.unwrap(),
            _ => holder.semaphore("m", 1).acquire().await.unwrap(),
        };
        let waiting = tokio::spawn({
            let waiter = waiter.clone();
            async move {
                match kind {
                    Kind::Mutex => waiter.mutex("m").acquire().await,
                    Kind::RwLock => waiter.rw_lock("m").read().await,
                    _ => waiter.semaphore("m", 1).acquire().await,
                }
            }
        });
        until_waiters(&holder, kind, "m", 1).await;
        let mut queue = keys(&server, &format!("distlock/{kind}/"));
        queue.retain(|key| !key.key.contains(held.lock_id().as_str()));
        let ended = queue[0].lease.clone();
        server.etcdctl(&["lease", "revoke", &ended]);
        until("the waiter is back, under another session", async || {
            let queue = keys(&server, &format!("distlock/{kind}/"));
            queue.len() == 2 && queue.iter().all(|key| key.lease != ended)
        })
        .await;
        assert!(!held.is_lost() && !waiting.is_finished());
        let token = held.token();
        held.release().await.unwrap();
        let next = tokio::time::timeout(LIMIT, waiting).await.expect("it is granted").unwrap().unwrap();
        assert!(next.token() > token && !next.is_lost());
        next.release().await.unwrap();
        until("an empty queue", async || keys(&server, &format!("distlock/{kind}/")).is_empty()).await;
    }
}

/// etcd issue 11456: a lock must not be granted, or stay held, on a lease that has ended.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_held_on_a_dead_lease() {
    let server = EtcdServer::start();
    let (ours, other) = (locks(&server.url(), ms(60_000)).await, locks(&server.url(), ms(60_000)).await);
    let held = ours.mutex("m").acquire().await.unwrap();
    server.etcdctl(&["lease", "revoke", &lease_of(&server, "distlock/mutex/m/")]);
    let begun = Instant::now();
    assert!(matches!(loss_of(&held).await, LossReason::SessionEnded(_)));
    assert!(begun.elapsed() < ms(10_000), "it was told by a renewal only: {:?}", begun.elapsed());
    let next = other.mutex("m").acquire().timeout(LIMIT).await.unwrap();
    assert!(next.token() > held.token());
    next.release().await.unwrap();

    // The session ends while no claim uses it: the next claim does not use it either.
    let held = ours.mutex("m").acquire().await.unwrap();
    let lease = lease_of(&server, "distlock/mutex/m/");
    held.release().await.unwrap();
    server.etcdctl(&["lease", "revoke", &lease]);
    let held = ours.mutex("m").acquire().timeout(LIMIT).await.unwrap();
    assert_ne!(lease_of(&server, "distlock/mutex/m/"), lease);
    assert!(other.mutex("m").try_acquire().await.unwrap().is_none());
    assert!(!held.is_lost());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_cut_off_for_less_than_its_lease_keeps_its_locks() {
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.addr());
    let (ours, other) =
        (locks(&proxy.through(&server.url()), ms(5000)).await, locks(&server.url(), ms(5000)).await);
    let held = ours.mutex("m").acquire().await.unwrap();
    let waiting = tokio::spawn(async move { other.mutex("m").acquire().timeout(LIMIT).await });
    until("a waiter", async || keys(&server, "distlock/mutex/m/").len() == 2).await;
    proxy.pause();
    tokio::time::sleep(ms(2500)).await;
    proxy.resume();
    // Longer than the lease would have lasted without a renewal.
    let begun = Instant::now();
    while begun.elapsed() < ms(3500) {
        assert!(!held.is_lost() && !waiting.is_finished(), "{:?}", held.loss());
        tokio::time::sleep(ms(50)).await;
    }
    held.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_cut_off_for_longer_than_its_lease_loses_its_locks_before_another_gets_them() {
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.addr());
    let (ours, other) =
        (locks(&proxy.through(&server.url()), ms(2000)).await, locks(&server.url(), ms(2000)).await);
    let held = [
        ours.mutex("m").acquire().await.unwrap(),
        ours.rw_lock("m").write().await.unwrap(),
        ours.semaphore("m", 2).acquire_many(2).await.unwrap(),
    ];
    proxy.pause();
    let next = [
        other.mutex("m").acquire().timeout(LIMIT).await.unwrap(),
        other.rw_lock("m").read().timeout(LIMIT).await.unwrap(),
        other.semaphore("m", 2).acquire().timeout(LIMIT).await.unwrap(),
    ];
    for (held, next) in held.iter().zip(&next) {
        assert!(held.is_lost(), "two holders");
        assert!(next.token() > held.token());
    }
    proxy.resume();
    drop(held);
    drop(next);
    let again = ours.mutex("m").acquire().timeout(LIMIT).await.unwrap();
    assert!(!again.is_lost());
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_end_are_reopened() {
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.addr());
    let (ours, other) =
        (locks(&proxy.through(&server.url()), ms(2000)).await, locks(&server.url(), ms(30_000)).await);
    let held = ours.mutex("held").acquire().await.unwrap();
    let theirs = other.mutex("wanted").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let ours = ours.clone();
        async move { ours.mutex("wanted").acquire().timeout(LIMIT).await }
    });
    until_waiters(&other, Kind::Mutex, "wanted", 1).await;
    let begun = Instant::now();
    while begun.elapsed() < ms(5000) {
        proxy.cut();
        tokio::time::sleep(ms(300)).await;
        assert!(!held.is_lost(), "{:?}", held.loss());
    }
    theirs.release().await.unwrap();
    let granted = waiting.await.unwrap().unwrap();
    granted.release().await.unwrap();
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn many_locks_share_one_lease_and_are_lost_and_released_one_by_one() {
    let server = EtcdServer::start();
    let ours = locks(&server.url(), ms(30_000)).await;
    let mut held = Vec::new();
    for number in 0..30 {
        held.push(ours.mutex(format!("m{number}").as_str()).acquire().await.unwrap());
    }
    let mut leases: Vec<String> = keys(&server, "distlock/mutex/").into_iter().map(|key| key.lease).collect();
    leases.dedup();
    assert_eq!(leases.len(), 1);
    assert_eq!(ours.break_lock(Kind::Mutex, "m7").await.unwrap().len(), 1);
    assert!(matches!(loss_of(&held[7]).await, LossReason::NotYours));
    drop(held.remove(7));
    assert!(held.iter().all(|guard| !guard.is_lost()));
    for guard in held {
        guard.release().await.unwrap();
    }
    assert!(keys(&server, "distlock/mutex/").is_empty());
}

/// A store that is dropped ends its lease at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_store_leaves_nothing_in_the_cluster() {
    let server = EtcdServer::start();
    let ours = locks(&server.url(), ms(60_000)).await;
    ours.mutex("m").acquire().await.unwrap().release().await.unwrap();
    assert_eq!(keys(&server, "distlock/").len(), 1, "the session's key");
    ours.shutdown().await.unwrap();
    drop(ours);
    until("no key", async || keys(&server, "distlock/").is_empty()).await;
    until("no lease", async || server.etcdctl(&["lease", "list"]).starts_with("found 0")).await;
}

/// Claims beyond a number have a session of their own. A renewal reads all keys of a lease.
#[tokio::test(flavor = "multi_thread")]
async fn more_locks_than_one_lease_takes_are_lost_and_released_one_by_one() {
    const LOCKS: usize = 7300;
    // All at once would be more than a busy server answers in time.
    const AT_ONCE: usize = 64;
    let server = EtcdServer::start();
    let ours = locks(&server.url(), ms(24_000)).await;
    let mut acquiring = tokio::task::JoinSet::new();
    for first in 0..AT_ONCE {
        let ours = ours.clone();
        acquiring.spawn(async move {
            let mut held = Vec::new();
            for number in (first..LOCKS).step_by(AT_ONCE) {
                held.push(ours.mutex(format!("m{number}")).acquire().await.unwrap());
            }
            held
        });
    }
    let mut held: Vec<Guard> = acquiring.join_all().await.into_iter().flatten().collect();
    let more = ours.mutex("one more").acquire().await.unwrap();
    let leases = || {
        let leases = keys(&server, "distlock/mutex/").into_iter().map(|key| key.lease);
        leases.collect::<std::collections::HashSet<_>>()
    };
    let before = leases();
    assert_eq!(before.len(), 2);
    // A broken one is lost at once, a deleted one at the next renewal, and none but these.
    assert_eq!(ours.break_lock(Kind::Mutex, "m7").await.unwrap().len(), 1);
    let deleted = keys(&server, "distlock/mutex/m8/").remove(0).key;
    server.etcdctl(&["del", &deleted]);
    for name in ["m7", "m8"] {
        let at = held.iter().position(|guard| guard.resource().name() == name).unwrap();
        let lost = held.swap_remove(at);
        assert!(matches!(loss_of(&lost).await, LossReason::NotYours), "{name}");
    }
    assert!(!more.is_lost() && held.iter().all(|guard| !guard.is_lost()));
    let mut releasing = tokio::task::JoinSet::new();
    while !held.is_empty() {
        let share = held.split_off(held.len().saturating_sub(LOCKS / AT_ONCE));
        releasing.spawn(async move {
            for guard in share {
                guard.release().await.unwrap();
            }
        });
    }
    releasing.join_all().await;
    more.release().await.unwrap();
    assert!(keys(&server, "distlock/mutex/").is_empty());
    // There is room again: no third lease begins.
    let again = ours.mutex("again").acquire().await.unwrap();
    assert!(leases().is_subset(&before), "{:?} {before:?}", leases());
    again.release().await.unwrap();
}
