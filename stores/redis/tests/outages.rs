//! Outages of one server: killed, paused, restarted empty, or with lost replies.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::Arc;
use std::time::Instant;

use common::{LIMIT, calls, locks, locks_of, loss_of, ms, store, until, value_of};
use distlock_core::store::{Attempt, Claim, Lease, LeaseStore, Released, Renewal};
use distlock_core::{ErrorKind, FencingToken, Kind, LockId, LossReason, Options, Resource};
use distlock_testkit::proxy::{AfterLoss, Proxy};
use distlock_testkit::servers::RedisServer;
use distlock_testkit::servers::redis::resp::Reply;

fn claim(name: &str, id: &str) -> Claim {
    Claim::new(Resource::new(Kind::Mutex, name).unwrap(), LockId::from_stored(id), ms(5000))
}

async fn attempt(store: &impl LeaseStore, claim: &Claim) -> distlock_core::Result<Attempt> {
    store.try_acquire(std::slice::from_ref(claim)).await.unwrap().pop().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_is_an_outage_not_contention_and_its_holders_lose_their_locks() {
    let server = RedisServer::start();
    let locks = locks(&server.url(), ms(800)).await;
    let guard = locks.mutex("m").acquire().await.unwrap();
    server.kill();
    let error = locks.mutex("other").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains(&server.addr().to_string()), "{error}");
    assert!(matches!(loss_of(&guard).await, LossReason::Expired { last_error: Some(_) }));
    let token = guard.token();

    server.start_again();
    let again = locks.mutex("m").acquire().timeout(LIMIT).await.unwrap();
    assert!(again.token() > token);
    again.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_survives_the_restart_of_a_server_that_persists() {
    let server = RedisServer::configure().args(["--appendonly", "yes", "--appendfsync", "always"]).start();
    let locks = locks(&server.url(), ms(3000)).await;
    let guard = locks.mutex("m").acquire().await.unwrap();
    server.kill();
    server.start_again();
    until("a renewal after the restart", async || calls(&server, "evalsha") > 0).await;
    tokio::time::sleep(ms(3500)).await;
    assert!(!guard.is_lost(), "{:?}", guard.loss());
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_loading_its_data_is_an_outage_that_ends_by_itself() {
    // Fifty milliseconds per key. The server replies in between, every two megabytes.
    let slow = ["--key-load-delay", "50000", "--rdbcompression", "no"];
    let server = Arc::new(RedisServer::configure().args(slow).start());
    let locks = locks(&server.url(), ms(20_000)).await;
    let guard = locks.mutex("m").acquire().await.unwrap();
    let fill = "for key = 1, 40 do redis.call('SET', 'fill' .. key, string.rep('x', 1000000)) end";
    server.command(&["EVAL", fill, "0"]);
    server.command(&["SAVE"]);
    server.kill();
    let restart = tokio::task::spawn_blocking({
        let server = Arc::clone(&server);
        move || server.start_again()
    });
    let is_loading = |reply: Reply| matches!(reply, Reply::Error(text) if text.starts_with("LOADING"));
    until("the server is loading", async || server.try_command(&["GET", "m"]).is_ok_and(is_loading)).await;
    let error = locks.mutex("other").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("load") && error.can_retry(), "{error}");
    assert!(server.try_command(&["GET", "m"]).is_ok_and(is_loading), "it was loading all the time");

    restart.await.unwrap();
    locks.mutex("other").acquire().timeout(LIMIT).await.unwrap().release().await.unwrap();
    assert!(!guard.is_lost(), "{:?}", guard.loss());
    assert!(locks.mutex("m").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_paused_for_longer_than_the_expiry_has_no_holder_when_it_resumes() {
    let server = RedisServer::start();
    let url = format!("{}?distlock.response_timeout=300ms", server.url());
    let (one, other) = (locks(&url, ms(600)).await, locks(&url, ms(600)).await);
    let guard = one.mutex("m").acquire().await.unwrap();
    let token = guard.token();
    // Both clients now know the server's clock, and so the deadline of a request.
    other.mutex("warm").acquire().await.unwrap().release().await.unwrap();
    server.pause();
    loss_of(&guard).await;
    // Claims for a paused server stay in its sockets. They time out, and their withdrawal comes over another connection:
    // whichever the server reads first, nothing may be left.
    for _ in 0..3 {
        let error = other.mutex("late").acquire().timeout(ms(700)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    server.resume();
    let next = other.mutex("m").acquire().timeout(LIMIT).await.unwrap();
    assert!(next.token() > token && guard.is_lost());
    let started = Instant::now();
    let free = other.mutex("late").acquire().timeout(LIMIT).await.unwrap();
    assert!(started.elapsed() < ms(500), "a claim that was given up was granted: {:?}", started.elapsed());
    free.release().await.unwrap();
    next.release().await.unwrap();
    // By now the server has read everything in its sockets.
    assert_eq!(server.command(&["EXISTS", "distlock:late"]), Reply::Integer(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_the_server_reads_after_its_deadline_is_not_applied() {
    let server = RedisServer::start();
    let url = format!("{}?distlock.response_timeout=200ms", server.url());
    let store = store(&url).await;
    let warm = claim("warm", "given-up#0");
    assert!(matches!(attempt(&store, &warm).await, Ok(Attempt::Granted { .. })));
    let before = calls(&server, "evalsha");
    server.pause();
    let error = attempt(&store, &claim("late", "given-up#1")).await.unwrap_err();
    assert!(error.is_outcome_unknown(), "{error}");
    server.resume();
    until("the server has read its sockets", async || calls(&server, "evalsha") > before).await;
    assert_eq!(server.command(&["EXISTS", "distlock:late"]), Reply::Integer(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn holders_learn_that_a_server_restarted_empty_and_tokens_still_rise() {
    let server = RedisServer::start();
    let locks = locks(&server.url(), ms(2000)).await;
    let mutex = locks.mutex("m").acquire().await.unwrap();
    let permit = locks.semaphore("s", 2).acquire().await.unwrap();
    server.restart();
    assert_eq!(loss_of(&mutex).await, LossReason::NotYours);
    assert_eq!(loss_of(&permit).await, LossReason::NotYours);
    let (mutex_again, permit_again) = (
        locks.mutex("m").acquire().timeout(LIMIT).await.unwrap(),
        locks.semaphore("s", 2).acquire().timeout(LIMIT).await.unwrap(),
    );
    assert!(mutex_again.token() > mutex.token() && permit_again.token() > permit.token());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_whose_reply_was_lost_is_recognised_as_ours() {
    for after in [AfterLoss::Close, AfterLoss::Hang] {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.addr());
        let url = format!("{}?distlock.response_timeout=300ms", proxy.through(&server.url()));
        let locks = locks(&url, ms(10_000)).await;
        locks.mutex("warm").acquire().await.unwrap().release().await.unwrap();
        proxy.lose_reply_to("EVALSHA", after);
        let guard = locks.mutex("m").acquire().timeout(LIMIT).await.unwrap();
        assert_eq!(server.command(&["GET", "distlock:m"]).text(), value_of(&guard));
        guard.release().await.unwrap();
        assert_eq!(server.command(&["EXISTS", "distlock:m"]), Reply::Integer(0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_open_socket_costs_a_renewal_and_not_the_lock() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.addr());
    // The driver's connection manager would keep timing out on this socket.
    let locks = locks(&proxy.through(&server.url()), ms(1500)).await;
    let guard = locks.mutex("m").acquire().await.unwrap();
    proxy.lose_reply(1, AfterLoss::Hang);
    let accepted = proxy.counters().accepted;
    until("another connection", async || proxy.counters().accepted > accepted).await;
    tokio::time::sleep(ms(3000)).await;
    assert!(!guard.is_lost(), "{:?}", guard.loss());
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_whose_reply_was_lost_frees_the_lock() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.addr());
    let url = format!("{}?distlock.response_timeout=300ms", proxy.through(&server.url()));
    let locks = locks(&url, ms(10_000)).await;
    let guard = locks.mutex("m").acquire().await.unwrap();
    proxy.lose_reply_to("EVALSHA", AfterLoss::Hang);
    // Its outcome is unknown; the engine retries until the lock is released.
    let _ = guard.release().await;
    until("the key is gone", async || server.command(&["EXISTS", "distlock:m"]) == Reply::Integer(0)).await;
    locks.mutex("m").acquire().timeout(LIMIT).await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_are_woken_again_after_their_connections_were_cut() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.addr());
    let url = proxy.through(&server.url());
    let (holder, waiter) = (locks(&server.url(), ms(30_000)).await, locks(&url, ms(30_000)).await);
    let guard = holder.mutex("m").acquire().await.unwrap();
    let waiting = tokio::spawn(async move { waiter.mutex("m").acquire().timeout(LIMIT).await });
    let subscribed = async || !server.command(&["PUBSUB", "CHANNELS", "distlock:*"]).list().is_empty();
    until("a subscription", subscribed).await;
    proxy.cut();
    until("another subscription", subscribed).await;
    let queued = async || queue_length(&server) > 0;
    until("a queue entry", queued).await;
    guard.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

/// How many fields the wait queue of the only mutex has.
fn queue_length(server: &RedisServer) -> u64 {
    let script =
        "local queue = redis.call('KEYS', 'distlock:{*')[1] return queue and redis.call('HLEN', queue) or 0";
    server.command(&["EVAL", script, "0"]).text().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_scripts_were_flushed_gets_them_again() {
    let server = RedisServer::start();
    let store = store(&server.url()).await;
    for round in 0..2 {
        let claim = claim("m", &format!("a#{round}"));
        assert!(matches!(attempt(&store, &claim).await, Ok(Attempt::Granted { .. })));
        server.command(&["SCRIPT", "FLUSH"]);
        let lease = [Lease::of(&claim, FencingToken::new(0))];
        assert!(matches!(store.renew(&lease).await.unwrap()[..], [Ok(Renewal::Renewed)]));
        server.command(&["SCRIPT", "FLUSH"]);
        assert!(matches!(store.release(&lease).await.unwrap()[..], [Ok(Released::Done { .. })]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_requests_share_one_attempt_to_reach_a_server_that_is_down() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.addr());
    let url = format!("{}?distlock.connect_timeout=300ms", proxy.through(&server.url()));
    let store = store(&url).await;
    proxy.cut();
    proxy.pause();
    let started = Instant::now();
    let options = Options::new().request_timeout(ms(5000)).unwrap();
    let locks = locks_of(&store, ms(5000)).with_options(options);
    let tasks: Vec<_> = (0..20)
        .map(|n| {
            let locks = locks.clone();
            tokio::spawn(async move { locks.rw_lock(format!("r{n}")).read().await.map(drop) })
        })
        .collect();
    for task in tasks {
        assert_eq!(task.await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
    }
    assert!(started.elapsed() < ms(3000), "twenty requests took {:?}", started.elapsed());
    proxy.heal();
    locks.mutex("m").acquire().timeout(LIMIT).await.unwrap().release().await.unwrap();
}
