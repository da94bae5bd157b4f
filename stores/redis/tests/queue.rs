//! The wait queue: whose grant a message is about, and what waiters that gave up or died cost those that are left.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::time::Duration;

use common::claims::{KINDS, busy, claim, granted, lease, next_grant, release, waiting};
use common::{calls, commands, ms, store};
use distlock_core::store::{Attempt, Claim, Inbox, Lease, LeaseStore, Query, Released, Renewal, Store};
use distlock_core::{Kind, LockId};
use distlock_redis::RedisStore;
use distlock_testkit::servers::RedisServer;

const LONG: Duration = Duration::from_secs(60);
/// After so long a waiter that died is gone. Longer than it takes to queue all of them.
const DIES: Duration = Duration::from_secs(8);
/// How many withdrew or died. The cost must not depend on it.
const MANY: usize = 20_000;
/// What a handoff may cost: commands inside the script.
const HANDOFF: u64 = 40;
/// What one call may do for waiters that are gone: commands inside the script.
const CALL: u64 = 2000;

/// Sends so many claims for one resource, in batches.
async fn crowd(store: &RedisStore, claims: &[Claim]) {
    for batch in claims.chunks(256) {
        let answers = store.try_acquire(batch).await.unwrap();
        assert!(answers.iter().all(|answer| matches!(answer, Ok(Attempt::Busy { .. }))), "{:?}", answers[0]);
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
            // An older one, applied late: neither its number nor its moment counts, and its time to live does not either.
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

/// What the previous version wrote: no number of an attempt, and the whole lock id beside the plain key.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_that_a_previous_version_queued_are_served_and_ask_again() {
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
async fn a_release_behind_many_waiters_that_withdrew_costs_no_more_than_any_other() {
    let server = RedisServer::start();
    let store = store(&server.url()).await;
    let mut wakes = store.subscribe(&Inbox::new("mine")).await.unwrap();
    for kind in KINDS {
        let holder = claim(kind, "x", "holder#1");
        let (first, last) = (claim(kind, "x", "first#1"), claim(kind, "x", "last#1"));
        granted(&store, &holder).await;
        busy(&store, &waiting(first.clone(), "mine", LONG, 1)).await;
        let mut crowd_of = dead(kind, LONG, MANY);
        crowd(&store, &crowd_of).await;
        busy(&store, &waiting(last.clone(), "mine", LONG, 1)).await;
        // In any order: from the middle, from both ends, one apart.
        crowd_of.rotate_left(MANY / 2);
        let (even, odd): (Vec<_>, Vec<_>) =
            crowd_of.iter().map(lease).enumerate().partition(|(n, _)| n % 2 == 0);
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
            assert!(cost < HANDOFF, "{kind}: a handoff behind {MANY} that withdrew took {cost} commands");
            next_grant(&mut wakes, &to.lock_id).await;
        }
        release(&store, &last).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_dead_waiters_in_front_hold_up_no_call_and_the_live_one_behind_them_is_told() {
    for server in [RedisServer::start(), RedisServer::configure().valkey().start()] {
        let store = store(&server.url()).await;
        let mut wakes = store.subscribe(&Inbox::new("mine")).await.unwrap();
        // Some are gone since their time is over; others died just now, and what they are told is not read.
        for (ttl, gone_after) in [(DIES, DIES), (LONG, ms(2000))] {
            let parts = KINDS.map(|kind| (kind, claim(kind, "x", "holder#1"), claim(kind, "x", "last#1")));
            for (kind, holder, last) in &parts {
                granted(&store, holder).await;
                crowd(&store, &dead(*kind, ttl, MANY / 8)).await;
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

/// An attempt that finds nothing but dead waiters before it is granted: the lock is free.
#[tokio::test(flavor = "multi_thread")]
async fn many_dead_waiters_in_front_are_no_reason_to_be_busy() {
    let server = RedisServer::start();
    let store = store(&server.url()).await;
    let parts = KINDS.map(|kind| {
        let next = waiting(claim(kind, "x", "next#1"), "mine", LONG, 1).with_no_overtaking(true);
        (kind, claim(kind, "x", "holder#1").with_expiry(DIES), next)
    });
    for (kind, holder, next) in &parts {
        granted(&store, holder).await;
        crowd(&store, &dead(*kind, DIES, MANY / 8)).await;
        busy(&store, next).await;
    }
    tokio::time::sleep(DIES).await;
    for (kind, _, next) in &parts {
        let scripts = calls(&server, "evalsha");
        granted(&store, next).await;
        assert!(calls(&server, "evalsha") - scripts > 3, "{kind}: all of them in one call");
    }
}

/// Nothing that waiters, holders or renewals do looks at the whole queue, however long it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_queue_is_never_looked_through_as_a_whole() {
    const CROWD: usize = 1000;
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
        crowd(&store, &dead(kind, LONG, CROWD).into_iter().map(of_it).collect::<Vec<_>>()).await;
        held.push((holder, first));
    }
    // Renewed beyond the moment at which the first grant would have ended, so that holders are looked through.
    let (whole, begun) = (calls(&server, "hgetall"), std::time::Instant::now());
    let leases: Vec<Lease> = held.iter().map(|(holder, _)| lease(holder)).collect();
    while begun.elapsed() < EXPIRY + ms(500) {
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
    assert_eq!(calls(&server, "hgetall") - whole, 0, "all {CROWD} waiters were looked at");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_waiters_of_a_long_queue_are_listed_in_order_a_few_at_a_time() {
    let server = RedisServer::start();
    let store = store(&server.url()).await;
    for kind in KINDS {
        granted(&store, &claim(kind, "x", "holder#1")).await;
        let all = dead(kind, LONG, 2000);
        crowd(&store, &all).await;
        for withdrawn in &all[700..900] {
            release(&store, withdrawn).await;
        }
        let (before, scripts) = (commands(&server), calls(&server, "evalsha"));
        let whole = calls(&server, "hgetall");
        let query = Query::named("x").with_kind(kind);
        let found = store.inspect(&query).await.unwrap().remove(0);
        let (cost, scripts) = (commands(&server) - before, calls(&server, "evalsha") - scripts);
        let expected: Vec<_> =
            all[..700].iter().chain(&all[900..]).map(|claim| claim.lock_id.clone()).collect();
        assert_eq!(found.waiters.into_iter().map(|one| one.lock_id).collect::<Vec<_>>(), expected, "{kind}");
        assert!(cost / scripts < CALL / 4, "{kind}: {cost} commands in {scripts} calls");
        assert_eq!(calls(&server, "hgetall") - whole, 0, "{kind}: all waiters were looked at in one call");
        server.command(&["FLUSHALL"]);
    }
}

/// Holders that end while many wait are found by their slots, whichever they are, and as many waiters get their permits.
#[tokio::test(flavor = "multi_thread")]
async fn holders_that_expire_in_front_of_a_long_queue_make_room_for_as_many() {
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
    let crowd_of: Vec<Claim> =
        (0..100).map(|n| waiting(one(format!("waiter#{n}")), "mine", LONG, 1)).collect();
    crowd(&store, &crowd_of).await;
    // One that is in the middle leaves by itself, and the first waiter takes its permit.
    release(&store, &one("holder#4".to_owned())).await;
    assert_eq!(next_grant(&mut wakes, &crowd_of[0].lock_id).await.attempt, 1);
    store.renew(&[lease(&crowd_of[0])]).await.unwrap().remove(0).unwrap();
    tokio::time::sleep(ms(4100)).await;
    let whole = calls(&server, "hgetall");
    store.renew(&[lease(&one("holder#1".to_owned()))]).await.unwrap().remove(0).unwrap();
    for waiter in &crowd_of[1..=3] {
        next_grant(&mut wakes, &waiter.lock_id).await;
    }
    assert_eq!(calls(&server, "hgetall"), whole);
    let query = Query::named("x").with_kind(Kind::Semaphore);
    let found = store.inspect(&query).await.unwrap().remove(0);
    let mut holders: Vec<&str> = found.holders.iter().map(|one| one.lock_id.as_str()).collect();
    holders.sort_unstable();
    assert_eq!(holders, ["holder#1", "holder#6", "waiter#0", "waiter#1", "waiter#2", "waiter#3"]);
    assert_eq!(found.waiters.len(), 96);
}
