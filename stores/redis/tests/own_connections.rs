//! Connections of the application as the client: they break, stall and lead elsewhere.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{LIMIT, calls, config, locks, locks_of, ms, until};
use distlock_core::{ErrorKind, Locks};
use distlock_redis::{RedisConfig, RedisStore};
use distlock_testkit::proxy::{Direction, Proxy};
use distlock_testkit::servers::{RedisCluster, RedisServer};
use redis::aio::{ConnectionManager, MultiplexedConnection};

async fn multiplexed(url: &str) -> MultiplexedConnection {
    redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap()
}

async fn manager(url: &str) -> ConnectionManager {
    ConnectionManager::new(redis::Client::open(url).unwrap()).await.unwrap()
}

/// A store over each kind of connection to `through`, whose own connections lead to `direct`.
async fn stores(through: &str, direct: &str) -> [RedisStore; 2] {
    let by_manager = RedisStore::with_connection_manager(manager(through).await, config(direct).unwrap());
    let multiplexed = multiplexed(through).await;
    let by_multiplexed = RedisStore::with_multiplexed_connection(multiplexed, config(direct).unwrap());
    [by_manager.await.unwrap(), by_multiplexed.await.unwrap()]
}

fn clients(server: &RedisServer) -> usize {
    // One line is that of the connection that asks.
    server.command(&["CLIENT", "LIST"]).text().lines().count() - 1
}

async fn hand_off(holder: &Locks, waiter: &Locks) {
    let held = holder.mutex("handed off").acquire().await.unwrap();
    let waiting = tokio::spawn(waiter.mutex("handed off").acquire().timeout(LIMIT).into_future());
    until("a waiter", async || {
        let found = holder.inspect(&distlock_core::store::Query::named("handed off")).await.unwrap();
        found.iter().any(|record| record.waiters.len() == 1)
    })
    .await;
    held.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_use_the_applications_connection_and_waiters_one_of_the_stores_own() {
    let server = RedisServer::start();
    let before = clients(&server);
    let [by_manager, by_multiplexed] = stores(&server.url(), &server.url()).await;
    // Two of the application. The store's own, which checked that both lead to one database, are closed again.
    until("two connections", async || clients(&server) == before + 2).await;
    let (one, other) = (locks_of(&by_manager, ms(30_000)), locks_of(&by_multiplexed, ms(30_000)));
    for locks in [&one, &other] {
        let guard = locks.mutex("m").acquire().await.unwrap();
        let by_url = common::locks(&server.url(), ms(30_000)).await;
        assert!(by_url.mutex("m").try_acquire().await.unwrap().is_none(), "another database");
        guard.release().await.unwrap();
        by_url.shutdown().await.unwrap();
    }
    until("two connections", async || clients(&server) == before + 2).await;
    hand_off(&one, &other).await;
    hand_off(&other, &one).await;
    assert!(calls(&server, "subscribe") >= 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_connection_of_the_application_is_replaced_by_one_of_the_stores_own() {
    let server = RedisServer::start();
    for store in stores(&server.url(), &server.url()).await {
        let locks = locks_of(&store, ms(30_000));
        let guard = locks.mutex("kept").acquire().await.unwrap();
        server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        until("a grant", async || match locks.mutex("other").acquire().timeout(LIMIT).await {
            Ok(guard) => guard.release().await.is_ok(),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                false
            }
        })
        .await;
        assert!(!guard.is_lost());
        guard.release().await.unwrap();
        hand_off(&locks, &common::locks(&server.url(), ms(30_000)).await).await;
    }
}

/// The application's connection is half-open: requests arrive, replies do not.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_connection_of_the_application_does_not_stop_the_locks() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.addr());
    let direct = format!("{}?distlock.response_timeout=500ms", server.url());
    let stores = stores(&proxy.through(&server.url()), &direct).await;
    let all: Vec<Locks> = stores.iter().map(|store| locks_of(store, ms(30_000))).collect();
    for locks in &all {
        locks.mutex("m").acquire().await.unwrap().release().await.unwrap();
    }
    proxy.black_hole(Direction::ToClient);
    for locks in &all {
        until("a grant", async || match locks.mutex("m").acquire().timeout(LIMIT).await {
            Ok(guard) => guard.release().await.is_ok(),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                false
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_to_another_database_or_server_is_refused() {
    let (server, stranger) = (RedisServer::start(), RedisServer::start());
    let config = |url: &str| config(url).unwrap();
    for other in [format!("redis://{}/3", server.addr()), stranger.url()] {
        let refused =
            RedisStore::with_multiplexed_connection(multiplexed(&other).await, config(&server.url()));
        let error = refused.await.expect_err("two databases");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains("different databases"), "{error}");
        let refused = RedisStore::with_connection_manager(manager(&other).await, config(&server.url()));
        assert_eq!(refused.await.expect_err("two databases").kind(), ErrorKind::InvalidInput);
    }
    assert_eq!(server.command(&["DBSIZE"]).text(), "0", "the check left something behind");
    let cluster = config(&format!("redis+cluster://{}", server.addr()));
    let refused = RedisStore::with_multiplexed_connection(multiplexed(&server.url()).await, cluster);
    assert_eq!(refused.await.expect_err("a Cluster").kind(), ErrorKind::InvalidInput);
    let connection = multiplexed(&stranger.url()).await;
    stranger.kill();
    let dead = RedisStore::with_multiplexed_connection(connection, config(&server.url()));
    assert_eq!(dead.await.expect_err("a dead connection").kind(), ErrorKind::Unavailable);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_connection_of_the_application_names_the_nodes() {
    let cluster = RedisCluster::start();
    let client = redis::cluster::ClusterClient::new(cluster.urls()).unwrap();
    let connection = client.get_async_connection().await.unwrap();
    let store = RedisStore::with_cluster_connection(connection, RedisConfig::default()).await.unwrap();
    let given = locks_of(&store, ms(30_000));
    let hosts: Vec<String> = cluster.nodes().iter().map(|server| server.addr().to_string()).collect();
    let by_url = locks(&format!("redis+cluster://{}", hosts.join(",")), ms(30_000)).await;
    for number in 0..8 {
        let name = format!("name {number}");
        let guard = given.mutex(name.as_str()).acquire().await.unwrap();
        assert!(by_url.mutex(name.as_str()).try_acquire().await.unwrap().is_none(), "another Cluster");
        guard.release().await.unwrap();
    }
    hand_off(&given, &by_url).await;
    hand_off(&by_url, &given).await;
}
