//! Refusals of the server: memory, logins, rights, roles. Each has a defined behaviour and a clear error.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{LIMIT, calls, config, locks, ms, store, until, value_of};
use distlock_core::store::{
    Attempt, Claim, Inbox, Lease, LeaseStore, Level, Query, Released, Renewal, Waiting,
};
use distlock_core::{Error, ErrorKind, Kind, LockId, LockIds, Resource};
use distlock_redis::RedisStore;
use distlock_testkit::servers::RedisServer;
use distlock_testkit::servers::redis::resp::Reply;

async fn refused(url: &str) -> Error {
    RedisStore::connect(config(url).unwrap()).await.expect_err("the server should have refused")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_out_of_memory_refuses_new_locks_and_still_renews_and_releases_held_ones() {
    let server = RedisServer::start();
    let locks = locks(&server.url(), ms(1200)).await;
    let mutex = locks.mutex("m").acquire().await.unwrap();
    let permit = locks.semaphore("s", 2).acquire().await.unwrap();
    assert_eq!(server.command(&["CONFIG", "SET", "maxmemory", "1"]).text(), "OK");
    for error in
        [locks.mutex("other").acquire().await.unwrap_err(), locks.rw_lock("other").read().await.unwrap_err()]
    {
        assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
        assert!(!error.can_retry() && error.advice().is_some());
    }
    tokio::time::sleep(ms(2500)).await;
    assert!(!mutex.is_lost() && !permit.is_lost(), "{:?} {:?}", mutex.loss(), permit.loss());
    mutex.release().await.unwrap();
    permit.release().await.unwrap();
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    locks.mutex("other").acquire().await.unwrap().release().await.unwrap();
}

/// A batch that needs no memory: a retry of a granted claim, whose reply was lost, and a claim for a held lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_out_of_memory_still_tells_what_is_held_and_what_is_ours() {
    let server = RedisServer::start();
    let store = store(&server.url()).await;
    let claim = |name: &str, id: &str| {
        let resource = Resource::new(Kind::Mutex, name).unwrap();
        Claim::new(resource, LockId::from_stored(id), ms(60_000))
    };
    let (ours, theirs) = (claim("a", "ours"), claim("b", "theirs"));
    let first = store.try_acquire(&[ours.clone(), theirs]).await.unwrap();
    let Ok(Attempt::Granted { token, .. }) = &first[0] else { panic!("{first:?}") };
    assert_eq!(server.command(&["CONFIG", "SET", "maxmemory", "1"]).text(), "OK");
    let batch = [ours.clone(), claim("b", "another")];
    let new = [claim("new", "third")];
    let answers = store.try_acquire(&batch).await.unwrap();
    assert!(
        matches!(&answers[0], Ok(Attempt::Granted { token: again, .. }) if again == token),
        "{answers:?}"
    );
    assert!(matches!(&answers[1], Ok(Attempt::Busy { .. })), "{answers:?}");
    let refused = store.try_acquire(&new).await.unwrap().remove(0);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Exhausted);
    for alone in &batch {
        assert!(store.try_acquire(std::slice::from_ref(alone)).await.unwrap()[0].is_ok(), "{alone:?}");
    }
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    let Ok(Attempt::Granted { token: next, .. }) = store.try_acquire(&new).await.unwrap().remove(0) else {
        panic!("there is memory again")
    };
    assert!(next > *token);
}

