//! A row of a lock table that another session has locked: it fails alone, soon and with the reason, and no statement of a
//! dead client keeps waiting for it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::fixtures::LeaseFixture;
use common::{TestSchema, bouncer, eventually, expiry, locks, postgres_store, server, within};
use distlock_core::store::{Attempt, Claim, Lease, LeaseStore, Query, Released, Renewal, Store};
use distlock_core::{ErrorKind, FencingToken, Kind, LockIds, Resource};
use distlock_postgres::PostgresStore;
use distlock_testkit::conformance::{Harness, run};
use distlock_testkit::history::LockSpec;
use distlock_testkit::servers::postgres::wire::PostgresConnection;

const LIMIT: Duration = Duration::from_secs(25);
/// Far below the time limit of a request, and far above the time for which the store waits for a row on a busy machine.
const SOON: Duration = Duration::from_secs(4);
const NAMES: [&str; 10] = ["a", "b", "c", "d", "stuck", "f", "g", "h", "i", "j"];

fn table(test_schema: &TestSchema, kind: Kind) -> String {
    let ending = if kind == Kind::Mutex { "" } else { "_pool" };
    format!("{}.distribute_lock{ending}", test_schema.name)
}

/// A session that has locked the row of `stuck`, and its process id.
fn lock_row(test_schema: &TestSchema, kind: Kind) -> (PostgresConnection, String) {
    let mut admin = server().connect().unwrap();
    let key = if kind == Kind::Mutex { "stuck".to_owned() } else { format!("{kind}:stuck") };
    let rows = admin.query(&format!(
        "BEGIN; SELECT key FROM {} WHERE key = '{key}' FOR UPDATE",
        table(test_schema, kind)
    ));
    assert_eq!(rows.unwrap().len(), 1, "the row is there");
    let pid = admin.query("SELECT pg_backend_pid()").unwrap()[0][0].clone().unwrap();
    (admin, pid)
}

fn claims(ids: &LockIds, kind: Kind, names: &[&str]) -> Vec<Claim> {
    let claim =
        |name: &&str| Claim::new(Resource::new(kind, *name).unwrap(), ids.next(), Duration::from_secs(60));
    names.iter().map(claim).collect()
}

fn leases(claims: &[Claim]) -> Vec<Lease> {
    claims.iter().map(|claim| Lease::of(claim, FencingToken::new(1))).collect()
}

/// Checks that every answer is as expected, except the one for `stuck`, which names the blocking session.
fn all_but_stuck<A: std::fmt::Debug>(
    answers: Vec<distlock_core::Result<A>>,
    pid: Option<&str>,
    expected: impl Fn(&A) -> bool,
) {
    assert_eq!(answers.len(), NAMES.len());
    for (name, answer) in NAMES.iter().zip(answers) {
        match answer {
            Err(error) if *name == "stuck" => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                assert!(!error.is_outcome_unknown(), "{error}");
                let text = error.to_string();
                assert!(text.contains("locked by another session"), "{text}");
                assert!(pid.is_none_or(|pid| text.contains(pid)), "{text}: it is {pid:?}");
                assert!(error.advice().is_some_and(|advice| advice.contains("pg_")), "{text}");
            }
            Ok(answer) if *name != "stuck" && expected(&answer) => {}
            other => panic!("{name}: {other:?}"),
        }
    }
}

