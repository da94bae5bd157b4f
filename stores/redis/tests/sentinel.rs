//! Sentinel: the master is found, and found again after a fail-over.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{LIMIT, locks, ms, until, value_of};
use distlock_core::ErrorKind;
use distlock_core::store::Query;
use distlock_testkit::servers::redis::resp::Reply;
use distlock_testkit::servers::{RedisSentinel, RedisServer};

fn url(sentinel: &RedisSentinel, parameters: &str) -> String {
    let hosts: Vec<String> = sentinel.sentinels().iter().map(|server| server.addr().to_string()).collect();
    format!("redis+sentinel://{}/{}?{parameters}", hosts.join(","), RedisSentinel::MASTER_NAME)
}

/// Whether a server has a lock of this name under this id.
fn has(server: &RedisServer, name: &str, id: &str) -> bool {
    server
        .try_command(&["GET", &format!("distlock:{name}")])
        .is_ok_and(|reply| reply == Reply::Text(id.into()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_replicas_confirmed_survives_the_death_of_its_master_and_its_waiter_acquires_it() {
    let sentinel = RedisSentinel::start();
    // One of three sentinels does not reply: the other two are a majority.
    sentinel.sentinels()[0].pause();
    let url = url(&sentinel, "distlock.min_replicas=2&distlock.response_timeout=1s");
    let (holder, waiter) = (locks(&url, ms(15_000)).await, locks(&url, ms(15_000)).await);
    let guard = holder.mutex("m").acquire().await.unwrap();
    let permit = holder.semaphore("s", 1).acquire().await.unwrap();
    let old = sentinel.master();
    let replicas = sentinel.data_servers().iter().filter(|server| server.port() != old.port());
    assert!(replicas.into_iter().all(|server| has(server, "m", &value_of(&guard))));
    let waiting = tokio::spawn({
        let mutex = waiter.mutex("m");
        async move { mutex.acquire().timeout(LIMIT * 3).await }
    });
    until("a waiter", async || {
        holder.inspect(&Query::named("m")).await.unwrap().iter().any(|record| record.waiters.len() == 1)
    })
    .await;

    sentinel.sentinels()[0].resume();
    old.kill();
    let new = sentinel.master();
    assert_ne!(new.port(), old.port());
    // Two replicas can no longer confirm, so nothing new is granted; the granted lock is still there.
    assert!(has(new, "m", &value_of(&guard)));
    assert!(!guard.is_lost() && !permit.is_lost() && !waiting.is_finished());

    old.start_again();
    sentinel.wait_healthy();
    let token = guard.token();
    guard.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();
    assert!(!permit.is_lost(), "{:?}", permit.loss());
    permit.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_master_is_replaced_and_does_no_harm_when_it_resumes() {
    let sentinel = RedisSentinel::start();
    let url = url(&sentinel, "distlock.response_timeout=500ms&distlock.connect_timeout=500ms");
    let locks = locks(&url, ms(2000)).await;
    locks.mutex("warm").acquire().await.unwrap().release().await.unwrap();
    let old = sentinel.master();
    old.pause();
    // First it is an outage, and the caller may retry.
    let mut last_error = None;
    until("another master takes locks", async || match locks.mutex("m").try_acquire().await {
        Ok(guard) => guard.is_some(),
        Err(error) => {
            last_error = Some(error);
            false
        }
    })
    .await;
    let error = last_error.expect("a paused master is an outage");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let new = sentinel.master();
    assert_ne!(new.port(), old.port());
    old.resume();
    until("the old master has become a replica", async || old.info("role") == "slave").await;
    let guard = locks.mutex("m").acquire().timeout(LIMIT).await.unwrap();
    assert!(has(new, "m", &value_of(&guard)));
}
