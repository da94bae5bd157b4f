//! The network between a client and its server: cut, silent, and back again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use distlock_core::{Kind, LossReason};
use distlock_testkit::proxy::Proxy;
use distlock_testkit::servers::ZookeeperServer;

use crate::support::{LIMIT, counts, locks, loss_of, ms, until, until_waiting};

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_cut_off_for_less_than_its_session_keeps_its_lock() {
    let server = ZookeeperServer::start();
    let proxy = Proxy::start(server.addr());
    let (locks, other) =
        (locks(&proxy.through(&server.url()), ms(8000)).await, locks(&server.url(), ms(8000)).await);
    let guard = locks.mutex("m").acquire().await.unwrap();
    for _ in 0..3 {
        proxy.disconnect();
        tokio::time::sleep(ms(300)).await;
        proxy.heal();
        // The next lock is granted on the same session, over a new connection.
        locks.mutex("after").acquire().timeout(LIMIT).await.unwrap().release().await.unwrap();
    }
    // Well past the deadline that was known at the first cut.
    tokio::time::sleep(ms(8000)).await;
    assert!(!guard.is_lost(), "{:?}", guard.loss());
    assert!(other.mutex("m").try_acquire().await.unwrap().is_none());
    let token = guard.token();
    guard.release().await.unwrap();
    assert!(other.mutex("m").try_acquire().await.unwrap().unwrap().token() > token);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_cut_off_for_longer_loses_its_lock_before_another_gets_it() {
    let server = ZookeeperServer::start();
    let proxy = Proxy::start(server.addr());
    let other = locks(&server.url(), ms(2000)).await;
    let cut_off = locks(&proxy.through(&server.url()), ms(2000)).await;
    for round in 0..2 {
        let guard = cut_off.mutex("m").acquire().timeout(LIMIT).await.unwrap();
        let waiting = tokio::spawn({
            let other = other.clone();
            async move {
                let next = other.mutex("m").acquire().timeout(LIMIT).await.unwrap();
                (next, Instant::now())
            }
        });
        until_waiting(&other, "m", 1).await;
        // Silent in the first round, refused in the second.
        if round == 0 {
            proxy.pause();
        } else {
            proxy.disconnect();
        }
        let reason = loss_of(&guard).await;
        let lost = Instant::now();
        assert!(matches!(reason, LossReason::SessionEnded(_)), "{reason:?}");
        let (next, granted) = waiting.await.unwrap();
        assert!(lost < granted, "two holders for {:?}", lost.duration_since(granted));
        assert!(next.token() > guard.token());
        proxy.heal();
        next.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_was_lost_to_a_silent_network_is_freed_although_its_process_lives() {
    let server = ZookeeperServer::start();
    let proxy = Proxy::start(server.addr());
    let silent = locks(&proxy.through(&server.url()), ms(8000)).await;
    let other = locks(&server.url(), ms(8000)).await;
    let guard = silent.mutex("m").acquire().await.unwrap();
    proxy.pause();
    loss_of(&guard).await;
    // The server has not ended the session yet, and the driver would keep it alive from now on.
    assert_eq!(counts(&other, Kind::Mutex, "m").await, (1, 0));
    proxy.resume();
    let next = other.mutex("m").acquire().timeout(LIMIT).await.unwrap();
    assert!(next.token() > guard.token() && guard.is_lost());
    next.release().await.unwrap();
    // The same process takes locks again, on a new session.
    silent.mutex("m").acquire().timeout(LIMIT).await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_does_not_outlive_its_session_and_queues_again() {
    let server = ZookeeperServer::start();
    let proxy = Proxy::start(server.addr());
    let (holder, cut_off) =
        (locks(&server.url(), ms(8000)).await, locks(&proxy.through(&server.url()), ms(1500)).await);
    let held = holder.mutex("m").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let cut_off = cut_off.clone();
        async move { cut_off.mutex("m").acquire().timeout(LIMIT).await.unwrap() }
    });
    until_waiting(&holder, "m", 1).await;
    proxy.pause();
    until_waiting(&holder, "m", 0).await;
    // The release passes the dead waiter by. What the server sent it is delivered late.
    let token = held.token();
    held.release().await.unwrap();
    let between = holder.mutex("m").acquire().timeout(LIMIT).await.unwrap();
    proxy.resume();
    until_waiting(&holder, "m", 1).await;
    assert!(!waiting.is_finished(), "a grant on a dead session");
    assert!(between.token() > token);
    let token = between.token();
    between.release().await.unwrap();
    let guard = waiting.await.unwrap();
    assert!(guard.token() > token && !guard.is_lost());
    assert!(holder.mutex("m").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_break_all_the_time_never_give_two_holders() {
    const CLIENTS: usize = 4;
    const ROUNDS: usize = 12;
    let server = ZookeeperServer::start();
    let proxies: Vec<Arc<Proxy>> = (0..CLIENTS).map(|_| Arc::new(Proxy::start(server.addr()))).collect();
    let (inside, highest) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let done = Arc::new(AtomicBool::new(false));
    let breaker = std::thread::spawn({
        let (proxies, done) = (proxies.clone(), Arc::clone(&done));
        move || {
            while !done.load(Ordering::SeqCst) {
                for proxy in &proxies {
                    proxy.cut();
                    std::thread::sleep(ms(40));
                }
            }
        }
    });
    let mut tasks = tokio::task::JoinSet::new();
    for proxy in &proxies {
        let url = proxy.through(&server.url());
        let (inside, highest) = (Arc::clone(&inside), Arc::clone(&highest));
        tasks.spawn(async move {
            let locks = loop {
                let url = distlock_core::store::StoreUrl::parse(&url).unwrap();
                if let Ok(backend) = distlock_zookeeper::DRIVER.connect(url).await {
                    break crate::support::locks_of(backend, ms(10_000));
                }
            };
            for _ in 0..ROUNDS {
                let guard = loop {
                    match locks.mutex("m").acquire().timeout(LIMIT).await {
                        Ok(guard) => break guard,
                        Err(error) => assert!(error.can_retry(), "{error}"),
                    }
                };
                assert!(!inside.swap(true, Ordering::SeqCst), "two holders");
                assert!(highest.fetch_max(guard.token().get(), Ordering::SeqCst) < guard.token().get());
                tokio::task::yield_now().await;
                assert!(!guard.is_lost(), "{:?}", guard.loss());
                inside.store(false, Ordering::SeqCst);
                // The reply may be lost; the lock must still become free.
                let _ = guard.release().await;
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    done.store(true, Ordering::SeqCst);
    breaker.join().unwrap();
    let operator = locks(&server.url(), ms(8000)).await;
    until("no node is left", async || counts(&operator, Kind::Mutex, "m").await == (0, 0)).await;
}
