//! The wait queue: which attempt a pushed grant belongs to, and what absent waiters cost the others.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::time::Duration;

use common::claims::{KINDS, busy, claim, granted, lease, next_grant, release, waiting};
use common::{calls, commands, ms, store};
use distlock_core::store::support::queue_pause;
use distlock_core::store::{Attempt, Claim, Inbox, Lease, LeaseStore, Query, Released, Renewal, Store};
use distlock_core::{Kind, LockId};
use distlock_redis::RedisStore;
use distlock_testkit::servers::{RedisCluster, RedisServer};

const LONG: Duration = Duration::from_secs(60);
/// The time to live of the entries of dead waiters. Longer than it takes to queue all of them.
const DIES: Duration = Duration::from_secs(8);
/// How many waiters withdrew or died. The cost must not depend on it.
const MANY: usize = 20_000;
/// The most commands inside the script of a handoff.
const HANDOFF: u64 = 40;
/// The most commands inside the script of one call that passes absent waiters.
const CALL: u64 = 2000;

/// Queues claims for one resource, in batches.
async fn enqueue(store: &RedisStore, claims: &[Claim]) {
    for batch in claims.chunks(256) {
        let attempts = store.try_acquire(batch).await.unwrap();
        assert!(
            attempts.iter().all(|attempt| matches!(attempt, Ok(Attempt::Busy { .. }))),
            "{:?}",
            attempts[0]
        );
    }
}

