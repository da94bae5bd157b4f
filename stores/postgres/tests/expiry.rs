//! The expiry of a lease never moves back for the same lock id, and a renewal judges the row as it is once the row is
//! locked.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::time::Duration;

use common::{Corner, eventually, lease_table, server, within};
use distlock_core::store::{Attempt, Claim, Lease, LeaseStore, Query, Renewal, Store};
use distlock_core::{FencingToken, Kind, LockId, Resource};
use distlock_postgres::LeaseTable;

const LIMIT: Duration = Duration::from_secs(25);
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(5);
const KINDS: [Kind; 2] = [Kind::Mutex, Kind::Semaphore];

fn claim(kind: Kind, expiry: Duration) -> Claim {
    Claim {
        resource: Resource::new(kind, "m").unwrap(),
        lock_id: LockId::from_stored("holder"),
        weight: 1,
        capacity: 1,
        expiry,
        waiting: None,
        in_turn: false,
    }
}

fn lease(kind: Kind, expiry: Duration) -> Lease {
    Lease::of(&claim(kind, expiry), FencingToken::new(1))
}

async fn acquire(store: &LeaseTable, claim: Claim) {
    let answer = store.try_acquire(&[claim]).await.unwrap().pop().unwrap().unwrap();
    assert!(matches!(answer, Attempt::Granted { .. }), "{answer:?}");
}

async fn renew(store: &LeaseTable, lease: Lease) -> Renewal {
    store.renew(&[lease]).await.unwrap().pop().unwrap().unwrap()
}

async fn time_left(store: &LeaseTable) -> Duration {
    let found = store.inspect(&Query::named("m")).await.unwrap();
    found[0].holders[0].expires_in.unwrap()
}

/// Waits until a request of this corner waits for a row.
async fn until_blocked(corner: &Corner) {
    let blocked = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{}' AND wait_event_type = 'Lock'",
        corner.schema
    );
    eventually("it waits for the row", async || server().value(&blocked) == "1").await;
}

/// A request that was sent earlier, and for a shorter time, is applied last.
#[tokio::test]
async fn a_shorter_request_that_is_applied_last_does_not_shorten_the_lease() {
    for kind in KINDS {
        let store = lease_table(&Corner::new().url("postgres", &server().url())).await;
        acquire(&store, claim(kind, LONG)).await;
        assert_eq!(renew(&store, lease(kind, SHORT)).await, Renewal::Extended);
        let left = time_left(&store).await;
        assert!(left > LONG / 2, "{kind}: a renewal moved the expiry back to {left:?}");
        acquire(&store, claim(kind, SHORT)).await;
        let left = time_left(&store).await;
        assert!(left > LONG / 2, "{kind}: an attempt moved the expiry back to {left:?}");
        assert_eq!(renew(&store, lease(kind, 2 * LONG)).await, Renewal::Extended);
        assert!(time_left(&store).await > LONG + LONG / 2, "{kind}: a renewal extends nothing");
    }
}

/// The clock is read before the statement waits for the row; what is written to the row meanwhile is later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_waited_for_its_row_does_not_move_the_expiry_back() {
    let corner = Corner::new();
    let store = lease_table(&corner.url("postgres", &server().url())).await;
    let table = format!("{}.distribute_lock", corner.schema);
    acquire(&store, claim(Kind::Mutex, LONG)).await;
    for batch in [false, true] {
        let mut other = server().connect().unwrap();
        other.query(&format!("BEGIN; SELECT FROM {table} WHERE key = 'm' FOR UPDATE")).unwrap();
        let asked = tokio::spawn({
            let store = store.clone();
            async move {
                let mut claims = vec![claim(Kind::Mutex, LONG)];
                if batch {
                    let resource = Resource::new(Kind::Mutex, "another").unwrap();
                    claims.push(Claim { resource, ..claims[0].clone() });
                }
                store.try_acquire(&claims).await.unwrap().swap_remove(0).unwrap()
            }
        });
        until_blocked(&corner).await;
        // As a renewal of the same lease that came to the row first.
        let renewed = "expire_time = clock_timestamp() + interval '60 s'";
        let rows = other
            .query(&format!("UPDATE {table} SET {renewed} WHERE key = 'm' RETURNING expire_time; COMMIT"))
            .unwrap();
        let renewed = rows[0][0].clone().unwrap();
        let answer = within("an answer", LIMIT, asked).await.unwrap();
        assert!(matches!(answer, Attempt::Granted { .. }), "{answer:?}");
        let kept = format!("SELECT expire_time >= '{renewed}' FROM {table} WHERE key = 'm'");
        assert_eq!(server().value(&kept), "t", "the expiry moved back, in a batch: {batch}");
    }
}

/// Two renewals of one lease wait for its row, the one for the shorter time behind the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_that_wait_for_one_row_never_move_its_expiry_back() {
    for kind in KINDS {
        let corner = Corner::new();
        let url = corner.url("postgres", &server().url());
        let (one, other) = (lease_table(&url).await, lease_table(&url).await);
        let ending = if kind == Kind::Mutex { "" } else { "_pool" };
        let table = format!("{}.distribute_lock{ending}", corner.schema);
        acquire(&one, claim(kind, SHORT)).await;
        let mut admin = server().connect().unwrap();
        admin.query(&format!("BEGIN; SELECT FROM {table} FOR UPDATE")).unwrap();
        let first = tokio::spawn({
            let one = one.clone();
            async move { renew(&one, lease(kind, LONG)).await }
        });
        until_blocked(&corner).await;
        let second = tokio::spawn(async move { renew(&other, lease(kind, SHORT)).await });
        let blocked = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{}' AND wait_event_type = 'Lock'",
            corner.schema
        );
        eventually("both wait, or gave up", async || server().value(&blocked) != "1").await;
        admin.query("COMMIT").unwrap();
        for renewal in [first, second] {
            assert_eq!(within("an answer", LIMIT, renewal).await.unwrap(), Renewal::Extended, "{kind}");
        }
        let left = time_left(&one).await;
        assert!(left > LONG / 2, "{kind}: the expiry moved back to {left:?}");
    }
}

/// The lease is about to end in the version of the row that the statement sees; the version that it waits for was
/// renewed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_waited_for_its_row_does_not_say_not_yours() {
    for round in 0..5 {
        let corner = Corner::new();
        let store = lease_table(&corner.url("postgres", &server().url())).await;
        let table = format!("{}.distribute_lock", corner.schema);
        acquire(&store, claim(Kind::Mutex, LONG)).await;
        let soon = "expire_time = clock_timestamp() + interval '150 ms'";
        let later = "expire_time = clock_timestamp() + interval '60 s'";
        let mut other = server().connect().unwrap();
        other.query(&format!("UPDATE {table} SET {soon} WHERE key = 'm'")).unwrap();
        other.query(&format!("BEGIN; UPDATE {table} SET {later} WHERE key = 'm'")).unwrap();
        let renewing = tokio::spawn({
            let store = store.clone();
            async move { renew(&store, lease(Kind::Mutex, LONG)).await }
        });
        until_blocked(&corner).await;
        let ended = format!("SELECT expire_time <= clock_timestamp() FROM {table} WHERE key = 'm'");
        eventually("the old version ends", async || server().value(&ended) == "t").await;
        other.query("COMMIT").unwrap();
        let answer = within("an answer", LIMIT, renewing).await.unwrap();
        assert_eq!(answer, Renewal::Extended, "round {round}");
    }
}
