//! Rows that are locked for longer than one wait, and not for ever: clients queue for them on a slow disk, or an administrator
//! is slow. They fail nothing, and are not taken for rows that stay locked.

use std::time::Duration;

use crate::common::{Claims, MS, attempt, database_on, eventually, granted, lease_store, release, server};
use distlock_core::ErrorKind;
use distlock_core::store::{Attempt, Claim, LeaseStore, Store};
use distlock_mysql::MysqlStore;
use distlock_testkit::servers::mysql::wire::MysqlConnection;

/// An administrator's transaction with the row of a name locked.
fn lock_row(database: &str, table: &str, name: &str) -> MysqlConnection {
    // By its key: a search by name would lock each row that it passes.
    let key = server().value(&format!("SELECT HEX(k) FROM {database}.{table} WHERE name = '{name}'"));
    let mut admin = server().connect().unwrap();
    admin
        .query(&format!(
            "START TRANSACTION; SELECT name FROM {database}.{table} WHERE k = X'{key}' FOR UPDATE"
        ))
        .unwrap();
    admin
}

/// Waits until this many requests were sent since `before`, or the task has ended.
async fn sent<T>(store: &MysqlStore, before: u64, requests: u64, task: &tokio::task::JoinHandle<T>) {
    eventually("the request is sent again", async || {
        task.is_finished() || store.requests() - before >= requests
    })
    .await;
}

#[derive(Clone, Copy, Debug)]
enum Verb {
    Acquire,
    Release,
    Break,
}

/// A request whose row is locked until it has waited once in vain.
async fn waits_once_more(database: &str, url: &str, verb: Verb, is_mutex: bool) {
    let store = lease_store(url).await;
    let claims = Claims::new("patient");
    let name = format!("{verb:?}");
    let claim = || if is_mutex { claims.mutex(&name) } else { claims.permit(&name, 1) };
    let held = claim();
    granted(&store, &held).await;
    if matches!(verb, Verb::Acquire) {
        release(&store, &held).await.unwrap();
    }
    let table = if is_mutex { "distribute_lock" } else { "distribute_lock_pool" };
    let mut admin = lock_row(database, table, &name);
    let before = store.requests();
    let (one, next) = (store.clone(), claim());
    let task = tokio::spawn(async move {
        match verb {
            Verb::Acquire => attempt(&one, &next).await.map(|answer| assert!(is_granted(&answer))),
            Verb::Release => release(&one, &held).await.map(drop),
            Verb::Break => one.break_lock(&held.resource).await.map(|holders| assert_eq!(holders.len(), 1)),
        }
    });
    sent(&store, before, 2, &task).await;
    admin.query("ROLLBACK").unwrap();
    task.await.unwrap().unwrap_or_else(|error| panic!("{verb:?}: {error}"));
}

fn is_granted(answer: &Attempt) -> bool {
    matches!(answer, Attempt::Granted { .. })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_is_free_after_a_while_fails_no_request() {
    let database = database_on(server());
    let url = server().url_of("mysql", &database);
    let waits = |verb, is_mutex| waits_once_more(&database, &url, verb, is_mutex);
    tokio::join!(
        waits(Verb::Acquire, true),
        waits(Verb::Acquire, false),
        waits(Verb::Release, true),
        waits(Verb::Release, false),
        waits(Verb::Break, true),
    );
}

/// Claims for ten mutexes.
fn ten(claims: &Claims) -> Vec<Claim> {
    (0..10).map(|n| claims.mutex(&format!("n{n}"))).collect()
}

/// All but this one are granted.
fn assert_failed_alone(answers: &[distlock_core::Result<Attempt>], failed: usize) {
    for (n, answer) in answers.iter().enumerate() {
        match answer {
            Ok(answer) if n != failed => assert!(is_granted(answer), "{n}: {answer:?}"),
            Err(error) if n == failed => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            other => panic!("{n}: {other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_is_locked_for_a_while_is_not_taken_for_one_that_stays_locked() {
    let database = database_on(server());
    let store = lease_store(&server().url_of("mysql", &database)).await;
    let claims = Claims::new("blame");
    for claim in ten(&claims) {
        granted(&store, &claim).await;
        release(&store, &claim).await.unwrap();
    }
    let mut for_a_while = lock_row(&database, "distribute_lock", "n3");
    let mut stays = lock_row(&database, "distribute_lock", "n7");
    let before = store.requests();
    let (two, batch) = (store.clone(), ten(&claims));
    let task = tokio::spawn(async move { two.try_acquire(&batch).await });
    // The batch, a look at its rows, the others, and each of the two.
    sent(&store, before, 5, &task).await;
    for_a_while.query("ROLLBACK").unwrap();
    assert_failed_alone(&task.await.unwrap().unwrap(), 7);
    stays.query("ROLLBACK").unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_was_inserted_and_not_committed_fails_its_own_lock_alone() {
    let database = database_on(server());
    let url = server().url_of("mysql", &database);
    let (store, other) = (lease_store(&url).await, lease_store(&url).await);
    let claims = Claims::new("inserted");
    let batch = ten(&claims);
    granted(&store, &batch[5]).await;
    let mut admin = server().connect().unwrap();
    admin
        .query(&format!(
            "CREATE TEMPORARY TABLE {database}.kept SELECT * FROM {database}.distribute_lock;
             DELETE FROM {database}.distribute_lock; START TRANSACTION;
             INSERT INTO {database}.distribute_lock SELECT * FROM {database}.kept"
        ))
        .unwrap();
    // No look at the rows finds it.
    assert_failed_alone(&other.try_acquire(&batch).await.unwrap(), 5);
    admin.query("ROLLBACK").unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_rows_that_stay_locked_are_asked_for_on_few_connections() {
    let database = database_on(server());
    let store = lease_store(&server().url_of("mysql", &database)).await;
    let claims = Claims::new("many");
    let batch: Vec<Claim> = (0..60).map(|n| claims.mutex(&format!("n{n}"))).collect();
    store.try_acquire(&batch).await.unwrap();
    let mut admin = server().connect().unwrap();
    admin.query(&format!("START TRANSACTION; SELECT * FROM {database}.distribute_lock FOR UPDATE")).unwrap();
    let open = format!("SELECT COUNT(*) FROM information_schema.processlist WHERE db = '{database}'");
    // The second time the rows are known.
    for round in 0..2 {
        let (two, batch) = (store.clone(), batch.clone());
        let task = tokio::spawn(async move { two.try_acquire(&batch).await.unwrap() });
        let mut most = 0;
        while !task.is_finished() {
            most = most.max(server().value(&open).parse::<u32>().unwrap());
            tokio::time::sleep(5 * MS).await;
        }
        assert!(most <= 8, "{most} connections in round {round}");
        assert!(task.await.unwrap().iter().all(Result::is_err));
    }
    admin.query("ROLLBACK").unwrap();
    // They are known for ten seconds, and asked for again when they are free.
    let begun = std::time::Instant::now();
    assert!(store.try_acquire(&batch).await.unwrap().iter().all(Result::is_ok));
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}
