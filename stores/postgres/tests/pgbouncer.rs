//! PgBouncer in transaction mode between us and the server: each statement may meet another session.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::str::FromStr;
use std::time::Duration;

use common::{TestSchema, backend, bouncer, eventually, locks, server};
use distlock_core::store::{Driver, Level, Query};
use distlock_core::{ErrorKind, Kind};
use distlock_postgres::{AdvisoryKey, DRIVER, TransactionLocks};
use distlock_testkit::conformance::{Fixture, cases, run};
use distlock_testkit::servers::PgBouncer;
use tokio_postgres::NoTls;

struct Bounced(TestSchema);

impl Fixture for Bounced {
    async fn open() -> Self {
        Bounced(TestSchema::new())
    }

    fn driver() -> &'static Driver {
        &DRIVER
    }

    fn url(&self) -> String {
        self.0.url("postgres", &bouncer().url())
    }
}

const ENTRY: &str = "actor_entry";

#[test]
fn actor_entry() {
    distlock_testkit::conformance::run_if_actor::<Bounced>();
}

macro_rules! cases {
    ($($group:ident::$case:ident)*) => {
        $(#[test]
        fn $case() {
            run::<Bounced, _, _>(ENTRY, cases::$group::$case);
        })*
    };
}

// Of the rest, `exclusion::tasks_of_one_engine_never_hold_at_once` asks too much on a busy machine: behind a pooler nothing
// stays prepared, and planning the statement for pools anew for eighteen tasks at once takes the server longer than a
// request may last. The same batches go to the server itself in `conformance.rs`.
cases! {
    exclusion::processes_never_hold_a_mutex_at_once
    exclusion::permits_in_use_never_exceed_the_capacity
    tokens::tokens_increase_across_engines
    waiting::a_release_wakes_the_waiter
    waiting::a_time_limit_ends_the_wait_in_time
    renewal::a_held_lock_outlives_many_expiries
    protocol::a_batch_is_answered_item_by_item
    cancellation::an_acquire_dropped_at_any_await_leaves_nothing_held
}

/// The server's other users are served by the same sessions: nothing of ours may stay behind in them.
#[tokio::test]
async fn the_pooler_is_noticed_and_its_sessions_are_left_as_they_were() {
    let test_schema = TestSchema::new();
    // With one session for all, whoever comes next meets the one that we had.
    let bouncer = PgBouncer::start_in(server(), "transaction", &[("default_pool_size", "1")]);
    let through = locks(&test_schema.url("postgres", &bouncer.url())).await;
    assert!(!through.capabilities().push, "nobody can be woken through a pooler");
    for n in 0..30 {
        through.mutex(format!("m/{n}")).acquire().await.unwrap().release().await.unwrap();
    }
    let findings = through.doctor().await.unwrap();
    let said = findings.iter().find(|finding| finding.what.contains("PgBouncer")).expect("a warning");
    assert_eq!(said.level, Level::Warning);

    let config = tokio_postgres::Config::from_str(&bouncer.url()).unwrap();
    let (client, connection) = config.connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    let ask = async |question: &str| {
        let rows = client.simple_query(question).await.unwrap();
        rows.iter().find_map(|row| match row {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        })
    };
    assert_eq!(ask("SHOW enable_seqscan").await.as_deref(), Some("on"));
    assert_eq!(ask("SHOW plan_cache_mode").await.as_deref(), Some("auto"));
    assert_eq!(ask("SHOW lock_timeout").await.as_deref(), Some("0"));
    assert_eq!(ask("SHOW search_path").await.as_deref(), Some("\"$user\", public"));
    assert_eq!(ask("SELECT count(*) FROM pg_prepared_statements").await.as_deref(), Some("0"));
    assert_eq!(ask("SELECT count(*) FROM pg_listening_channels()").await.as_deref(), Some("0"));
    assert_eq!(server().value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"), "0");
    let direct = locks(&test_schema.url("postgres", &server().url())).await;
    assert!(direct.capabilities().push);
    let ours = direct.doctor().await.unwrap();
    assert!(ours.iter().any(|finding| finding.what.contains("woken")), "{ours:?}");
}

/// Those behind the pooler poll, those beside it are woken; both get their turn from each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_poll_and_those_who_are_woken_hand_over_to_each_other() {
    let test_schema = TestSchema::new();
    let mut tasks = tokio::task::JoinSet::new();
    for server in [bouncer().url(), server().url(), bouncer().url(), server().url()] {
        let options = distlock_core::Options::new();
        let options = options.busy_wait_sleep(Duration::from_millis(5), Duration::from_millis(20)).unwrap();
        let locks = locks(&test_schema.url("postgres", &server)).await.with_options(options);
        tasks.spawn(async move {
            for _ in 0..15 {
                locks.mutex("mixed").acquire().await.unwrap().release().await.unwrap();
                locks.semaphore("mixed", 2).acquire_many(2).await.unwrap().release().await.unwrap();
            }
        });
    }
    common::within("all of them", Duration::from_secs(60), tasks.join_all()).await;
}

