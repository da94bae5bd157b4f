//! Batches: words that all locks share are sent once, and each lock still gets its own expiry, token and error.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::time::Duration;

use common::{ms, store};
use distlock_core::store::{
    Attempt, Claim, Inbox, Lease, LeaseStore, Query, Released, Renewal, Store, Waiting,
};
use distlock_core::{ErrorKind, FencingToken, Kind, LockId, LockIds, Resource};
use distlock_redis::RedisStore;
use distlock_testkit::servers::RedisServer;
use distlock_testkit::servers::redis::resp::Reply;

const EXPIRY: Duration = Duration::from_secs(30);

fn claim(name: &str, id: LockId) -> Claim {
    Claim::new(Resource::new(Kind::Mutex, name).unwrap(), id, EXPIRY)
}

fn waiting(claim: Claim, inbox: &str) -> Claim {
    claim.with_waiting(Waiting::new(Inbox::new(inbox), EXPIRY, 1))
}

fn token_of(attempt: &distlock_core::Result<Attempt>) -> FencingToken {
    match attempt {
        Ok(Attempt::Granted { token, .. }) => *token,
        other => panic!("not granted: {other:?}"),
    }
}

async fn acquired(store: &RedisStore, claims: &[Claim]) -> Vec<Lease> {
    let attempts = store.try_acquire(claims).await.unwrap();
    claims.iter().zip(&attempts).map(|(claim, attempt)| Lease::of(claim, token_of(attempt))).collect()
}

