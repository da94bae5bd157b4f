//! Redlock over five real servers: some dead, some paused, one that lost its data, some whose clock is set.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{LIMIT, locks, loss_of, ms, redlock_config, until};
use distlock_core::{ErrorKind, LossReason};
use distlock_testkit::proxy::{AfterLoss, Proxy};
use distlock_testkit::servers::RedisServer;
use distlock_testkit::servers::redis::resp::Reply;

/// The limit of a node on a machine that is busy with tests.
const NODE_LIMIT: &str = "distlock.node_timeout=400ms";

fn url(servers: &[RedisServer]) -> String {
    let hosts: Vec<String> = servers.iter().map(|server| server.addr().to_string()).collect();
    format!("redlock://{}?{NODE_LIMIT}", hosts.join(","))
}

/// The number of servers on which this lock id holds the name.
fn votes(servers: &[RedisServer], name: &str, id: &str) -> usize {
    let key = format!("distlock:{name}");
    let has = |server: &&RedisServer| {
        server.is_running()
            && !server.is_paused()
            && server.try_command(&["GET", &key]).is_ok_and(|reply| reply.text().starts_with(id))
    };
    servers.iter().filter(has).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_dead_of_five_cost_nothing_and_three_are_an_outage() {
    let servers = RedisServer::start_many(5);
    let (one, other) = (locks(&url(&servers), ms(2000)).await, locks(&url(&servers), ms(2000)).await);
    let guard = one.mutex("m").acquire().await.unwrap();
    servers[0].kill();
    servers[1].pause();
    assert!(other.mutex("m").try_acquire().await.unwrap().is_none());
    tokio::time::sleep(ms(3000)).await;
    assert!(!guard.is_lost(), "{:?}", guard.loss());
    let token = guard.token();
    guard.release().await.unwrap();
    let next = other.mutex("m").acquire().timeout(LIMIT).await.unwrap();
    assert!(next.token() > token);

    servers[2].kill();
    let error = one.mutex("n").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    // Two of five renew it, which is no majority.
    assert!(matches!(loss_of(&next).await, LossReason::Expired { .. }));
    // The failed claim leaves nothing on the servers that granted it.
    until("the votes for the failed claim are withdrawn", async || {
        servers[3..].iter().all(|server| server.command(&["EXISTS", "distlock:n"]) == Reply::Integer(0))
    })
    .await;

    servers[0].start_again();
    let again = one.mutex("m").acquire().timeout(LIMIT).await.unwrap();
    assert!(again.token() > next.token());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_lost_its_data_while_a_lock_is_held_lets_no_second_holder_in() {
    let servers = RedisServer::start_many(5);
    let (one, other) = (locks(&url(&servers), ms(30_000)).await, locks(&url(&servers), ms(30_000)).await);
    let guard = one.mutex("m").acquire().await.unwrap();
    until("all five servers have it", async || votes(&servers, "m", guard.lock_id().as_str()) == 5).await;
    for restarted in [&servers[0], &servers[1]] {
        restarted.restart();
        assert_eq!(restarted.command(&["DBSIZE"]), Reply::Integer(0));
        for _ in 0..5 {
            assert!(other.mutex("m").try_acquire().await.unwrap().is_none(), "a second holder");
        }
        assert!(!guard.is_lost());
    }
    guard.release().await.unwrap();
    other.mutex("m").acquire().timeout(LIMIT).await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_needs_a_majority_of_all_nodes_and_not_of_those_that_granted() {
    let servers = RedisServer::start_many(5);
    // Only three servers can grant it.
    servers[3].kill();
    servers[4].kill();
    let locks = locks(&url(&servers), ms(1500)).await;
    let guard = locks.mutex("m").acquire().await.unwrap();
    assert_eq!(votes(&servers[..3], "m", guard.lock_id().as_str()), 3);
    // Two are a majority of the three that granted, but not of all five.
    servers[0].kill();
    assert!(matches!(loss_of(&guard).await, LossReason::Expired { .. }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_clock_is_set_forward_loses_its_vote_and_not_the_lock() {
    let mut servers = RedisServer::start_many(2);
    servers.extend((0..3).map(|_| RedisServer::configure().valkey().movable_clock().start()));
    let (one, other) = (locks(&url(&servers), ms(20_000)).await, locks(&url(&servers), ms(20_000)).await);
    let guard = one.mutex("m").acquire().await.unwrap();
    until("all five servers have it", async || votes(&servers, "m", guard.lock_id().as_str()) == 5).await;
    for server in &servers[3..] {
        server.set_clock_offset("+1d");
    }
    until("it has expired on two of five", async || votes(&servers[3..], "m", guard.lock_id().as_str()) == 0)
        .await;
    for _ in 0..5 {
        assert!(other.mutex("m").try_acquire().await.unwrap().is_none(), "a second holder");
    }
    assert!(!guard.is_lost());
    // A majority that includes one of these has a token of tomorrow; later tokens are still higher.
    let mut last = guard.token();
    guard.release().await.unwrap();
    for round in 0..6 {
        if round == 3 {
            servers[3..].iter().for_each(|server| server.set_clock_offset("-3600"));
        }
        let locks = if round % 2 == 0 { &one } else { &other };
        let guard = locks.mutex("m").acquire().timeout(LIMIT).await.unwrap();
        assert!(guard.token() > last, "{:?} after {last:?}", guard.token());
        last = guard.token();
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_of_a_node_that_comes_too_late_is_withdrawn() {
    let servers = RedisServer::start_many(3);
    let proxies: Vec<Proxy> = servers.iter().map(|server| Proxy::start(server.addr())).collect();
    let hosts: Vec<String> = proxies.iter().map(|proxy| proxy.addr().to_string()).collect();
    let url = format!("redlock://{}?distlock.node_timeout=200ms", hosts.join(","));
    let locks = locks(&url, ms(30_000)).await;
    locks.mutex("warm").acquire().await.unwrap().release().await.unwrap();
    // Two nodes apply the claim and their replies are lost: no majority is known.
    for proxy in &proxies[1..] {
        proxy.lose_reply_to("EVALSHA", AfterLoss::Close);
    }
    // Whether the retry succeeds or not, no lock without a holder may remain.
    match locks.mutex("m").try_acquire().await {
        Ok(Some(guard)) => guard.release().await.unwrap(),
        Ok(None) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
    }
    until("no node holds anything", async || {
        servers.iter().all(|server| server.command(&["EXISTS", "distlock:m"]) == Reply::Integer(0))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn semaphores_and_fair_mutexes_over_a_quorum_are_refused_with_the_reason() {
    let servers = RedisServer::start_many(3);
    let locks = locks(&url(&servers), ms(5000)).await;
    for error in [
        locks.semaphore("s", 2).acquire().await.unwrap_err(),
        locks.mutex("m").fair().acquire().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("major") || error.to_string().contains("queue"), "{error}");
    }
    let reader = locks.rw_lock("r").read().await.unwrap();
    assert!(locks.rw_lock("r").try_write().await.unwrap().is_none());
    reader.release().await.unwrap();
    let findings = locks.doctor().await.unwrap();
    assert!(findings.iter().any(|finding| finding.what.contains("quorum of 3")), "{findings:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redlock_connects_with_a_majority_and_not_with_less() {
    let servers = RedisServer::start_many(3);
    servers[0].kill();
    locks(&url(&servers), ms(2000)).await.mutex("m").acquire().await.unwrap().release().await.unwrap();
    servers[1].kill();
    let error = redlock_config(&url(&servers)).unwrap().connect().await.expect_err("one of three");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("1 of 3"), "{error}");
}