#[tokio::test(flavor = "multi_thread")]
async fn passwords_and_users_are_checked_and_never_shown() {
    let server = RedisServer::start();
    assert_eq!(server.command(&["CONFIG", "SET", "requirepass", "s3cret"]).text(), "OK");
    let addr = server.addr();
    for url in [
        format!("redis://{addr}"),
        format!("redis://:wr0ng@{addr}"),
        format!("redis://unknown:s3cret@{addr}"),
    ] {
        let error = refused(&url).await;
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(!error.to_string().contains("s3cret") && !error.to_string().contains("wr0ng"), "{error}");
        assert!(error.advice().is_some(), "{error}");
    }
    let locks = locks(&format!("redis://:s3cret@{addr}/3"), ms(5000)).await;
    assert!(!format!("{locks:?}").contains("s3cret"));
    let guard = locks.mutex("m").acquire().await.unwrap();
    // In the database of the URL, not in database 0.
    assert_eq!(locks.inspect(&Query::named("m")).await.unwrap().len(), 1);
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_rights_are_reported_and_the_documented_rights_suffice_for_everything() {
    let server = RedisServer::start();
    let addr = server.addr();
    let rights = "+eval +evalsha +time +get +mget +set +del +exists +pexpire +pttl +hget +hmget +hset +hdel +hlen \
                  +hgetall +publish +subscribe +unsubscribe +scan +info +wait +role";
    let set_user = |name: &str, rights: &str| {
        let mut words = vec!["ACL", "SETUSER", name, "on", ">pw", "resetkeys", "resetchannels", "-@all"];
        words.extend(rights.split_whitespace());
        assert_eq!(server.command(&words).text(), "OK");
    };
    set_user("full", &format!("~app:* &app:* {rights}"));
    set_user("blind", &format!("~other:* &app:* {rights}"));
    set_user("poor", "~app:* &app:* +eval +evalsha +time +get");

    let full = locks(&format!("redis://full:pw@{addr}?distlock.prefix=app:"), ms(5000)).await;
    full.mutex("m").acquire().await.unwrap().release().await.unwrap();
    full.semaphore("s", 3).acquire().await.unwrap().release().await.unwrap();
    full.mutex("f").fair().acquire().await.unwrap().release().await.unwrap();
    let findings = full.doctor().await.unwrap();
    assert!(findings.iter().any(|finding| finding.what.contains("could be acquired")), "{findings:?}");
    let batches = store(&format!("redis://full:pw@{addr}?distlock.prefix=app:")).await;
    // Empty the log of refusals: doctor also tries commands that locks do not need.
    server.command(&["ACL", "LOG", "RESET"]);
    lock_in_batches(&batches).await;
    let refused = server.command(&["ACL", "LOG"]);
    assert!(refused.list().is_empty(), "a script used a fallback because a right is missing: {refused:?}");
    for user in ["blind", "poor"] {
        let locks = locks(&format!("redis://{user}:pw@{addr}?distlock.prefix=app:"), ms(5000)).await;
        let error = locks.mutex("m").acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{user}: {error}");
        assert!(error.advice().is_some_and(|advice| advice.contains("doctor")), "{error}");
    }
    assert_eq!(server.command(&["EXISTS", "app:m"]), Reply::Integer(0));
}

/// A long queue, and batches.
async fn lock_in_batches(store: &RedisStore) {
    for n in 0..150 {
        let resource = Resource::new(Kind::Mutex, "long").unwrap();
        let waiting = Waiting::new(Inbox::new("nowhere"), ms(5000), 1);
        let claim = Claim::new(resource, LockId::from_stored(format!("id#{n}")), ms(5000));
        store.try_acquire(&[claim.with_waiting(waiting)]).await.unwrap().remove(0).unwrap();
    }
    let ids = LockIds::new("many");
    let claims =
        ["a", "b"].map(|name| Claim::new(Resource::new(Kind::Mutex, name).unwrap(), ids.next(), ms(5000)));
    let mut leases = Vec::new();
    for (claim, answer) in claims.iter().zip(store.try_acquire(&claims).await.unwrap()) {
        let Ok(Attempt::Granted { token, .. }) = answer else { panic!("{answer:?}") };
        leases.push(Lease::of(claim, token));
    }
    assert!(store.renew(&leases).await.unwrap().iter().all(|one| matches!(one, Ok(Renewal::Renewed))));
    assert!(store.release(&leases).await.unwrap().iter().all(|one| matches!(one, Ok(Released::Done { .. }))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_is_an_outage_with_a_clear_cause() {
    let master = RedisServer::start();
    let port = master.port().to_string();
    let replica = RedisServer::configure().args(["--replicaof", "127.0.0.1", &port]).start();
    until("the replica is connected", async || replica.info("master_link_status") == "up").await;
    let locks = locks(&replica.url(), ms(5000)).await;
    // With min_replicas, a master that is demoted right after the script refuses the WAIT behind it.
    let confirmed = common::locks(&format!("{}?distlock.min_replicas=1", replica.url()), ms(5000)).await;
    for error in [
        locks.mutex("m").acquire().await.unwrap_err(),
        locks.semaphore("s", 1).acquire().await.unwrap_err(),
        confirmed.mutex("m").acquire().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("replica"), "{error}");
    }
    // It becomes a master, as after a fail-over behind one host name.
    replica.command(&["REPLICAOF", "NO", "ONE"]);
    locks.mutex("m").acquire().timeout(LIMIT).await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_counts_only_after_min_replicas_have_confirmed_it() {
    let master = RedisServer::start();
    let port = master.port().to_string();
    let replica = RedisServer::configure().args(["--replicaof", "127.0.0.1", &port]).start();
    until("the replica confirms", async || {
        master.command(&["SET", "any", "thing"]);
        master.command(&["WAIT", "1", "100"]) == Reply::Integer(1)
    })
    .await;
    let url = format!("{}?distlock.min_replicas=1&distlock.response_timeout=3s", master.url());
    let (one, other) = (locks(&url, ms(8000)).await, locks(&url, ms(8000)).await);
    let guard = one.mutex("m").acquire().await.unwrap();
    assert_eq!(replica.command(&["GET", "distlock:m"]).text(), value_of(&guard));
    // The waiter is woken and asks: a pushed grant would arrive before the replica confirms.
    let waiting = tokio::spawn({
        let mutex = other.mutex("m");
        async move { mutex.acquire().timeout(LIMIT).await }
    });
    until("a waiter", async || {
        one.inspect(&Query::named("m")).await.unwrap().iter().any(|record| record.waiters.len() == 1)
    })
    .await;
    guard.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    assert_eq!(replica.command(&["GET", "distlock:m"]).text(), value_of(&next));
    next.release().await.unwrap();

    replica.pause();
    let error = one.mutex("alone").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("min_replicas"), "{error}");
    until("the unconfirmed grant is withdrawn", async || {
        master.command(&["EXISTS", "distlock:alone"]) == Reply::Integer(0)
    })
    .await;
    let findings = one.doctor().await.unwrap();
    assert!(findings.iter().all(|finding| finding.level == Level::Ok || finding.advice.is_some()));
    replica.resume();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_node_and_a_single_server_are_distinguished() {
    let node = RedisServer::configure().cluster_node().start();
    let all: Vec<String> = (0..16_384).map(|slot| slot.to_string()).collect();
    let mut words = vec!["CLUSTER", "ADDSLOTS"];
    words.extend(all.iter().take(100).map(String::as_str));
    assert_eq!(node.command(&words).text(), "OK");
    // Some slots are not served: the node refuses without a redirection.
    let locks = locks(&node.url(), ms(5000)).await;
    let error = locks.mutex("m").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");

    let single = RedisServer::start();
    let error = refused(&format!("redis+cluster://{}", single.addr())).await;
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    let error = refused(&format!("redis+sentinel://{}/mymaster", single.addr())).await;
    assert!(error.to_string().contains("sentinel"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_warns_of_dangerous_settings() {
    let server =
        RedisServer::configure().args(["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]).start();
    let port = server.port().to_string();
    let replica = RedisServer::configure().args(["--replicaof", "127.0.0.1", &port]).start();
    until("the replica is connected", async || server.info("connected_slaves") == "1").await;
    let findings = locks(&server.url(), ms(5000)).await.doctor().await.unwrap();
    let warned = |word: &str| {
        findings.iter().any(|finding| {
            finding.level == Level::Warning && finding.what.contains(word) && finding.advice.is_some()
        })
    };
    assert!(warned("allkeys-lru") && warned("on disk") && warned("replicas"), "{findings:#?}");
    drop(replica);

    let durable = RedisServer::configure().args(["--appendonly", "yes"]).start();
    let findings = locks(&durable.url(), ms(5000)).await.doctor().await.unwrap();
    assert!(findings.iter().all(|finding| finding.level == Level::Ok), "{findings:#?}");
    assert_eq!(calls(&durable, "keys"), 0, "SCAN, never KEYS");
}