async fn released(store: &RedisStore, leases: &[Lease]) {
    let outcomes = store.release(leases).await.unwrap();
    assert!(outcomes.iter().all(|one| matches!(one, Ok(Released::Done { woke: false }))), "{outcomes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_rise_from_batch_to_batch_and_after_a_token_of_tomorrow() {
    for server in [RedisServer::start(), RedisServer::configure().valkey().start()] {
        let store = store(&server.url()).await;
        let ids = LockIds::new("batch");
        let claims = || (0..6).map(|n| claim(&format!("name/{n}"), ids.next())).collect::<Vec<_>>();
        let mut last = vec![FencingToken::new(0); 6];
        for round in 0..60_u64 {
            let mut leases = acquired(&store, &claims()).await;
            for (lease, last) in leases.iter().zip(&mut last) {
                assert!(lease.token > *last, "{:?} after {last:?}", lease.token);
                *last = lease.token;
            }
            if round == 30 {
                // As a quorum that has seen higher tokens on other nodes. The second one is a century away.
                let now = leases[0].token.get();
                for (at, token) in [(1, now + 86_400_000_000), (2, 5_000_000_000_000_000)] {
                    leases[at].token = FencingToken::new(token);
                    last[at] = leases[at].token;
                }
                let renewed = store.renew(&leases).await.unwrap();
                assert!(renewed.iter().all(|one| matches!(one, Ok(Renewal::Renewed))), "{renewed:?}");
            }
            released(&store, &leases).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_lock_of_a_batch_has_its_own_expiry_inbox_and_outcome() {
    for server in [RedisServer::start(), RedisServer::configure().valkey().start()] {
        let store = store(&format!("{}?distlock.prefix={{p}}:", server.url())).await;
        let ids = LockIds::new("batch");
        let long = claim("long", ids.next()).with_expiry(EXPIRY * 10);
        let held = claim("held", ids.next());
        acquired(&store, std::slice::from_ref(&held)).await;
        // The key of this mutex has another type.
        server.command(&["LPUSH", "{p}:odd", "x"]);
        let twice = [claim("twice", ids.next()), claim("twice", ids.next())];
        let batch = [
            claim("first", ids.next()),
            waiting(long.clone(), "mine"),
            claim("odd", ids.next()),
            waiting(claim("held", ids.next()), "mine"),
            twice[0].clone(),
            twice[1].clone(),
            waiting(claim("last", ids.next()), "other").with_no_overtaking(true),
        ];
        let attempts = store.try_acquire(&batch).await.unwrap();
        for at in [0, 1, 4, 6] {
            token_of(&attempts[at]);
        }
        assert_eq!(attempts[2].as_ref().unwrap_err().kind(), ErrorKind::Corrupt, "{attempts:?}");
        for at in [3, 5] {
            assert!(matches!(attempts[at], Ok(Attempt::Busy { retry_after: Some(_), .. })), "{attempts:?}");
        }
        let left = |name: &str| match server.command(&["PTTL", &format!("{{p}}:{name}")]) {
            Reply::Integer(left) => ms(u64::try_from(left).unwrap()),
            other => panic!("{other:?}"),
        };
        assert!(left("first") <= EXPIRY && left("long") > EXPIRY * 5 && left("last") <= EXPIRY);
        let records = store.inspect(&Query::default()).await.unwrap();
        for at in [0, 1, 4, 6] {
            let record =
                records.iter().find(|one| one.name.as_deref() == Some(batch[at].resource.name())).unwrap();
            assert_eq!(record.holders[0].lock_id, batch[at].lock_id);
            assert_eq!(record.holders[0].token, Some(token_of(&attempts[at])));
            assert!(record.holders[0].acquired_at.is_some() && record.waiters.is_empty());
        }
        let record = records.iter().find(|one| one.name.as_deref() == Some("held")).unwrap();
        assert_eq!(record.holders[0].lock_id, held.lock_id);
        assert_eq!(record.waiters.iter().map(|one| &one.lock_id).collect::<Vec<_>>(), [&batch[3].lock_id]);

        // Renewed and released together: one that is not ours any more, and one with a waiter.
        let mut leases: Vec<Lease> =
            [0, 1, 4, 6].map(|at| Lease::of(&batch[at], token_of(&attempts[at]))).into();
        server.command(&["SET", "{p}:first", "theirs"]);
        leases[2].expiry = EXPIRY * 20;
        let renewed = store.renew(&leases).await.unwrap();
        assert!(matches!(renewed[0], Ok(Renewal::NotYours)), "{renewed:?}");
        assert!(renewed[1..].iter().all(|one| matches!(one, Ok(Renewal::Renewed))), "{renewed:?}");
        assert!(left("twice") > EXPIRY * 15 && left("long") <= EXPIRY * 10 && left("last") <= EXPIRY);
        let next = waiting(claim("last", ids.next()), "unread");
        assert!(matches!(store.try_acquire(&[next]).await.unwrap()[0], Ok(Attempt::Busy { .. })));
        let released = store.release(&leases).await.unwrap();
        assert!(matches!(released[0], Ok(Released::NotYours)), "{released:?}");
        assert!(released[1..].iter().all(|one| matches!(one, Ok(Released::Done { .. }))), "{released:?}");
        assert_eq!(server.command(&["GET", "{p}:first"]).text(), "theirs");
        assert_eq!(server.command(&["EXISTS", "{p}:long", "{p}:twice", "{p}:last"]), Reply::Integer(0));
        // A second release finds nothing.
        let again = store.release(&leases[..3]).await.unwrap();
        assert!(again.iter().all(|one| matches!(one, Ok(Released::NotYours))), "{again:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_with_the_same_lock_ids_gets_the_same_tokens() {
    for server in [RedisServer::start(), RedisServer::configure().valkey().start()] {
        let store = store(&server.url()).await;
        let ids = LockIds::new("batch");
        let claims: Vec<Claim> = (0..5).map(|n| claim(&format!("name/{n}"), ids.next())).collect();
        let first = acquired(&store, &claims[..3]).await;
        // Their replies were lost, and the retry carries two more claims.
        let again = acquired(&store, &claims).await;
        assert!(first.iter().zip(&again).all(|(a, b)| a.token == b.token), "{first:?} {again:?}");
        released(&store, &again).await;
    }
}
