//! A broken lock: its holder is notified at once, whichever node its process subscribes at.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::LIMIT;
use common::claims::claim;
use distlock_core::store::{Attempt, Backend, Claim, Inbox, LeaseStore, StoreUrl, Wake, WakeStream};
use distlock_core::{Kind, LockId, LockIds};
use distlock_redis::DRIVER;
use distlock_testkit::servers::{RedisCluster, RedisServer};
use futures_util::StreamExt;
use std::collections::BTreeSet;
use std::sync::Arc;

async fn open(url: &str) -> Arc<dyn LeaseStore> {
    match DRIVER.connect(StoreUrl::parse(url).unwrap()).await.unwrap() {
        Backend::Lease(store) => store,
        other => panic!("{other:?}"),
    }
}

async fn acquired(store: &Arc<dyn LeaseStore>, claim: &Claim) {
    let answers = store.try_acquire(std::slice::from_ref(claim)).await.unwrap();
    assert!(matches!(answers[0], Ok(Attempt::Granted { .. })), "{claim:?}: {answers:?}");
}

/// The lock ids of the notifications until all of these were notified.
async fn notified(wakes: &mut WakeStream, expected: &BTreeSet<LockId>) -> BTreeSet<LockId> {
    let mut found = BTreeSet::new();
    while !expected.is_subset(&found) {
        match tokio::time::timeout(LIMIT, wakes.next()).await.expect("a message").expect("a stream") {
            Wake::Broken { lock_id, .. } => found.insert(lock_id),
            other => panic!("{other:?}"),
        };
    }
    found
}

async fn every_broken_holder_is_notified(url: &str, kinds: &[Kind]) {
    let (holder, breaker) = (open(url).await, open(url).await);
    let ids = LockIds::new("holder with spaces");
    let mut wakes = holder.subscribe(&Inbox::new(ids.prefix())).await.unwrap();
    for kind in kinds {
        // Several names, so that in a Cluster all nodes have some; the holder subscribes at one node.
        for name in ["a", "b", "c", "d", "e"] {
            let mut one = claim(*kind, name, ids.next().as_str());
            let mut expected = BTreeSet::from([one.lock_id.clone()]);
            if *kind != Kind::Mutex {
                // Two holders at once, and one whose lock id no engine made: it has no inbox.
                let capacity = one.capacity.max(3);
                one = one.with_weight(1).with_capacity(capacity);
                let other = one.clone().with_lock_id(ids.next());
                expected.insert(other.lock_id.clone());
                acquired(&holder, &other).await;
                acquired(&holder, &one.clone().with_lock_id(LockId::from_stored("foreign"))).await;
            }
            acquired(&holder, &one).await;
            let broken = breaker.break_lock(&one.resource).await.unwrap();
            assert!(broken.len() >= expected.len(), "{broken:?}");
            assert_eq!(notified(&mut wakes, &expected).await, expected, "{kind} {name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_holder_of_a_broken_lock_is_notified_on_one_server() {
    for server in [RedisServer::start(), RedisServer::configure().valkey().start()] {
        every_broken_holder_is_notified(
            &server.url(),
            &[Kind::Mutex, Kind::RwLock, Kind::Semaphore, Kind::FairQueue],
        )
        .await;
        // A lock of another program has no inbox: nothing is published.
        let sent = common::calls(&server, "publish");
        server.command(&["SET", "distlock:theirs", "5f0d#x-1", "PX", "60000"]);
        let store = open(&server.url()).await;
        let broken = store.break_lock(&claim(Kind::Mutex, "theirs", "").resource).await.unwrap();
        assert_eq!(broken[0].lock_id.as_str(), "5f0d#x-1");
        assert_eq!(common::calls(&server, "publish"), sent);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_holder_of_a_broken_lock_is_notified_in_a_cluster() {
    let cluster = RedisCluster::start();
    let hosts: Vec<String> = cluster.nodes().iter().map(|server| server.addr().to_string()).collect();
    let url = format!("redis+cluster://{}", hosts.join(","));
    every_broken_holder_is_notified(&url, &[Kind::Mutex, Kind::RwLock, Kind::Semaphore]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_holder_of_a_broken_lock_is_notified_by_the_nodes_of_a_redlock() {
    let servers = RedisServer::start_many(3);
    let hosts: Vec<String> = servers.iter().map(|server| server.addr().to_string()).collect();
    let url = format!("redlock://{}?distlock.node_timeout=400ms", hosts.join(","));
    let (holder, breaker) = (open(&url).await, open(&url).await);
    let ids = LockIds::new("holder");
    let mut wakes = holder.subscribe(&Inbox::new(ids.prefix())).await.unwrap();
    for kind in [Kind::Mutex, Kind::RwLock] {
        let one = claim(kind, "a", ids.next().as_str());
        acquired(&holder, &one).await;
        breaker.break_lock(&one.resource).await.unwrap();
        let expected = BTreeSet::from([one.lock_id]);
        // Each node notifies.
        loop {
            match tokio::time::timeout(LIMIT, wakes.next()).await.expect("a message").expect("a stream") {
                Wake::Broken { lock_id, .. } if expected.contains(&lock_id) => break,
                Wake::Broken { .. } | Wake::Missed => {}
                other => panic!("{other:?}"),
            }
        }
    }
}
