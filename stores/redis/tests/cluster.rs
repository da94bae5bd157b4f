//! Cluster: masters that die, slots that move, and names that look like hash tags.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::collections::HashSet;
use std::sync::OnceLock;

use common::{LIMIT, locks, ms, until, value_of};
use distlock_core::store::Query;
use distlock_testkit::servers::redis::resp::Reply;
use distlock_testkit::servers::{RedisCluster, RedisServer};

/// One cluster for the tests that do not damage it.
fn shared() -> &'static RedisCluster {
    static CLUSTER: OnceLock<RedisCluster> = OnceLock::new();
    CLUSTER.get_or_init(RedisCluster::start)
}

fn url(cluster: &RedisCluster, parameters: &str) -> String {
    let hosts: Vec<String> = cluster.nodes().iter().map(|server| server.addr().to_string()).collect();
    format!("redis+cluster://{}?{parameters}", hosts.join(","))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_survives_the_death_of_its_master_and_its_waiter_acquires_it() {
    let cluster = RedisCluster::start();
    let url = url(&cluster, "distlock.response_timeout=1s&distlock.min_replicas=1");
    let (holder, waiter) = (locks(&url, ms(20_000)).await, locks(&url, ms(20_000)).await);
    let guard = holder.mutex("m").acquire().await.unwrap();
    let elsewhere = holder.mutex("on another node").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let mutex = waiter.mutex("m");
        async move { mutex.acquire().timeout(LIMIT * 2).await }
    });
    until("a waiter", async || {
        holder.inspect(&Query::named("m")).await.unwrap().iter().any(|record| record.waiters.len() == 1)
    })
    .await;
    let old = cluster.master_of("distlock:m");
    old.kill();
    let new = cluster.master_of("distlock:m");
    assert_ne!(new.port(), old.port());
    assert!(!guard.is_lost() && !waiting.is_finished());
    old.start_again();
    cluster.wait_healthy();
    until("a renewal at the new master", async || {
        let master = cluster.master_of("distlock:m");
        master.command(&["PTTL", "distlock:m"]).text().parse::<i64>().is_ok_and(|left| left > 13_000)
    })
    .await;
    let token = guard.token();
    guard.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    assert!(next.token() > token && !elsewhere.is_lost(), "{:?}", elsewhere.loss());
    next.release().await.unwrap();
    elsewhere.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_look_like_hash_tags_keep_all_keys_of_a_lock_in_one_slot() {
    let cluster = shared();
    for prefix in ["tags:", "", "{app}:", "a}"] {
        let url = url(cluster, &format!("distlock.prefix={prefix}"));
        let (one, other) = (locks(&url, ms(10_000)).await, locks(&url, ms(10_000)).await);
        for name in ["{a}b", "a{b", "a}b", "{}a", "}{", "{{a}}", "x{y}z{w}", "{", "}", "{}", "ключ{"] {
            let mutex = one.mutex(name).acquire().await.unwrap();
            let writer = one.rw_lock(name).write().await.unwrap();
            let permit = one.semaphore(name, 2).acquire().await.unwrap();
            // A contended attempt also uses the queue key.
            assert!(other.mutex(name).try_acquire().timeout(ms(20)).await.unwrap().is_none(), "{name}");
            let plain = format!("{prefix}{name}");
            let at = cluster.master_of(&plain);
            assert_eq!(at.command(&["GET", &plain]).text(), value_of(&mutex));
            let held = one.inspect(&Query::named(name)).await.unwrap();
            assert_eq!(held.len(), 3, "{name}: {held:?}");
            mutex.release().await.unwrap();
            writer.release().await.unwrap();
            permit.release().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_split_among_the_nodes_and_its_replies_keep_the_order() {
    let cluster = shared();
    let locks = locks(&url(cluster, "distlock.prefix=batch:"), ms(10_000)).await;
    let tasks: Vec<_> = (0..300)
        .map(|n| {
            let locks = locks.clone();
            tokio::spawn(async move { locks.mutex(format!("m{n}")).acquire().await.unwrap() })
        })
        .collect();
    let mut guards = Vec::new();
    for task in tasks {
        guards.push(task.await.unwrap());
    }
    for guard in &guards {
        let plain = format!("batch:{}", guard.resource().name());
        let at = cluster.master_of(&plain);
        assert_eq!(at.command(&["GET", &plain]).text(), value_of(guard));
    }
    // From all masters.
    let names: HashSet<String> = locks
        .inspect(&Query::prefixed("m"))
        .await
        .unwrap()
        .into_iter()
        .filter_map(|record| record.name)
        .collect();
    assert_eq!(names.len(), 300);
    for guard in guards {
        guard.release().await.unwrap();
    }
}

/// The node id.
fn id(node: &RedisServer) -> String {
    node.command(&["CLUSTER", "MYID"]).text()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_moves_while_its_lock_is_held_takes_the_lock_with_it() {
    let cluster = shared();
    let url = url(cluster, "distlock.prefix={moving}:&distlock.response_timeout=1s");
    let locks = locks(&url, ms(3000)).await;
    let guard = locks.mutex("m").acquire().await.unwrap();
    let permit = locks.semaphore("s", 1).acquire().await.unwrap();
    let from = cluster.master_of("{moving}:m");
    let slot = from.command(&["CLUSTER", "KEYSLOT", "{moving}:m"]).text();
    let to = cluster
        .nodes()
        .iter()
        .find(|node| node.info("role") == "master" && node.port() != from.port())
        .expect("another master");
    assert_eq!(to.command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]).text(), "OK");
    assert_eq!(from.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]).text(), "OK");
    // A new name goes to the old node, which redirects us (ASK).
    locks.semaphore("new", 1).acquire().timeout(LIMIT).await.unwrap().release().await.unwrap();
    assert_ne!(to.command(&["CLUSTER", "COUNTKEYSINSLOT", &slot]), Reply::Integer(0));
    // The last token may be there already, or forgotten, for longer than the lease: a renewal names only the lock.
    let forget = r"return redis.call('DEL', '{moving}:\255n:')";
    assert_eq!(from.command(&["EVAL", forget, "1", "{moving}:m"]), Reply::Integer(1));
    tokio::time::sleep(ms(3500)).await;
    assert!(!guard.is_lost() && !permit.is_lost(), "{:?} {:?}", guard.loss(), permit.loss());
    // A mutex has several keys. While they are on different nodes the cluster refuses them (TRYAGAIN), and the attempt waits until
    // the slot has moved.
    let waiting = tokio::spawn({
        let mutex = locks.mutex("new");
        async move { mutex.acquire().timeout(LIMIT).await }
    });
    let port = to.port().to_string();
    until("all keys have moved", async || {
        let migrate = "local keys = redis.call('KEYS', '{moving}:*') if #keys == 0 then return 'EMPTY' end \
                       return redis.call('MIGRATE', '127.0.0.1', ARGV[1], '', 0, 2000, 'KEYS', unpack(keys))";
        let _ = from.command(&["EVAL", migrate, "1", "{moving}:m", &port]);
        from.command(&["CLUSTER", "COUNTKEYSINSLOT", &slot]) == Reply::Integer(0)
    })
    .await;
    for node in [to, from] {
        assert_eq!(node.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &id(to)]).text(), "OK");
    }
    waiting.await.unwrap().unwrap().release().await.unwrap();
    // From now on the old node replies MOVED.
    tokio::time::sleep(ms(3500)).await;
    assert!(!guard.is_lost() && !permit.is_lost(), "{:?} {:?}", guard.loss(), permit.loss());
    assert_eq!(to.command(&["GET", "{moving}:m"]).text(), value_of(&guard));
    guard.release().await.unwrap();
    permit.release().await.unwrap();
    let again = locks.mutex("m").acquire().timeout(LIMIT).await.unwrap();
    again.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pushed_grant_repeats_its_attempt_whichever_node_the_waiter_subscribes_at() {
    use common::claims::{KINDS, busy, claim, granted, next_grant, release, waiting};
    use distlock_core::store::{Inbox, LeaseStore};
    let store = common::store(&url(shared(), "distlock.prefix=pushed:")).await;
    let mut wakes = store.subscribe(&Inbox::new("mine")).await.unwrap();
    for kind in KINDS {
        // Names on all nodes.
        for name in ["a", "b", "c", "d", "e"] {
            let (holder, waiter) = (claim(kind, name, "holder#1"), claim(kind, name, "waiter#1"));
            granted(&store, &holder).await;
            for attempt in [7, 6] {
                busy(&store, &waiting(waiter.clone(), "mine", LIMIT, attempt)).await;
            }
            release(&store, &holder).await;
            assert_eq!(next_grant(&mut wakes, &waiter.lock_id).await.attempt, 7, "{kind} {name}");
            release(&store, &waiter).await;
        }
    }
}
