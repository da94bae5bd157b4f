//! Other programs share our mutexes by `SET NX PX` and compare-and-delete, and every key expires.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::time::Instant;

use common::{LIMIT, calls, locks, loss_of, ms, store, until, value_of};
use distlock_core::store::Query;
use distlock_core::{ErrorKind, LossReason};
use distlock_testkit::servers::RedisServer;
use distlock_testkit::servers::redis::resp::Reply;

const COMPARE_AND_DELETE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

fn set_nx_px(server: &RedisServer, key: &str, value: &str, expiry: &str) -> bool {
    server.command(&["SET", key, value, "NX", "PX", expiry]).text() == "OK"
}

fn compare_and_delete(server: &RedisServer, key: &str, value: &str) -> Reply {
    server.command(&["EVAL", COMPARE_AND_DELETE, "1", key, value])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_of_another_program_is_busy_for_us_until_it_is_released_or_expires() {
    let server = RedisServer::start();
    let locks = locks(&server.url(), ms(30_000)).await;
    assert!(set_nx_px(&server, "distlock:m", "theirs", "30000"));
    assert!(locks.mutex("m").try_acquire().await.unwrap().is_none());
    let waiting = tokio::spawn({
        let mutex = locks.mutex("m");
        async move { mutex.acquire().timeout(LIMIT).await }
    });
    until("a waiter", async || {
        let found = locks.inspect(&Query::named("m")).await.unwrap();
        found.iter().any(|record| record.waiters.len() == 1)
    })
    .await;
    let found = locks.inspect(&Query::named("m")).await.unwrap();
    assert_eq!(found[0].holders[0].lock_id.as_str(), "theirs");
    assert!(found[0].holders[0].token.is_none() && found[0].holders[0].expires_in.is_some());
    assert_eq!(compare_and_delete(&server, "distlock:m", "theirs"), Reply::Integer(1));
    // The other program notifies no waiter; ours asks once a second.
    let guard = waiting.await.unwrap().unwrap();
    guard.release().await.unwrap();

    assert!(set_nx_px(&server, "distlock:m", "theirs", "300"));
    let started = Instant::now();
    let guard = locks.mutex("m").acquire().timeout(LIMIT).await.unwrap();
    assert!(
        started.elapsed() < ms(900),
        "acquired {:?} later, although the expiry is known",
        started.elapsed()
    );
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn our_lock_is_busy_for_another_program_until_we_release_it() {
    let server = RedisServer::start();
    let locks = locks(&server.url(), ms(30_000)).await;
    let guard = locks.mutex("m").acquire().await.unwrap();
    assert!(!set_nx_px(&server, "distlock:m", "theirs", "30000"));
    assert_eq!(compare_and_delete(&server, "distlock:m", "theirs"), Reply::Integer(0));
    let left: i64 = server.command(&["PTTL", "distlock:m"]).text().parse().unwrap();
    assert!((1..=30_000).contains(&left), "{left}");
    guard.release().await.unwrap();
    assert!(set_nx_px(&server, "distlock:m", "theirs", "30000"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_another_program_deletes_is_reported_as_lost() {
    let server = RedisServer::start();
    let locks = locks(&server.url(), ms(1200)).await;
    let guard = locks.mutex("m").acquire().await.unwrap();
    let value = server.command(&["GET", "distlock:m"]).text();
    assert_eq!(value, value_of(&guard));
    assert_eq!(compare_and_delete(&server, "distlock:m", &value), Reply::Integer(1));
    assert_eq!(loss_of(&guard).await, LossReason::NotYours);
    // The token of the next holder is still higher.
    let next = locks.mutex("m").acquire().timeout(LIMIT).await.unwrap();
    assert!(next.token() > guard.token());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_of_another_program_without_an_expiry_is_busy_until_it_is_broken() {
    let server = RedisServer::start();
    let locks = locks(&format!("{}?distlock.prefix=", server.url()), ms(5000)).await;
    server.command(&["SET", "bare", "theirs"]);
    let error = locks.mutex("bare").acquire().timeout(ms(100)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    // Forced release also works on locks of other programs.
    let broken = locks.break_lock(distlock_core::Kind::Mutex, "bare").await.unwrap();
    assert_eq!(broken[0].lock_id.as_str(), "theirs");
    locks.mutex("bare").acquire().timeout(LIMIT).await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_another_type_is_refused_and_fails_alone_in_its_batch() {
    let server = RedisServer::start();
    server.command(&["LPUSH", "distlock:list", "x"]);
    let locks = locks(&server.url(), ms(5000)).await;
    let error = locks.mutex("list").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let names = ["a", "list", "b", "c", "list", "d"];
    let tasks: Vec<_> = names
        .map(|name| {
            let locks = locks.clone();
            tokio::spawn(async move { (name, locks.mutex(name).acquire().await) })
        })
        .into();
    for task in tasks {
        let (name, outcome) = task.await.unwrap();
        assert_eq!(outcome.is_ok(), name != "list", "{name}: {outcome:?}");
    }
    assert_eq!(server.command(&["TYPE", "distlock:list"]).text(), "list");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cycle_is_two_commands_and_nothing_is_published_without_waiters() {
    let server = RedisServer::start();
    let locks = locks(&server.url(), ms(5000)).await;
    for _ in 0..3 {
        locks.mutex("warm").acquire().await.unwrap().release().await.unwrap();
    }
    let before = calls(&server, "evalsha");
    for n in 0..100 {
        locks.mutex(format!("m{n}")).acquire().await.unwrap().release().await.unwrap();
        locks.rw_lock("r").read().await.unwrap().release().await.unwrap();
    }
    assert_eq!(calls(&server, "evalsha") - before, 400);
    assert_eq!((calls(&server, "publish"), calls(&server, "subscribe")), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_key_expires_by_itself_and_a_used_mutex_leaves_nothing_behind() {
    let server = RedisServer::start();
    let url = format!("{}?distlock.retention=2s", server.url());
    let (one, other) = (locks(&url, ms(5000)).await, locks(&url, ms(5000)).await);
    let names = ["plain", "{tag}", "a}b", "{}"];
    for name in names {
        let mutex = one.mutex(name).acquire().await.unwrap();
        let writer = one.rw_lock(name).write().await.unwrap();
        let permit = one.semaphore(name, 2).acquire_many(2).await.unwrap();
        let fair = one.mutex(format!("{name} fair")).fair().acquire().await.unwrap();
        // Waiters that give up.
        assert!(other.mutex(name).try_acquire().timeout(ms(50)).await.unwrap().is_none());
        assert!(other.rw_lock(name).try_read().timeout(ms(50)).await.unwrap().is_none());
        assert!(other.semaphore(name, 2).try_acquire().timeout(ms(50)).await.unwrap().is_none());
        for key in server.command(&["KEYS", "*"]).list() {
            let left: i64 = command_on(&server, "PTTL", key).text().parse().unwrap();
            assert!(left > 0, "{key:?} never expires");
        }
        mutex.release().await.unwrap();
        writer.release().await.unwrap();
        permit.release().await.unwrap();
        fair.release().await.unwrap();
    }
    one.shutdown().await.unwrap();
    other.shutdown().await.unwrap();
    // A pool leaves its token, and all mutexes together one; no holder and no waiter is left.
    let left: Vec<(String, String)> = all_keys(&server);
    let token = |(key, what): &(String, String)| match what.as_str() {
        "t" => true,
        "string" => key == "distlock:\u{fffd}n:",
        _ => false,
    };
    assert!(left.iter().all(token) && left.len() == 3 * names.len() + 1, "{left:?}");
    // After the retention and the rest of the expiry nothing is left.
    until("nothing is left", async || server.command(&["DBSIZE"]) == Reply::Integer(0)).await;
}

/// All keys of the database with the names of their fields, or their type.
fn all_keys(server: &RedisServer) -> Vec<(String, String)> {
    let script = "local all = {} for _, k in ipairs(redis.call('KEYS', '*')) do \
                  all[#all + 1] = k \
                  all[#all + 1] = redis.call('TYPE', k).ok == 'hash' and \
                  table.concat(redis.call('HKEYS', k), ',') or redis.call('TYPE', k).ok end return all";
    let found = server.command(&["EVAL", script, "0"]);
    found.list().chunks(2).map(|pair| (pair[0].text(), pair[1].text())).collect()
}

/// Sends a command about a key whose name is not UTF-8.
fn command_on(server: &RedisServer, command: &str, key: &Reply) -> Reply {
    let script = "for _, k in ipairs(redis.call('KEYS', '*')) do \
                  if string.gsub(k, '\\255', '\\239\\191\\189') == ARGV[2] then return redis.call(ARGV[1], k) end \
                  end return -3";
    server.command(&["EVAL", script, "0", command, &key.text()])
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_waiters_behind_a_live_one_do_not_accumulate() {
    use distlock_core::store::{Claim, Inbox, LeaseStore, Store, Waiting};
    use distlock_core::{Kind, LockId, Resource};
    let server = RedisServer::start();
    let store = store(&server.url()).await;
    let claim = |kind, id: String, ttl| {
        Claim::new(Resource::new(kind, "busy").unwrap(), LockId::from_stored(id), ms(60_000))
            .with_waiting(Waiting::new(Inbox::new("nowhere"), ms(ttl), 1))
    };
    for kind in [Kind::Mutex, Kind::Semaphore] {
        store.try_acquire(&[claim(kind, "holder#0".into(), 60_000)]).await.unwrap();
        store.try_acquire(&[claim(kind, "first#0".into(), 60_000)]).await.unwrap();
        for n in 0..1000 {
            store.try_acquire(&[claim(kind, format!("dead#{n}"), 1)]).await.unwrap();
        }
        tokio::time::sleep(ms(5)).await;
        store.try_acquire(&[claim(kind, "another#0".into(), 1)]).await.unwrap();
        tokio::time::sleep(ms(5)).await;
        let query = Query::named("busy").with_kind(kind);
        let found = store.inspect(&query).await.unwrap();
        assert_eq!(found[0].waiters.len(), 1, "live waiters of a {kind}");
        let fields: usize =
            all_keys(&server).iter().map(|(_, fields)| fields.split(',').count()).max().unwrap();
        // How many depends on how many were alive at once, and not on how many there were.
        assert!(fields < 200, "{fields} fields are left of 1000 dead waiters");
    }
}

/// Lock ids may contain spaces, and a space separates the lock id from the token in the value of the lock key.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_id_that_begins_with_another_and_a_space_is_another_holder() {
    use common::claims::{busy, claim, granted, lease, release};
    use distlock_core::Kind;
    use distlock_core::store::{LeaseStore, Released, Renewal};
    let server = RedisServer::start();
    let store = store(&server.url()).await;
    let names = ["a", "b"];
    let ours = names.map(|name| claim(Kind::Mutex, name, format!("{name} x 1")));
    let theirs = names.map(|name| claim(Kind::Mutex, name, name));
    for claim in &ours {
        granted(&store, claim).await;
    }
    let leases = theirs.each_ref().map(lease);
    for outcome in store.release(&leases).await.unwrap() {
        assert!(matches!(outcome.unwrap(), Released::NotYours), "a batch");
    }
    for outcome in store.renew(&leases).await.unwrap() {
        assert!(matches!(outcome.unwrap(), Renewal::NotYours));
    }
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert!(matches!(release(&store, theirs).await, Released::NotYours), "freed the lock of {ours:?}");
        busy(&store, theirs).await;
        assert!(matches!(release(&store, ours).await, Released::Done { .. }));
    }
}