fn dead(kind: Kind, ttl: Duration, count: usize) -> Vec<Claim> {
    (0..count).map(|n| waiting(claim(kind, "x", format!("gone#{n}")), "nowhere", ttl, 1)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pushed_grant_repeats_the_number_of_the_newest_attempt() {
    for server in [RedisServer::start(), RedisServer::configure().valkey().start()] {
        let store = store(&server.url()).await;
        let mut wakes = store.subscribe(&Inbox::new("mine")).await.unwrap();
        for kind in KINDS {
            let holder = claim(kind, "x", "holder#1");
            let waiter = |attempt| waiting(claim(kind, "x", "waiter of mine#1"), "mine", LONG, attempt);
            granted(&store, &holder).await;
            for attempt in [3, 5] {
                busy(&store, &waiter(attempt)).await;
            }
            tokio::time::sleep(ms(300)).await;
            // An older attempt, applied late: its number, its time and its time to live are ignored.
            busy(&store, &waiter(4)).await;
            let short = waiter(2);
            busy(&store, &waiting(short, "elsewhere", ms(1), 2)).await;
            tokio::time::sleep(ms(5)).await;
            assert!(matches!(release(&store, &holder).await, Released::Done { woke: true }), "{kind}");
            let grant = next_grant(&mut wakes, &waiter(5).lock_id).await;
            assert_eq!(grant.attempt, 5, "{kind}");
            assert!(grant.after >= ms(300), "{kind}: counted from an older attempt: {grant:?}");
            release(&store, &waiter(5)).await;
        }
    }
}

/// The previous version wrote no attempt numbers, and the whole lock id into the record.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_that_the_previous_version_queued_are_served_and_ask_again() {
    let server = RedisServer::start();
    let store = store(&format!("{}?distlock.prefix={{p}}:", server.url())).await;
    let mut wakes = store.subscribe(&Inbox::new("mine")).await.unwrap();
    for (kind, key) in
        [(Kind::Mutex, r"{p}:\255w:x"), (Kind::RwLock, r"{p}:\255r:x"), (Kind::Semaphore, r"{p}:\255s:x")]
    {
        let (holder, ours) = (claim(kind, "x", "holder#1"), claim(kind, "x", "ours#1"));
        granted(&store, &holder).await;
        let script = format!(
            "local t = redis.call('TIME') local now = t[1] * 1000 \
             redis.call('HSET', '{key}', 'h', '0', 'n', '2', 's', '0', 'w:theirs#1', '1', \
             'q:0', string.format('%d %d 60000 {weight} g nowhere gone#1', now - 5000, now - 8000), 'w:gone#1', '0', \
             'q:1', string.format('%d %d 60000 {weight} g mine theirs#1', now + 50000, now)) \
             return redis.call('PEXPIRE', '{key}', 60000)",
            weight = holder.weight
        );
        server.command(&["EVAL", &script, "0"]);
        busy(&store, &waiting(ours.clone(), "mine", LONG, 7)).await;
        assert!(matches!(release(&store, &holder).await, Released::Done { woke: true }), "{kind}");
        assert_eq!(next_grant(&mut wakes, &LockId::from_stored("theirs#1")).await.attempt, 0, "{kind}");
        release(&store, &claim(kind, "x", "theirs#1")).await;
        assert_eq!(next_grant(&mut wakes, &ours.lock_id).await.attempt, 7, "{kind}");
        release(&store, &ours).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handoff_past_many_waiters_that_withdrew_costs_no_more_than_any_other() {
    let server = RedisServer::start();
    let store = store(&server.url()).await;
    let mut wakes = store.subscribe(&Inbox::new("mine")).await.unwrap();
    for kind in KINDS {
        let holder = claim(kind, "x", "holder#1");
        let (first, last) = (claim(kind, "x", "first#1"), claim(kind, "x", "last#1"));
        granted(&store, &holder).await;
        busy(&store, &waiting(first.clone(), "mine", LONG, 1)).await;
        let mut waiters_of = dead(kind, LONG, MANY);
        enqueue(&store, &waiters_of).await;
        busy(&store, &waiting(last.clone(), "mine", LONG, 1)).await;
        // In mixed order: from the middle, from both ends, every other one.
        waiters_of.rotate_left(MANY / 2);
        let (even, odd): (Vec<_>, Vec<_>) =
            waiters_of.iter().map(lease).enumerate().partition(|(n, _)| n % 2 == 0);
        for part in [even, odd] {
            let leases: Vec<_> = part.into_iter().map(|(_, lease)| lease).collect();
            for batch in leases.chunks(256) {
                let released = store.release(batch).await.unwrap();
                assert!(released.iter().all(|one| matches!(one, Ok(Released::Done { .. }))));
            }
        }
        for (from, to) in [(&holder, &first), (&first, &last)] {
            let before = commands(&server);
            release(&store, from).await;
            let cost = commands(&server) - before;
            assert!(
                cost < HANDOFF,
                "{kind}: a handoff past {MANY} waiters that withdrew took {cost} commands"
            );
            next_grant(&mut wakes, &to.lock_id).await;
        }
        release(&store, &last).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_dead_waiters_block_no_call_and_the_live_waiter_behind_them_is_notified() {
    for server in [RedisServer::start(), RedisServer::configure().valkey().start()] {
        let store = store(&server.url()).await;
        let mut wakes = store.subscribe(&Inbox::new("mine")).await.unwrap();
        // The entries of some have expired; others died just now, and their messages are not read.
        for (ttl, gone_after) in [(DIES, DIES + queue_pause::LONGEST), (LONG, ms(2000))] {
            let parts = KINDS.map(|kind| (kind, claim(kind, "x", "holder#1"), claim(kind, "x", "last#1")));
            for (kind, holder, last) in &parts {
                granted(&store, holder).await;
                enqueue(&store, &dead(*kind, ttl, MANY / 8)).await;
                busy(&store, &waiting(last.clone(), "mine", LONG, 1)).await;
            }
            tokio::time::sleep(gone_after).await;
            for (kind, holder, last) in &parts {
                let (before, scripts) = (commands(&server), calls(&server, "evalsha"));
                release(&store, holder).await;
                let (cost, scripts) = (commands(&server) - before, calls(&server, "evalsha") - scripts);
                assert!(cost / scripts < CALL, "{kind}, {ttl:?}: {cost} commands in {scripts} calls");
                assert!(scripts > 3, "{kind}, {ttl:?}: {cost} commands in {scripts} calls");
                next_grant(&mut wakes, &last.lock_id).await;
                release(&store, last).await;
            }
        }
    }
}

/// One far behind is told how long it may sleep, and counts as present for as much longer. On a Cluster the server cannot tell whether
/// a waiter is there, and in a pool a dead one may stand before others that fit, so there it must not stay for longer.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_far_behind_may_sleep_and_its_entry_lives_as_much_longer() {
    const TTL: Duration = Duration::from_millis(500);
    let (server, cluster) = (RedisServer::start(), RedisCluster::start());
    let cluster_url = cluster.urls()[0].replacen("redis://", "redis+cluster://", 1);
    for (url, counts) in [(server.url(), true), (cluster_url, false)] {
        let store = store(&url).await;
        for kind in KINDS {
            granted(&store, &claim(kind, "x", "holder#1")).await;
            enqueue(&store, &dead(kind, LONG, 100)).await;
            let pause_of = async |id: &str| {
                let claim = waiting(claim(kind, "x", id), "mine", TTL, 1);
                match store.try_acquire(&[claim]).await.unwrap().remove(0) {
                    Ok(Attempt::Busy { poll_after, .. }) => poll_after,
                    other => panic!("{other:?}"),
                }
            };
            assert_eq!(pause_of("near#1").await, None, "{kind}");
            enqueue(&store, &dead(kind, LONG, 250)[100..]).await;
            let pause = pause_of("far#1").await;
            let pauses = counts && kind == Kind::Mutex;
            assert_eq!(pause, queue_pause::pause_behind(251).filter(|_| pauses), "{kind}");
            tokio::time::sleep(2 * TTL).await;
            let found = store.inspect(&Query::named("x").with_kind(kind)).await.unwrap().remove(0);
            let is_there = |id: &str| found.waiters.iter().any(|one| one.lock_id.as_str() == id);
            assert_eq!((is_there("near#1"), is_there("far#1")), (false, pauses), "{kind}");
            // Those that withdrew are not before it any more.
            for gone in &dead(kind, LONG, 250)[..200] {
                release(&store, gone).await;
            }
            assert_eq!(pause_of("far#2").await, None, "{kind}");
        }
    }
}

/// An attempt that finds only dead waiters before it is granted: the lock is free.
#[tokio::test(flavor = "multi_thread")]
async fn a_free_lock_behind_many_dead_waiters_is_granted() {
    let server = RedisServer::start();
    let store = store(&server.url()).await;
    let parts = KINDS.map(|kind| {
        let next = waiting(claim(kind, "x", "next#1"), "mine", LONG, 1).with_no_overtaking(true);
        (kind, claim(kind, "x", "holder#1").with_expiry(DIES), next)
    });
    for (kind, holder, next) in &parts {
        granted(&store, holder).await;
        enqueue(&store, &dead(*kind, DIES, MANY / 8)).await;
        busy(&store, next).await;
    }
    tokio::time::sleep(DIES + queue_pause::LONGEST).await;
    for (kind, _, next) in &parts {
        let scripts = calls(&server, "evalsha");
        granted(&store, next).await;
        assert!(calls(&server, "evalsha") - scripts > 3, "{kind}: one call passed all of them");
    }
}

/// No verb reads the whole queue, however long it is.
#[tokio::test(flavor = "multi_thread")]
async fn no_verb_reads_a_long_queue_as_a_whole() {
    const WAITERS: usize = 1000;
    const EXPIRY: Duration = Duration::from_secs(4);
    let server = RedisServer::start();
    let store = store(&server.url()).await;
    let mut wakes = store.subscribe(&Inbox::new("mine")).await.unwrap();
    let mut held = Vec::new();
    for kind in KINDS {
        let mut holder = claim(kind, "x", "holder#1").with_expiry(EXPIRY);
        if kind == Kind::Semaphore {
            holder = holder.with_capacity(3);
            for id in ["holder#2", "holder#3"] {
                granted(&store, &claim(kind, "x", id).with_capacity(3)).await;
            }
        }
        granted(&store, &holder).await;
        let of_it = |claim: Claim| claim.with_capacity(holder.capacity);
        let first = of_it(claim(kind, "x", "first#1"));
        busy(&store, &waiting(first.clone(), "mine", LONG, 1)).await;
        enqueue(&store, &dead(kind, LONG, WAITERS).into_iter().map(of_it).collect::<Vec<_>>()).await;
        held.push((holder, first));
    }
    // Renewed past the end of the first grant, so that holders are examined for expiry.
    let (full_reads, started) = (calls(&server, "hgetall"), std::time::Instant::now());
    let leases: Vec<Lease> = held.iter().map(|(holder, _)| lease(holder)).collect();
    while started.elapsed() < EXPIRY + ms(500) {
        let renewed = store.renew(&leases).await.unwrap();
        assert!(renewed.iter().all(|one| matches!(one, Ok(Renewal::Renewed))), "{renewed:?}");
        for (holder, _) in &held {
            let late = holder.clone().with_lock_id(LockId::from_stored("late#1"));
            busy(&store, &waiting(late, "nowhere", LONG, 1)).await;
        }
        tokio::time::sleep(ms(100)).await;
    }
    for (holder, first) in &held {
        let before = commands(&server);
        release(&store, holder).await;
        next_grant(&mut wakes, &first.lock_id).await;
        let cost = commands(&server) - before;
        assert!(cost < HANDOFF, "{holder:?}: {cost} commands");
    }
    assert_eq!(calls(&server, "hgetall") - full_reads, 0, "all {WAITERS} waiters were read");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_waiters_of_a_long_queue_are_listed_in_order_by_short_calls() {
    let server = RedisServer::start();
    let store = store(&server.url()).await;
    for kind in KINDS {
        granted(&store, &claim(kind, "x", "holder#1")).await;
        let all = dead(kind, LONG, 2000);
        enqueue(&store, &all).await;
        for withdrawn in &all[700..900] {
            release(&store, withdrawn).await;
        }
        let (before, scripts) = (commands(&server), calls(&server, "evalsha"));
        let full_reads = calls(&server, "hgetall");
        let query = Query::named("x").with_kind(kind);
        let found = store.inspect(&query).await.unwrap().remove(0);
        let (cost, scripts) = (commands(&server) - before, calls(&server, "evalsha") - scripts);
        let expected: Vec<_> =
            all[..700].iter().chain(&all[900..]).map(|claim| claim.lock_id.clone()).collect();
        assert_eq!(found.waiters.into_iter().map(|one| one.lock_id).collect::<Vec<_>>(), expected, "{kind}");
        assert!(cost / scripts < CALL / 4, "{kind}: {cost} commands in {scripts} calls");
        assert_eq!(calls(&server, "hgetall") - full_reads, 0, "{kind}: one call read all waiters");
        server.command(&["FLUSHALL"]);
    }
}

/// Holders that expire in front of a long queue are found by their index, and as many waiters get their permits.
#[tokio::test(flavor = "multi_thread")]
async fn holders_that_expire_in_front_of_a_long_queue_are_replaced_by_as_many_waiters() {
    const PERMITS: u32 = 6;
    let server = RedisServer::start();
    let store = store(&server.url()).await;
    let mut wakes = store.subscribe(&Inbox::new("mine")).await.unwrap();
    let one = |id: String| claim(Kind::Semaphore, "x", id).with_capacity(PERMITS);
    let ends = [2, 3, 5];
    for n in 1..=PERMITS {
        let expiry = if ends.contains(&n) { ms(4000) } else { LONG };
        granted(&store, &one(format!("holder#{n}")).with_expiry(expiry)).await;
    }
    let waiters_of: Vec<Claim> =
        (0..100).map(|n| waiting(one(format!("waiter#{n}")), "mine", LONG, 1)).collect();
    enqueue(&store, &waiters_of).await;
    // A holder in the middle releases, and the first waiter gets its permit.
    release(&store, &one("holder#4".to_owned())).await;
    assert_eq!(next_grant(&mut wakes, &waiters_of[0].lock_id).await.attempt, 1);
    store.renew(&[lease(&waiters_of[0])]).await.unwrap().remove(0).unwrap();
    tokio::time::sleep(ms(4100)).await;
    let full_reads = calls(&server, "hgetall");
    store.renew(&[lease(&one("holder#1".to_owned()))]).await.unwrap().remove(0).unwrap();
    for waiter in &waiters_of[1..=3] {
        next_grant(&mut wakes, &waiter.lock_id).await;
    }
    assert_eq!(calls(&server, "hgetall"), full_reads);
    let query = Query::named("x").with_kind(Kind::Semaphore);
    let found = store.inspect(&query).await.unwrap().remove(0);
    let mut holders: Vec<&str> = found.holders.iter().map(|one| one.lock_id.as_str()).collect();
    holders.sort_unstable();
    assert_eq!(holders, ["holder#1", "holder#6", "waiter#0", "waiter#1", "waiter#2", "waiter#3"]);
    assert_eq!(found.waiters.len(), 96);
}
