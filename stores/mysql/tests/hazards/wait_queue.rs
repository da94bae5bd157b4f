//! The wait queue of a mutex in the lease table: who may take it, and who must ask again.

use crate::common::{
    Claims, MS, SECOND, attempt, database_on, eventually, granted, lease_store, release, server,
};
use distlock_core::store::{Attempt, Claim, Inbox, Waiting};
use distlock_mysql::MysqlStore;

async fn store() -> (MysqlStore, String) {
    let database = database_on(server());
    (lease_store(&server().url_of("mysql", &database)).await, database)
}

fn waiting(claim: &Claim, attempt: u64) -> Claim {
    let ttl = 60 * SECOND;
    claim.clone().with_waiting(Waiting::new(Inbox::new("test"), ttl, attempt))
}

async fn is_busy(store: &MysqlStore, claim: &Claim) -> bool {
    matches!(attempt(store, claim).await.unwrap(), Attempt::Busy { .. })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_lease_is_not_granted_again_past_a_waiter() {
    let (store, database) = store().await;
    let claims = Claims::new("expired");
    let lapsed = claims.mutex("a");
    granted(&store, &lapsed).await;
    assert!(is_busy(&store, &waiting(&claims.mutex("a"), 2)).await);
    // It expired: long ago, and a moment ago.
    for (ago, may_overtake) in [("60000000", false), ("0", true)] {
        let now = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))";
        server().sql(&format!(
            "UPDATE {database}.distribute_lock SET expires_at = {now} - {ago} WHERE name = 'a'"
        ));
        let again = lapsed.clone().with_no_overtaking(!may_overtake);
        let token = format!("SELECT token FROM {database}.distribute_lock WHERE name = 'a'");
        let before = server().value(&token);
        if let Attempt::Granted { token, .. } = attempt(&store, &again).await.unwrap() {
            // The moment passed on a busy machine: then it is a new lease.
            assert!(may_overtake && token.get().to_string() != before, "an expired lease was granted");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mutex_that_became_free_is_for_the_first_waiter_and_not_for_who_released_it() {
    let (store, _) = store().await;
    let claims = Claims::new("order");
    let (first, second) = (claims.mutex("a"), claims.mutex("a"));
    let mut overtaken = 0;
    for _ in 0..20 {
        let held = claims.mutex("a");
        granted(&store, &held).await;
        for waiter in [&first, &second] {
            assert!(is_busy(&store, &waiting(waiter, 2)).await);
        }
        release(&store, &held).await.unwrap();
        // A busy machine may take longer than the mutex is reserved.
        let late = claims.mutex("a");
        for other in [late.clone(), waiting(&late, 1), waiting(&second, 3)] {
            if !is_busy(&store, &other).await {
                overtaken += 1;
                release(&store, &other).await.unwrap();
            }
        }
        granted(&store, &waiting(&first, 3)).await;
        for waiter in [&first, &second] {
            release(&store, waiter).await.unwrap();
        }
    }
    assert!(overtaken < 60, "nothing was reserved");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_died_keeps_a_free_mutex_from_others_for_a_moment_only() {
    let (store, _) = store().await;
    let claims = Claims::new("dead");
    let held = claims.mutex("a");
    granted(&store, &held).await;
    // Its entry lives for a minute.
    assert!(is_busy(&store, &waiting(&claims.mutex("a"), 2)).await);
    release(&store, &held).await.unwrap();
    let (next, mut asked) = (claims.mutex("a"), 0);
    eventually("it is granted", async || {
        asked += 1;
        !is_busy(&store, &waiting(&next, asked)).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_asks_again_locks_no_row_and_is_granted_what_is_free() {
    let (store, database) = store().await;
    let claims = Claims::new("polls");
    for kind in [|claims: &Claims| claims.mutex("a"), |claims: &Claims| claims.permit("a", 1)] {
        let (held, waiter) = (kind(&claims), kind(&claims));
        granted(&store, &held).await;
        assert!(is_busy(&store, &waiting(&waiter, 1)).await && is_busy(&store, &waiting(&waiter, 2)).await);
        // Another session keeps all rows locked.
        let mut admin = server().connect().unwrap();
        admin
            .query(&format!(
                "START TRANSACTION; SELECT * FROM {database}.distribute_lock FOR UPDATE;
                 SELECT * FROM {database}.distribute_lock_pool FOR UPDATE;
                 SELECT * FROM {database}.distribute_lock_entry FOR UPDATE"
            ))
            .unwrap();
        let before = store.requests();
        for n in 3..6 {
            let Attempt::Busy { retry_after, poll_after, .. } =
                attempt(&store, &waiting(&waiter, n)).await.unwrap()
            else {
                panic!("two holders")
            };
            assert!(retry_after.unwrap() > SECOND && poll_after.unwrap() >= 8 * MS);
        }
        assert_eq!(store.requests() - before, 3);
        admin.query("ROLLBACK").unwrap();
        release(&store, &held).await.unwrap();
        granted(&store, &waiting(&waiter, 6)).await;
        release(&store, &waiter).await.unwrap();
    }
}