/// Nobody is woken through a pooler, but those of one process hear of each other: they do not sleep until the next poll.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_one_process_hand_a_pool_over_without_polling() {
    let seldom = Duration::from_secs(60);
    let options = distlock_core::Options::new().busy_wait_sleep(seldom, seldom).unwrap();
    let options = options.request_timeout(seldom / 2).unwrap();
    let locks = locks(&TestSchema::new().url("postgres", &bouncer().url())).await.with_options(options);
    let held = locks.semaphore("s", 1).acquire().await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let locks = locks.clone();
        tasks.spawn(async move { locks.semaphore("s", 1).acquire().await.unwrap().release().await.unwrap() });
    }
    eventually("three wait", async || {
        let records = locks.inspect(&Query::named("s")).await.unwrap();
        records.iter().any(|record| record.waiters.len() == 3)
    })
    .await;
    held.release().await.unwrap();
    common::within("all of them", seldom - Duration::from_secs(1), tasks.join_all()).await;
}

#[tokio::test]
async fn advisory_locks_of_sessions_are_refused_behind_a_pooler() {
    let error = backend(&TestSchema::new().url("postgres+advisory", &bouncer().url())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("postgres://"), "{error}");
}

/// A lock of a transaction belongs to whoever has the transaction, also here.
#[tokio::test]
async fn advisory_locks_of_transactions_work_behind_a_pooler() {
    let config = tokio_postgres::Config::from_str(&bouncer().url()).unwrap();
    let mut clients = Vec::new();
    for _ in 0..2 {
        let (client, connection) = config.connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        clients.push(client);
    }
    let [one, other] = &mut clients[..] else { panic!("two clients") };
    for key in [AdvisoryKey::of(Kind::Mutex, "account/42"), AdvisoryKey::Pair(7, -9)] {
        let first = one.transaction().await.unwrap();
        TransactionLocks::of(&first).lock(key).await.unwrap();
        let second = other.transaction().await.unwrap();
        assert!(!TransactionLocks::of(&second).try_lock(key).await.unwrap());
        assert!(!TransactionLocks::of(&second).try_lock_shared(key).await.unwrap());
        first.commit().await.unwrap();
        assert!(TransactionLocks::of(&second).try_lock_shared(key).await.unwrap(), "free with the commit");
        second.rollback().await.unwrap();
        let third = one.transaction().await.unwrap();
        assert!(TransactionLocks::of(&third).try_lock(key).await.unwrap(), "free with the rollback");
        third.batch_execute("SET LOCAL lock_timeout = 50").await.unwrap();
        let fourth = other.transaction().await.unwrap();
        fourth.batch_execute("SET LOCAL lock_timeout = 50").await.unwrap();
        let error = TransactionLocks::of(&fourth).lock(key).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    }
}
