//! Expiry: no request that is applied late shortens a lease, and records do not outlive their use for long.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::time::Duration;

use common::claims::{KINDS, busy, claim, granted, lease, next_grant, release, waiting};
use common::{commands, ms, store, until};
use distlock_core::store::{Claim, Holder, Inbox, Lease, LeaseStore, Query, Released, Renewal, Store};
use distlock_core::{Kind, LockIds};
use distlock_redis::RedisStore;
use distlock_testkit::servers::RedisServer;
use distlock_testkit::servers::redis::resp::Reply;

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(2);

async fn holder(store: &RedisStore, kind: Kind, name: &str) -> Holder {
    let query = Query::named(name).with_kind(kind);
    store.inspect(&query).await.unwrap().remove(0).holders.remove(0)
}

async fn renewed(store: &RedisStore, leases: &[Lease]) {
    let outcomes = store.renew(leases).await.unwrap();
    assert!(outcomes.iter().all(|one| matches!(one, Ok(Renewal::Renewed))), "{outcomes:?}");
}

/// Alone or in a batch, whichever request is applied last: the longest expiry counts.
#[tokio::test(flavor = "multi_thread")]
async fn a_shorter_expiry_that_is_applied_last_does_not_shorten_the_lease() {
    for server in [RedisServer::start(), RedisServer::configure().valkey().start()] {
        let store = store(&server.url()).await;
        for kind in KINDS {
            let long = claim(kind, "x", "holder#1");
            let beside = claim(Kind::Mutex, "beside", format!("beside {kind}#1"));
            let short = long.clone().with_expiry(SHORT);
            let held = granted(&store, &long).await;
            let other = granted(&store, &beside).await;
            let late = held.clone().with_expiry(SHORT);
            let higher = late.clone().with_token(distlock_core::FencingToken::new(held.token.get() + 9));
            let left = async |what: &str| {
                let left = holder(&store, kind, "x").await.expires_in.unwrap();
                assert!(left > SHORT * 2, "{kind}: {what} left {left:?} of {LONG:?}");
            };
            renewed(&store, std::slice::from_ref(&held)).await;
            renewed(&store, std::slice::from_ref(&late)).await;
            left("a renewal").await;
            renewed(&store, &[late.clone(), other.clone()]).await;
            left("a renewal in a batch").await;
            renewed(&store, std::slice::from_ref(&higher)).await;
            left("a renewal with another token").await;
            granted(&store, &short).await;
            left("an attempt").await;
            granted(&store, &waiting(short.clone(), "mine", LONG, 4)).await;
            left("an attempt that waits").await;
            store.try_acquire(&[short, beside]).await.unwrap();
            left("an attempt in a batch").await;
            release(&store, &long).await;
            store.release(&[other]).await.unwrap().remove(0).unwrap();
        }
    }
}

/// A pushed grant is short. The renewal that follows sets the full expiry, and an attempt sent before the grant does not shorten it
/// again.
#[tokio::test(flavor = "multi_thread")]
async fn a_pushed_grant_that_was_renewed_is_not_shortened_by_an_older_attempt() {
    let server = RedisServer::start();
    let store = store(&server.url()).await;
    let mut wakes = store.subscribe(&Inbox::new("mine")).await.unwrap();
    for kind in KINDS {
        let (first, next) = (claim(kind, "x", "first#1"), claim(kind, "x", "next#1"));
        let attempt = |expiry, attempt| waiting(next.clone().with_expiry(expiry), "mine", LONG, attempt);
        granted(&store, &first).await;
        busy(&store, &attempt(LONG, 2)).await;
        release(&store, &first).await;
        next_grant(&mut wakes, &next.lock_id).await;
        assert!(holder(&store, kind, "x").await.expires_in.unwrap() <= SHORT);
        renewed(&store, &[lease(&next)]).await;
        granted(&store, &attempt(SHORT, 1)).await;
        let left = holder(&store, kind, "x").await.expires_in.unwrap();
        assert!(left > SHORT * 2, "{kind}: {left:?} of {LONG:?}");
        release(&store, &next).await;
    }
}

/// Another program removed the expiry of the key: a renewal sets it again.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_whose_expiry_another_program_removed_expires_again_once_it_is_renewed() {
    let server = RedisServer::start();
    let store = store(&server.url()).await;
    let beside = granted(&store, &claim(Kind::Mutex, "beside", "beside#1")).await;
    let held = granted(&store, &claim(Kind::Mutex, "x", "holder#1")).await;
    for batch in [vec![held.clone()], vec![beside, held]] {
        assert_eq!(server.command(&["PERSIST", "distlock:x"]), Reply::Integer(1));
        renewed(&store, &batch).await;
        let left: i64 = server.command(&["PTTL", "distlock:x"]).text().parse().unwrap();
        assert!((1..=60_000).contains(&left), "{left}");
    }
}

