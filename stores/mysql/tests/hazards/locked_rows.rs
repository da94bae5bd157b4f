//! Rows and tables that another session keeps locked: they fail their own lock, soon, and no other.

use std::time::{Duration, Instant};

use crate::common::{Claims, SECOND, attempt, database_on, granted, lease_store, release, server};
use distlock_core::store::{Attempt, Claim, Lease, LeaseStore};
use distlock_core::{ErrorKind, FencingToken};

/// Longer than the seconds that a row is waited for, on a busy machine; shorter than the server's own fifty.
const SOON: Duration = Duration::from_secs(25);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_an_administrator_keeps_locked_fails_its_own_lock_alone() {
    let database = database_on(server());
    let store = lease_store(&server().url_of("mysql", &database)).await;
    for kind in ["mutex", "permit"] {
        let claims = Claims::new("locked");
        let claim = |name: &str| match kind {
            "mutex" => claims.mutex(name),
            _ => claims.permit(name, 2),
        };
        let batch = || -> Vec<Claim> { (0..20).map(|n| claim(&format!("{kind}/{n}"))).collect() };
        let first = batch();
        let answers = store.try_acquire(&first).await.unwrap();
        assert!(answers.iter().all(|answer| matches!(answer, Ok(Attempt::Granted { .. }))), "{answers:?}");
        for claim in &first {
            release(&store, claim).await.unwrap();
        }
        let table = if kind == "mutex" { "distribute_lock" } else { "distribute_lock_pool" };
        let mut admin = server().connect().unwrap();
        admin
            .query(&format!(
                "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;
                 START TRANSACTION; SELECT * FROM {database}.{table} WHERE name = '{kind}/7' FOR UPDATE"
            ))
            .unwrap();
        // The first request waits for a second; the next ones know the row and do not wait with it.
        for round in 0..3 {
            let begun = Instant::now();
            let second = batch();
            let answers = store.try_acquire(&second).await.unwrap();
            assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
            for (n, answer) in answers.iter().enumerate() {
                match answer {
                    Err(error) if n == 7 => {
                        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                        assert!(!error.is_outcome_unknown() && error.to_string().contains("7"), "{error}");
                    }
                    Ok(Attempt::Granted { .. }) if n != 7 => {}
                    other => panic!("{kind} {n} in round {round}: {other:?}"),
                }
            }
            for claim in second.iter().enumerate().filter(|(n, _)| *n != 7).map(|(_, claim)| claim) {
                release(&store, claim).await.unwrap();
            }
            let begun = Instant::now();
            assert!(attempt(&store, &claim(&format!("{kind}/7"))).await.is_err());
            assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        }
        admin.query("ROLLBACK").unwrap();
        // Nothing of the failed attempts was applied.
        let next = claim(&format!("{kind}/7"));
        granted(&store, &next).await;
        release(&store, &next).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_entry_that_stays_locked_fails_its_own_lock_alone() {
    let database = database_on(server());
    let store = lease_store(&server().url_of("mysql", &database)).await;
    let claims = Claims::new("entries");
    let (held, other) = (claims.permit("a", 1), claims.permit("b", 1));
    granted(&store, &held).await;
    let mut admin = server().connect().unwrap();
    admin
        .query(&format!(
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION;
         UPDATE {database}.distribute_lock_entry SET weight = weight + 0, token = token + 1"
        ))
        .unwrap();
    let leases = [&held, &other].map(|claim| Lease::of(claim, FencingToken::new(0)));
    let answers = store.release(&leases).await.unwrap();
    assert!(matches!(&answers[0], Err(error) if error.kind() == ErrorKind::Unavailable), "{answers:?}");
    assert!(answers[1].is_ok(), "{answers:?}");
    granted(&store, &claims.permit("c", 1)).await;
    admin.query("ROLLBACK").unwrap();
    release(&store, &held).await.unwrap();
    granted(&store, &claims.permit("a", 1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_table_is_an_error_and_not_contention() {
    let database = database_on(server());
    let store = lease_store(&server().url_of("mysql", &database)).await;
    let claims = Claims::new("table");
    granted(&store, &claims.mutex("before")).await;
    let mut admin = server().connect().unwrap();
    admin.query(&format!("LOCK TABLES {database}.distribute_lock WRITE")).unwrap();
    let begun = Instant::now();
    let error = attempt(&store, &claims.mutex("a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(begun.elapsed() < 40 * SECOND, "{:?}", begun.elapsed());
    admin.query("UNLOCK TABLES").unwrap();
    granted(&store, &claims.mutex("a")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_victim_of_a_deadlock_is_sent_again() {
    // A row is waited for for a second. On a busy machine that may end before the deadlock is closed.
    for _ in 0..10 {
        if is_sent_again_after_a_deadlock().await {
            return;
        }
    }
    panic!("no deadlock came about in ten attempts");
}

/// False if our transaction gave up before the deadlock.
async fn is_sent_again_after_a_deadlock() -> bool {
    let database = database_on(server());
    let store = lease_store(&server().url_of("mysql", &database)).await;
    let claims = Claims::new("deadlock");
    let names: Vec<String> = (0..50).map(|n| format!("n{n}")).collect();
    let all: Vec<Claim> = names.iter().map(|name| claims.mutex(name)).collect();
    store.try_acquire(&all).await.unwrap();
    for claim in &all {
        release(&store, claim).await.unwrap();
    }
    let rows = server().sql(&format!("SELECT name FROM {database}.distribute_lock ORDER BY k"));
    let sorted: Vec<String> = rows.into_iter().flatten().flatten().collect();
    let (first, last) = (&sorted[0], &sorted[sorted.len() - 1]);
    // An administrator's transaction with more changes than ours, so that ours is the victim.
    let mut admin = server().connect().unwrap();
    admin.query("START TRANSACTION").unwrap();
    let key = |name: &str| {
        server().value(&format!("SELECT HEX(k) FROM {database}.distribute_lock WHERE name = '{name}'"))
    };
    let by_key =
        |key: &str| format!("UPDATE {database}.distribute_lock SET token = token + 1 WHERE k = X'{key}'");
    for name in &sorted[1..] {
        admin.query(&by_key(&key(name))).unwrap();
    }
    let before = store.requests();
    let (two, claim_first) = (store.clone(), claims.mutex(first));
    let both = [claim_first, claims.mutex(last)];
    let ours = tokio::spawn(async move { two.try_acquire(&both).await });
    // Ours has the first row, and waits for the last one or is about to. The server's view of its transactions is stale while other
    // tests read it.
    let first_key = key(first);
    let free =
        format!("SELECT k FROM {database}.distribute_lock WHERE k = X'{first_key}' FOR UPDATE SKIP LOCKED");
    crate::common::eventually("our transaction has the first row", async || {
        server().sql(&free).is_empty() || ours.is_finished()
    })
    .await;
    let last_step = by_key(&first_key);
    let admin = tokio::task::spawn_blocking(move || {
        let answered = admin.query(&last_step).map(drop);
        admin.query("COMMIT").unwrap();
        answered
    });
    assert!(admin.await.unwrap().is_ok(), "the administrator was the victim: the test shows nothing");
    let answers = ours.await.unwrap().unwrap();
    if answers.iter().any(Result::is_err) {
        return false;
    }
    assert!(answers.iter().all(|answer| matches!(answer, Ok(Attempt::Granted { .. }))), "{answers:?}");
    // After a wait in vain, rows would have been looked at, too.
    store.requests() - before == 2
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn batches_of_the_same_names_in_any_order_do_not_fail() {
    for isolation in ["REPEATABLE READ", "READ COMMITTED", "SERIALIZABLE"] {
        let server = server();
        let database = database_on(server);
        server.sql(&format!("SET GLOBAL TRANSACTION ISOLATION LEVEL {isolation}"));
        let mut tasks = Vec::new();
        for n in 0..8_usize {
            let url = server.url_of("mysql", &database);
            tasks.push(tokio::spawn(async move {
                let store = lease_store(&url).await;
                let claims = Claims::new(&format!("c{n}"));
                for round in 0..15_usize {
                    // New names each round: rows are inserted by all at once.
                    let mut batch: Vec<Claim> = (0..30)
                        .map(|i| match i % 2 {
                            0 => claims.mutex(&format!("{round}/{i}")),
                            _ => claims.permit(&format!("{round}/{i}"), 2),
                        })
                        .collect();
                    if n % 2 == 0 {
                        batch.reverse();
                    }
                    for answer in store.try_acquire(&batch).await.unwrap() {
                        answer.unwrap();
                    }
                    for claim in &batch {
                        release(&store, claim).await.unwrap();
                    }
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        server.sql("SET GLOBAL TRANSACTION ISOLATION LEVEL REPEATABLE READ");
    }
}
