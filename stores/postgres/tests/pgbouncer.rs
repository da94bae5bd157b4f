//! PgBouncer in transaction mode in front of the server: each statement may run in another session.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::str::FromStr;
use std::time::Duration;

use common::{TestSchema, backend, bouncer, locks, server, wait_for_waiters};
use distlock_core::store::{Driver, Level};
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

// `exclusion::tasks_of_one_engine_never_hold_at_once` is left out: behind a pooler no statement stays prepared, and on a busy
// machine the server plans the pool batches of eighteen tasks for longer than the time limit of a request. `conformance.rs`
// sends the same batches to the server itself.
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

/// Other clients get the same sessions: none of our settings may remain in them.
#[tokio::test]
async fn a_pooler_is_detected_and_its_sessions_are_left_unchanged() {
    let test_schema = TestSchema::new();
    // With one session for all, the next client gets the one that we had.
    let bouncer = PgBouncer::start_in(server(), "transaction", &[("default_pool_size", "1")]);
    let through = locks(&test_schema.url("postgres", &bouncer.url())).await;
    assert!(!through.capabilities().push, "waiters cannot be woken through a pooler");
    for n in 0..30 {
        through.mutex(format!("m/{n}")).acquire().await.unwrap().release().await.unwrap();
    }
    let findings = through.doctor().await.unwrap();
    let warning = findings.iter().find(|finding| finding.what.contains("PgBouncer")).expect("a warning");
    assert_eq!(warning.level, Level::Warning);

    let config = tokio_postgres::Config::from_str(&bouncer.url()).unwrap();
    let (client, connection) = config.connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    let show = async |query: &str| {
        let rows = client.simple_query(query).await.unwrap();
        rows.iter().find_map(|row| match row {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        })
    };
    assert_eq!(show("SHOW enable_seqscan").await.as_deref(), Some("on"));
    assert_eq!(show("SHOW plan_cache_mode").await.as_deref(), Some("auto"));
    assert_eq!(show("SHOW lock_timeout").await.as_deref(), Some("0"));
    assert_eq!(show("SHOW search_path").await.as_deref(), Some("\"$user\", public"));
    assert_eq!(show("SELECT count(*) FROM pg_prepared_statements").await.as_deref(), Some("0"));
    assert_eq!(show("SELECT count(*) FROM pg_listening_channels()").await.as_deref(), Some("0"));
    assert_eq!(server().value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"), "0");
    let direct = locks(&test_schema.url("postgres", &server().url())).await;
    assert!(direct.capabilities().push);
    let ours = direct.doctor().await.unwrap();
    assert!(ours.iter().any(|finding| finding.what.contains("woken")), "{ours:?}");
}

/// Clients behind the pooler poll, and clients with a direct connection are woken. Each is granted after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn polling_and_woken_waiters_hand_off_to_each_other() {
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

/// No waiter is woken through a pooler, but tasks of one process wake each other: they do not sleep until the next poll.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_one_process_hand_off_a_pool_without_polling() {
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
    wait_for_waiters(&locks, "s", 3).await;
    held.release().await.unwrap();
    common::within("all of them", seldom - Duration::from_secs(1), tasks.join_all()).await;
}

#[tokio::test]
async fn advisory_locks_of_sessions_are_refused_behind_a_pooler() {
    let error = backend(&TestSchema::new().url("postgres+advisory", &bouncer().url())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("postgres://"), "{error}");
}

/// A lock of a transaction ends with it, also behind a pooler.
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