/// The value of a lock has its token, so it is known for as long as the lock is held, and a renewal costs few commands.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_held_for_longer_than_the_retention_keeps_its_token_and_its_time_of_acquisition() {
    let server = RedisServer::start();
    let store = store(&format!("{}?distlock.retention=1s", server.url())).await;
    let ids = LockIds::new("held");
    let claims: Vec<Claim> = (0..3)
        .map(|n| claim(Kind::Mutex, &format!("x{n}"), ids.next().as_str()).with_expiry(ms(2500)))
        .collect();
    let mut leases = Vec::new();
    for claim in &claims {
        leases.push(granted(&store, claim).await);
    }
    let before = holder(&store, Kind::Mutex, "x1").await;
    until("the last token is forgotten", async || {
        renewed(&store, &leases).await;
        server.command(&["DBSIZE"]) == Reply::Integer(3)
    })
    .await;
    let now = holder(&store, Kind::Mutex, "x1").await;
    assert_eq!((before.token, before.acquired_at), (now.token, now.acquired_at));
    assert_eq!(before.token, Some(leases[1].token));
    let age = std::time::SystemTime::now().duration_since(now.acquired_at.unwrap()).unwrap();
    assert!(age < LONG, "{age:?}");
    // A batch reads all keys and sends one command for each lock; Redis 6 has no GT and also reads the time left.
    let counted = commands(&server);
    renewed(&store, &leases).await;
    renewed(&store, &leases[..1]).await;
    let cost = commands(&server) - counted;
    assert!(cost <= 2 + 2 + 2 * 4 + 1, "{cost} commands");
}

/// Only the last token of the server stays behind, whatever the number of names. The crate's documentation says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_used_name_leaves_nothing_behind() {
    const NAMES: usize = 20_000;
    let server = RedisServer::start();
    let store = store(&server.url()).await;
    let ids = LockIds::new("web-3.internal:81234");
    let names: Vec<String> = (0..NAMES).map(|n| format!("order/{n:08}")).collect();
    granted(&store, &claim(Kind::Mutex, "alone", ids.next().as_str()).with_expiry(ms(30_000))).await;
    for batch in names.chunks(250) {
        let claims: Vec<Claim> = batch
            .iter()
            .map(|name| claim(Kind::Mutex, name, ids.next().as_str()).with_expiry(ms(30_000)))
            .collect();
        assert!(store.try_acquire(&claims).await.unwrap().iter().all(Result::is_ok));
        let leases: Vec<Lease> = claims.iter().map(lease).collect();
        let released = store.release(&leases).await.unwrap();
        assert!(released.iter().all(|one| matches!(one, Ok(Released::Done { .. }))));
    }
    // The lock that is still held, and the last token.
    assert_eq!(server.command(&["DBSIZE"]), Reply::Integer(2));
    let left = server.command(&["EVAL", "return redis.call('PTTL', 'distlock:\\255n:')", "0"]);
    assert!(matches!(left, Reply::Integer(590_000..=600_000)), "{left:?}");
}

/// If the clock is set back by no more than the retention, the token is still there or the clock is past it.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_rise_when_the_clock_is_set_back_by_the_retention_after_the_last_token_expired() {
    let server = RedisServer::configure().valkey().movable_clock().start();
    let store = store(&server.url()).await;
    // Unlike DBSIZE, this does not count expired keys.
    let empty = || server.command(&["KEYS", "*"]).list().is_empty();
    for kind in KINDS {
        for (forward, back) in [(10, 600), (590, 600), (685, 600), (4000, 599)] {
            server.move_clock(0);
            until("a clean start", async || {
                server.command(&["FLUSHALL"]);
                empty()
            })
            .await;
            let first = granted(&store, &claim(kind, "x", "first#1").with_expiry(SHORT)).await;
            release(&store, &claim(kind, "x", "first#1")).await;
            server.move_clock(forward);
            assert_eq!(empty(), forward > 680, "{kind}: {forward}");
            server.move_clock(forward - back);
            let next = granted(&store, &claim(kind, "x", "next#1").with_expiry(SHORT)).await;
            assert!(
                next.token > first.token,
                "{kind}: {forward} s forward and {back} s back: {next:?} {first:?}"
            );
            release(&store, &claim(kind, "x", "next#1")).await;
        }
    }
}