async fn only_the_locked_row_fails(test_schema: &TestSchema, store: &PostgresStore, kind: Kind) {
    let ids = LockIds::new("locked");
    let held = claims(&ids, kind, &NAMES);
    for answer in store.try_acquire(&held).await.unwrap() {
        assert!(matches!(answer.unwrap(), Attempt::Granted { .. }));
    }
    let (mut admin, pid) = lock_row(test_schema, kind);
    let pid = Some(pid.as_str());
    let held = leases(&held);
    for _ in 0..2 {
        let answers = within("renewals", SOON, store.renew(&held)).await.unwrap();
        all_but_stuck(answers, pid, |answer| *answer == Renewal::Renewed);
    }
    let answers = within("releases", SOON, store.release(&held)).await.unwrap();
    all_but_stuck(answers, pid, |answer| matches!(answer, Released::Done { .. }));
    let next = claims(&ids, kind, &NAMES);
    let answers = within("attempts", SOON, store.try_acquire(&next)).await.unwrap();
    all_but_stuck(answers, pid, |answer| matches!(answer, Attempt::Granted { .. }));
    let alone = &next[4..5];
    let answers = within("an attempt", SOON, store.try_acquire(alone)).await;
    let error = answers.and_then(|mut answers| answers.pop().unwrap()).unwrap_err();
    assert!(error.to_string().contains("locked by another session"), "{error}");

    // Once the row is free its lock is served again.
    admin.query("COMMIT").unwrap();
    let answers = store.release(&held[4..5]).await.unwrap();
    assert!(matches!(answers[..], [Ok(Released::Done { .. })]), "{answers:?}");
    let answers = store.try_acquire(&next).await.unwrap();
    assert!(answers.iter().all(|answer| matches!(answer, Ok(Attempt::Granted { .. }))), "{answers:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_batch_only_the_row_that_is_locked_fails() {
    for kind in [Kind::Mutex, Kind::Semaphore] {
        let test_schema = TestSchema::new();
        let store = postgres_store(&test_schema.url("postgres", &server().url())).await;
        only_the_locked_row_fails(&test_schema, &store, kind).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_batch_behind_a_pooler_only_the_row_that_is_locked_fails() {
    for kind in [Kind::Mutex, Kind::Semaphore] {
        let test_schema = TestSchema::new();
        let store = postgres_store(&test_schema.url("postgres", &bouncer().url())).await;
        only_the_locked_row_fails(&test_schema, &store, kind).await;
    }
}

/// A row that another session has inserted and not committed is not visible, but a statement waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_another_session_is_inserting_fails_alone() {
    for kind in [Kind::Mutex, Kind::Semaphore] {
        let test_schema = TestSchema::new();
        let store = postgres_store(&test_schema.url("postgres", &server().url())).await;
        let mut admin = server().connect().unwrap();
        let insert = match kind {
            Kind::Mutex => "(key, value, expire_time) VALUES ('stuck', '', now())",
            _ => {
                "(key, capacity, token, holders, queue, used_until)
                 VALUES ('semaphore:stuck', 1, 1, '[]', '[]', now())"
            }
        };
        admin.query(&format!("BEGIN; INSERT INTO {} {insert}", table(&test_schema, kind))).unwrap();
        let ids = LockIds::new("inserted");
        for _ in 0..2 {
            let asked = claims(&ids, kind, &NAMES);
            let answers = within("attempts", SOON, store.try_acquire(&asked)).await.unwrap();
            all_but_stuck(answers, None, |answer| matches!(answer, Attempt::Granted { .. }));
            store.release(&leases(&asked)).await.unwrap();
        }
        admin.query("COMMIT").unwrap();
        let answers = store.try_acquire(&claims(&ids, kind, &["stuck"])).await.unwrap();
        assert!(matches!(answers[..], [Ok(Attempt::Granted { .. })]), "{answers:?}");
    }
}

/// While one row is locked and claimed repeatedly, other locks are acquired and no other lease is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_leases_of_a_process_survive_a_locked_row() {
    let test_schema = TestSchema::new();
    let url = test_schema.url("postgres", &server().url());
    let ours = locks(&url).await.with_options(expiry(4.0));
    let theirs = locks(&url).await;
    let mut held = Vec::new();
    for n in 0..20 {
        held.push(ours.mutex(format!("held/{n}")).acquire().await.unwrap());
        held.push(ours.rw_lock(format!("held/{n}")).write().await.unwrap());
    }
    let stuck = [ours.mutex("stuck").acquire().await.unwrap(), ours.rw_lock("stuck").write().await.unwrap()];
    let admins = [lock_row(&test_schema, Kind::Mutex).0, lock_row(&test_schema, Kind::RwLock).0];
    let mut claiming = tokio::task::JoinSet::new();
    for locks in [&ours, &theirs] {
        for kind in [Kind::Mutex, Kind::RwLock] {
            let locks = locks.clone();
            claiming.spawn(async move {
                loop {
                    let error = match kind {
                        Kind::Mutex => locks.mutex("stuck").acquire().await.map(drop).unwrap_err(),
                        _ => locks.rw_lock("stuck").write().await.map(drop).unwrap_err(),
                    };
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            });
        }
    }
    let started = Instant::now();
    let mut longest = Duration::ZERO;
    while started.elapsed() < Duration::from_secs(8) {
        let round = Instant::now();
        for locks in [&ours, &theirs] {
            locks
                .mutex(format!("free/{}", fastrand::u8(..)))
                .acquire()
                .await
                .unwrap()
                .release()
                .await
                .unwrap();
            locks.semaphore("free", 2).acquire().await.unwrap().release().await.unwrap();
        }
        longest = longest.max(round.elapsed());
        for guard in &held {
            assert!(!guard.is_lost(), "{} after {:?}", guard.resource(), started.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(longest < SOON, "free locks took {longest:?}");
    claiming.shutdown().await;
    // The leases of the locked rows could not be renewed, and their guards are lost.
    for guard in &stuck {
        assert!(guard.is_lost());
    }
    drop(admins);
    for guard in held {
        guard.release().await.unwrap();
    }
    drop(within("the lock", LIMIT, theirs.mutex("stuck").acquire().into_future()).await.unwrap());
}

/// Makes each change of a row in this table take this long, as on a slow disk or a busy server.
fn slow_down(test_schema: &TestSchema, kind: Kind, seconds: f64) {
    let (TestSchema { name }, table) = (test_schema, table(test_schema, kind));
    server().sql(&format!(
        "CREATE FUNCTION {name}.slow() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM pg_sleep({seconds}); RETURN NEW; END $$;
         CREATE TRIGGER slow BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION {name}.slow()"
    ));
}

/// The clients queue for longer than any of them waits for a row. None fails: an attempt that does not get its turn is contended,
/// and the holder is served although the others keep asking.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_queue_for_a_row_are_no_error() {
    for kind in [Kind::Mutex, Kind::Semaphore] {
        let test_schema = TestSchema::new();
        let url = test_schema.url("postgres", &server().url());
        let mut stores = Vec::new();
        for _ in 0..12 {
            stores.push(postgres_store(&url).await);
        }
        let ids = LockIds::new("crowd");
        let held = claims(&ids, kind, &["crowded"]);
        let answers = stores[0].try_acquire(&held).await.unwrap();
        assert!(matches!(answers[..], [Ok(Attempt::Granted { .. })]), "{answers:?}");
        slow_down(&test_schema, kind, 0.3);
        let [released, stop] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let mut asking = tokio::task::JoinSet::new();
        for store in stores.split_off(1) {
            let (ids, released, stop) = (LockIds::new("asking"), Arc::clone(&released), Arc::clone(&stop));
            asking.spawn(async move {
                let mut answered = 0;
                while !stop.load(Ordering::SeqCst) {
                    let claim = claims(&ids, kind, &["crowded"]);
                    match &store.try_acquire(&claim).await.unwrap()[..] {
                        [Ok(Attempt::Busy { .. })] => {}
                        [Ok(Attempt::Granted { .. })] if released.load(Ordering::SeqCst) => {}
                        other => panic!("{kind}: {other:?}"),
                    }
                    answered += 1;
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
                answered
            });
        }
        let waits = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{}' AND wait_event_type = 'Lock'",
            test_schema.name
        );
        let queue = async || server().value(&waits).parse::<u32>().unwrap() > 5;
        eventually("they queue for the row", queue).await;
        let held = leases(&held);
        for _ in 0..3 {
            let answers = within("a renewal", SOON, stores[0].renew(&held)).await.unwrap();
            assert!(matches!(answers[..], [Ok(Renewal::Renewed)]), "{kind}: {answers:?}");
        }
        released.store(true, Ordering::SeqCst);
        let answers = within("a release", SOON, stores[0].release(&held)).await.unwrap();
        assert!(matches!(answers[..], [Ok(Released::Done { .. })]), "{kind}: {answers:?}");
        let broken = within("a forced release", SOON, stores[0].break_lock(&held[0].resource)).await;
        assert!(broken.unwrap().len() <= 1, "{kind}");
        stop.store(true, Ordering::SeqCst);
        while let Some(answered) = within("the others", LIMIT, asking.join_next()).await {
            assert!(answered.unwrap() > 0, "{kind}: a client was never answered");
        }
    }
}

#[test]
fn actor_entry() {
    distlock_testkit::conformance::run_if_actor::<LeaseFixture>();
}

/// Processes that wait for the row are killed. None of their statements keeps waiting, and none of them is granted the lock when
/// the row is free again.
#[test]
fn killed_processes_leave_no_statement_that_waits_for_a_locked_row() {
    async fn play(harness: Harness<LeaseFixture>) {
        let test_schema = &harness.fixture().0;
        let specs = [LockSpec::mutex("stuck"), LockSpec::permits("stuck", 1, 1)];
        let locks = harness.locks().await;
        for spec in &specs {
            spec.acquire(&locks).await.unwrap().release().await.unwrap();
        }
        locks.shutdown().await.unwrap();
        drop(locks);
        eventually("no session is left", async || test_schema.sessions(server()) == 0).await;
        let mut admins = [lock_row(test_schema, Kind::Mutex).0, lock_row(test_schema, Kind::Semaphore).0];
        let actors: Vec<_> = (0..3).map(|_| harness.actor("killed", harness.long_lease())).collect();
        for actor in &actors {
            for (slot, spec) in (1..).zip(&specs) {
                drop(actor.send(distlock_testkit::actors::ActorCommand::Acquire {
                    slot,
                    spec: spec.clone(),
                    timeout: None,
                    watch: false,
                }));
            }
        }
        let blocked = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{}' AND wait_event_type = 'Lock'",
            test_schema.name
        );
        eventually("they wait for the rows", async || server().value(&blocked) != "0").await;
        for actor in actors {
            actor.kill().await;
        }
        eventually("their sessions end", async || test_schema.sessions(server()) == 0).await;
        for admin in &mut admins {
            admin.query("COMMIT").unwrap();
        }
        let locks = harness.locks().await;
        for spec in &specs {
            let found = locks.inspect(&Query::named("stuck")).await.unwrap();
            assert!(found.iter().all(|record| record.holders.is_empty()), "granted to the dead: {found:?}");
            harness
                .within("the lock", spec.acquire(&locks).into_future())
                .await
                .unwrap()
                .release()
                .await
                .unwrap();
        }
    }
    run::<LeaseFixture, _, _>("locked_rows::actor_entry", play);
}
