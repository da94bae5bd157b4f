//! The expiry of a lease never moves back for the same lock id, and a renewal decides on the row as it is once the row is
//! locked.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::time::Duration;

use common::{TestSchema, postgres_store, server, within};
use distlock_core::store::{Attempt, Claim, Lease, LeaseStore, Query, Renewal, Store};
use distlock_core::{FencingToken, Kind, LockId, Resource};
use distlock_postgres::PostgresStore;

const LIMIT: Duration = Duration::from_secs(25);
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(5);
const KINDS: [Kind; 2] = [Kind::Mutex, Kind::Semaphore];

fn claim(kind: Kind, expiry: Duration) -> Claim {
    Claim::new(Resource::new(kind, "m").unwrap(), LockId::from_stored("holder"), expiry)
}

fn lease(kind: Kind, expiry: Duration) -> Lease {
    Lease::of(&claim(kind, expiry), FencingToken::new(1))
}

async fn acquire(store: &PostgresStore, claim: Claim) {
    let answer = store.try_acquire(&[claim]).await.unwrap().pop().unwrap().unwrap();
    assert!(matches!(answer, Attempt::Granted { .. }), "{answer:?}");
}

async fn renew(store: &PostgresStore, lease: Lease) -> Renewal {
    store.renew(&[lease]).await.unwrap().pop().unwrap().unwrap()
}

async fn time_left(store: &PostgresStore) -> Duration {
    let found = store.inspect(&Query::named("m")).await.unwrap();
    found[0].holders[0].expires_in.unwrap()
}

/// A request that was sent earlier and for a shorter time is applied last.
#[tokio::test]
async fn a_shorter_request_that_is_applied_last_does_not_shorten_the_lease() {
    for kind in KINDS {
        let store = postgres_store(&TestSchema::new().url("postgres", &server().url())).await;
        acquire(&store, claim(kind, LONG)).await;
        assert_eq!(renew(&store, lease(kind, SHORT)).await, Renewal::Renewed);
        let left = time_left(&store).await;
        assert!(left > LONG / 2, "{kind}: a renewal moved the expiry back to {left:?}");
        acquire(&store, claim(kind, SHORT)).await;
        let left = time_left(&store).await;
        assert!(left > LONG / 2, "{kind}: an attempt moved the expiry back to {left:?}");
        assert_eq!(renew(&store, lease(kind, 2 * LONG)).await, Renewal::Renewed);
        assert!(time_left(&store).await > LONG + LONG / 2, "{kind}: a renewal has no effect");
    }
}

/// The clock is read before the statement waits for the row. A write to the row during the wait is later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_waited_for_its_row_does_not_move_the_expiry_back() {
    let test_schema = TestSchema::new();
    let store = postgres_store(&test_schema.url("postgres", &server().url())).await;
    let schema = &test_schema.name;
    server().sql(&format!("CREATE TABLE {schema}.noted (expire_time timestamptz)"));
    acquire(&store, claim(Kind::Mutex, LONG)).await;
    for batch in [false, true] {
        // A renewal of the same lease that locked the row first.
        let renewed = format!(
            "PERFORM pg_sleep(0.05);
             WITH renewed AS (UPDATE {schema}.distribute_lock SET expire_time = clock_timestamp() + interval '60 s'
                              WHERE key = 'm' RETURNING expire_time)
             INSERT INTO {schema}.noted SELECT expire_time FROM renewed"
        );
        let lock = format!("PERFORM FROM {schema}.distribute_lock WHERE key = 'm' FOR UPDATE");
        let other = test_schema.lock_until_waited_for(&lock, &renewed).await;
        let mut claims = vec![claim(Kind::Mutex, LONG)];
        if batch {
            let resource = Resource::new(Kind::Mutex, "another").unwrap();
            claims.push(claims[0].clone().with_resource(resource));
        }
        let answer = within("a reply", LIMIT, store.try_acquire(&claims)).await.unwrap().swap_remove(0);
        assert!(matches!(answer, Ok(Attempt::Granted { .. })), "{answer:?}");
        other.await.unwrap();
        let kept = format!(
            "SELECT l.expire_time >= (SELECT max(n.expire_time) FROM {schema}.noted n)
             FROM {schema}.distribute_lock l WHERE l.key = 'm'"
        );
        assert_eq!(server().value(&kept), "t", "the expiry moved back, in a batch: {batch}");
    }
}

/// Two renewals of one lease wait for its row, in either order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_that_wait_for_one_row_never_move_its_expiry_back() {
    for kind in KINDS {
        let test_schema = TestSchema::new();
        let url = test_schema.url("postgres", &server().url());
        let (one, other) = (postgres_store(&url).await, postgres_store(&url).await);
        let ending = if kind == Kind::Mutex { "" } else { "_pool" };
        let lock = format!("PERFORM FROM {}.distribute_lock{ending} FOR UPDATE", test_schema.name);
        acquire(&one, claim(kind, SHORT)).await;
        let locked = test_schema.lock_until_waited_for(&lock, "PERFORM pg_sleep(0.05)").await;
        let (long, short) = (lease(kind, LONG), lease(kind, SHORT));
        let both = async { tokio::join!(renew(&one, long), renew(&other, short)) };
        let answers = within("the replies", LIMIT, both).await;
        assert_eq!(answers, (Renewal::Renewed, Renewal::Renewed), "{kind}");
        locked.await.unwrap();
        let left = time_left(&one).await;
        assert!(left > LONG / 2, "{kind}: the expiry moved back to {left:?}");
    }
}

/// The lease has expired in the version of the row that the statement sees. The version that it waits for was renewed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_waited_for_its_row_is_not_answered_not_yours() {
    let test_schema = TestSchema::new();
    let store = postgres_store(&test_schema.url("postgres", &server().url())).await;
    let table = format!("{}.distribute_lock", test_schema.name);
    acquire(&store, claim(Kind::Mutex, LONG)).await;
    for round in 0..5 {
        server().sql(&format!("UPDATE {table} SET expire_time = now() - interval '1 s'"));
        let renew_it = format!("UPDATE {table} SET expire_time = now() + interval '60 s'");
        let renewed = test_schema.lock_until_waited_for(&renew_it, "NULL").await;
        let answer = within("a reply", LIMIT, renew(&store, lease(Kind::Mutex, LONG))).await;
        assert_eq!(answer, Renewal::Renewed, "round {round}");
        renewed.await.unwrap();
    }
}
