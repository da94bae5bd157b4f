//! Sessions: shared by tasks, given by the application, and negotiated with the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use distlock_core::store::{Backend, Level, StoreUrl};
use distlock_core::{ErrorKind, Kind, LossReason};
use distlock_testkit::proxy::Proxy;
use distlock_testkit::servers::ZookeeperServer;
use distlock_zookeeper::{Address, DRIVER, ZookeeperConfig, ZookeeperStore};
use tokio::task::JoinSet;
use zookeeper_client::Client;

use crate::support::{LIMIT, counts, locks, locks_of, loss_of, ms, store, until};

#[tokio::test(flavor = "multi_thread")]
async fn two_tasks_that_share_a_session_never_both_hold() {
    let server = ZookeeperServer::start();
    // Two engines on one store: one session, and no queue of the engine between them.
    let store = store(&server.url()).await;
    let engines = [0, 1].map(|_| locks_of(Backend::session(store.clone()), ms(8000)));
    let inside = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for task in 0..8 {
        let (locks, inside) = (engines[task % 2].clone(), Arc::clone(&inside));
        tasks.spawn(async move {
            for round in 0..6 {
                let mutex = locks.mutex("m");
                let guard = if round % 2 == 0 {
                    mutex.acquire().timeout(LIMIT).await.unwrap()
                } else {
                    mutex.fair().acquire().timeout(LIMIT).await.unwrap()
                };
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.unwrap();
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_given_client_is_used_and_its_end_ends_the_locks() {
    let server = ZookeeperServer::start();
    let proxy = Proxy::start(server.addr());
    let connector = Client::connector().with_session_timeout(ms(4000));
    let client = connector.connect(&proxy.addr().to_string()).await.unwrap();
    let config = ZookeeperConfig::new([Address::new("127.0.0.1", server.port())]);
    let store = ZookeeperStore::with_client(client.clone(), config);
    // Whatever expiry is asked for: there is one session.
    let given = locks_of(Backend::session(store), ms(30_000));
    let other = locks(&server.url(), ms(4000)).await;
    let guard = given.mutex("m").acquire().await.unwrap();
    assert!(guard.time_left().unwrap() < ms(4000));
    proxy.pause();
    assert!(matches!(loss_of(&guard).await, LossReason::SessionEnded(_)));
    // The application's session survives, and the node of the lost lock does not.
    proxy.resume();
    until("the lock is free", async || counts(&other, Kind::Mutex, "m").await == (0, 0)).await;
    let next = other.mutex("m").acquire().timeout(LIMIT).await.unwrap();
    assert!(next.token() > guard.token());
    next.release().await.unwrap();
    // It serves again as soon as it answers again.
    let again = loop {
        match given.mutex("m").acquire().timeout(LIMIT).await {
            Ok(guard) => break guard,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
        }
    };
    again.release().await.unwrap();
    drop(client);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_tells_what_the_server_granted_and_what_is_dangerous() {
    let server = ZookeeperServer::configure()
        .setting("maxSessionTimeout=4000")
        .setting("4lw.commands.whitelist=mntr")
        .start_without_checks();
    let mut connected = None;
    until("the server accepts a session", async || {
        connected = DRIVER.connect(StoreUrl::parse(&server.url()).unwrap()).await.ok();
        connected.is_some()
    })
    .await;
    let locks = locks_of(connected.unwrap(), ms(30_000));
    let guard = locks.mutex("m").acquire().await.unwrap();
    assert!(guard.time_left().unwrap() < ms(4000));
    let findings = locks.doctor().await.unwrap();
    let warned = |words: &str| {
        findings.iter().any(|finding| finding.level == Level::Warning && finding.what.contains(words))
    };
    for words in ["the server allows 4s", "one server", "every client of the ensemble"] {
        assert!(warned(words), "{words}: {findings:?}");
    }
    let ok = findings.iter().filter(|finding| finding.level == Level::Ok);
    for words in ["acquired and released", "conf is not allowed", "standalone"] {
        assert!(ok.clone().any(|finding| finding.what.contains(words)), "{words}: {findings:?}");
    }
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_down_is_an_outage_and_not_contention() {
    let server = ZookeeperServer::start();
    let locks = locks(&server.url(), ms(1500)).await;
    let guard = locks.mutex("m").acquire().await.unwrap();
    server.kill();
    let error = locks.mutex("other").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains(&server.addr().to_string()), "{error}");
    assert!(matches!(loss_of(&guard).await, LossReason::SessionEnded(_)));
    let refused = DRIVER.connect(StoreUrl::parse(&server.url()).unwrap()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    server.start_again();
    let again = loop {
        match locks.mutex("m").acquire().timeout(LIMIT).await {
            Ok(guard) => break guard,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
        }
    };
    assert!(again.token() > guard.token());
    again.release().await.unwrap();
}
