//! Advisory locks of transactions: waits that fail leave the transaction usable, and a dropped wait ends.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::time::Duration;

use common::{eventually, server, within};
use distlock_core::{ErrorKind, Kind};
use distlock_postgres::{AdvisoryKey, TransactionLocks};
use tokio_postgres::{Client, NoTls};

const LIMIT: Duration = Duration::from_secs(25);

async fn client() -> Client {
    let (client, connection) = tokio_postgres::connect(&server().url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

fn key(name: &str) -> AdvisoryKey {
    AdvisoryKey::of(Kind::Mutex, name)
}

async fn wait_for(client: &Client, milliseconds: u32) {
    client.batch_execute(&format!("SET LOCAL lock_timeout = {milliseconds}")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_whose_lock_timed_out_goes_on_and_keeps_its_other_locks() {
    let (mut first, mut second, third) = (client().await, client().await, client().await);
    let holder = first.transaction().await.unwrap();
    TransactionLocks::of(&holder).lock(key("timeout/a")).await.unwrap();
    let waiter = second.transaction().await.unwrap();
    let locks = TransactionLocks::of(&waiter);
    locks.lock(key("timeout/b")).await.unwrap();
    wait_for(waiter.client(), 50).await;
    for shared in [false, true] {
        let error = match shared {
            false => locks.lock(key("timeout/a")).await.unwrap_err(),
            true => locks.lock_shared(key("timeout/a")).await.unwrap_err(),
        };
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        let row = waiter.query_one("SELECT 42", &[]).await.expect("the transaction is usable");
        assert_eq!(row.get::<_, i32>(0), 42);
    }
    assert!(!try_lock(&third, "timeout/b").await, "its first lock is kept");
    wait_for(waiter.client(), 20_000).await;
    let granted = locks.lock(key("timeout/a"));
    let (granted, ()) = tokio::join!(granted, async {
        eventually("it waits", async || waiting() >= 1).await;
        holder.commit().await.unwrap();
    });
    granted.unwrap();
    assert!(!try_lock(&third, "timeout/a").await, "a lock that was waited for is kept too");
    waiter.commit().await.unwrap();
    assert!(try_lock(&third, "timeout/a").await && try_lock(&third, "timeout/b").await);
}

/// Waits of transactions of this test program.
fn waiting() -> usize {
    server()
        .value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        .parse()
        .unwrap()
}

/// In a statement of its own: the lock ends with it.
async fn try_lock(client: &Client, name: &str) -> bool {
    let AdvisoryKey::One(number) = key(name) else { panic!("a name is one number") };
    client.query_one("SELECT pg_try_advisory_xact_lock($1)", &[&number]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadlock_is_an_error_of_its_own_kind_and_leaves_the_transaction_usable() {
    let (mut first, mut second) = (client().await, client().await);
    let (one, two) = (first.transaction().await.unwrap(), second.transaction().await.unwrap());
    TransactionLocks::of(&one).lock(key("deadlock/a")).await.unwrap();
    TransactionLocks::of(&two).lock(key("deadlock/b")).await.unwrap();
    let crossed = async {
        // The one that is ended rolls back, and the other one gets its lock.
        let wait_one = async {
            let locked = TransactionLocks::of(&one).lock(key("deadlock/b")).await;
            if locked.is_err() {
                one.query_one("SELECT 1", &[]).await.expect("usable");
                one.rollback().await.unwrap();
            }
            locked
        };
        let wait_two = async {
            let locked = TransactionLocks::of(&two).lock(key("deadlock/a")).await;
            if locked.is_err() {
                two.query_one("SELECT 1", &[]).await.expect("usable");
                two.rollback().await.unwrap();
            }
            locked
        };
        tokio::join!(wait_one, wait_two)
    };
    let (one, two) = within("the server finds the deadlock", LIMIT, crossed).await;
    let errors: Vec<_> = [one, two].into_iter().filter_map(Result::err).collect();
    let [error] = &errors[..] else { panic!("one of them: {errors:?}") };
    assert_eq!(error.kind(), ErrorKind::Deadlock, "{error}");
    assert!(error.can_retry() && error.advice().is_some(), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_lock_stops_waiting() {
    let (mut first, mut second) = (client().await, client().await);
    let holder = first.transaction().await.unwrap();
    TransactionLocks::of(&holder).lock(key("dropped")).await.unwrap();
    let waits = |pid: i32| {
        let waits = format!("SELECT count(*) FROM pg_locks WHERE pid = {pid} AND NOT granted");
        server().value(&waits) == "1"
    };
    for _ in 0..5 {
        let transaction = second.transaction().await.unwrap();
        let pid: i32 = transaction.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        {
            let locks = TransactionLocks::of(&transaction);
            let mut lock = std::pin::pin!(locks.lock(key("dropped")));
            tokio::select! {
                locked = &mut lock => panic!("{locked:?}"),
                () = eventually("it waits", async || waits(pid)) => {}
            }
        }
        eventually("it waits no more", async || !waits(pid)).await;
        drop(transaction);
        // The connection is usable for the next transaction.
        within("the roll-back", LIMIT, second.query_one("SELECT 1", &[])).await.unwrap();
    }
    holder.commit().await.unwrap();
}
