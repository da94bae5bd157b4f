//! The lease table with lost replies, cut connections, a stalled server, and a server that closes idle sessions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::time::{Duration, Instant};

use common::{TestSchema, eventually, expiry, locks, postgres_store, server, within};
use distlock_core::store::{Attempt, Backend, Claim, Lease, LeaseStore, Query, Released};
use distlock_core::{ErrorKind, FencingToken, Kind, LockIds, Locks, ReleaseError, Resource};
use distlock_testkit::proxy::{AfterLoss, Direction, Proxy};
use distlock_testkit::servers::PostgresServer;

const LIMIT: Duration = Duration::from_secs(25);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_whose_reply_is_lost_on_the_wire_is_recognised() {
    let test_schema = TestSchema::new();
    let proxy = Proxy::start(server().addr());
    let through = locks(&test_schema.url("postgres", &proxy.through(&server().url()))).await;
    let other = locks(&test_schema.url("postgres", &server().url())).await;
    for (kind, words) in [("mutex", "INSERT INTO"), ("semaphore", "acquire")] {
        for _ in 0..2 {
            proxy.lose_reply_to(words, AfterLoss::Close);
            let guard = match kind {
                "mutex" => within("a grant", LIMIT, through.mutex("lost").acquire().into_future()).await,
                _ => within("a grant", LIMIT, through.semaphore("lost", 1).acquire().into_future()).await,
            };
            let guard = guard.unwrap();
            let found = other.inspect(&Query::named("lost")).await.unwrap();
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!(found[0].holders[0].lock_id, *guard.lock_id());
            guard.release().await.unwrap();
            eventually("nothing is left", async || {
                other.inspect(&Query::named("lost")).await.unwrap().is_empty()
            })
            .await;
            proxy.heal();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_connection_loses_neither_the_lock_nor_the_next_request() {
    let test_schema = TestSchema::new();
    let proxy = Proxy::start(server().addr());
    let through = locks(&test_schema.url("postgres", &proxy.through(&server().url()))).await;
    let through = through.with_options(expiry(1.5));
    let held = through.mutex("kept").acquire().await.unwrap();
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(4) {
        proxy.cut();
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!held.is_lost(), "{:?}", held.lost().await);
    }
    held.release().await.ok();
    through.mutex("next").acquire().await.unwrap().release().await.unwrap();
}

/// Half-open: requests arrive, replies do not, and neither side gets an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_connection_is_replaced() {
    let test_schema = TestSchema::new();
    let proxy = Proxy::start(server().addr());
    let through = locks(&test_schema.url("postgres", &proxy.through(&server().url()))).await;
    through.mutex("warm").acquire().await.unwrap().release().await.unwrap();
    proxy.black_hole(Direction::ToClient);
    let started = Instant::now();
    let options = distlock_core::Options::new().request_timeout(Duration::from_secs(1)).unwrap();
    let patient = through.with_options(options);
    let error =
        within("a reply", LIMIT, patient.mutex("lost reply").acquire().into_future()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(started.elapsed() < Duration::from_secs(12), "{:?}", started.elapsed());
    proxy.heal();
    within("a grant", LIMIT, async {
        loop {
            match through.mutex("after").acquire().await {
                Ok(guard) => return guard.release().await,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
        }
    })
    .await
    .unwrap();
    // The grant whose reply was lost was undone.
    let direct = locks(&test_schema.url("postgres", &server().url())).await;
    drop(within("the lock", LIMIT, direct.mutex("lost reply").acquire().into_future()).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_server_is_an_error_and_not_contention() {
    let own = PostgresServer::start();
    let through = locks(&TestSchema::new().url("postgres", &own.url())).await;
    let options = distlock_core::Options::new().request_timeout(Duration::from_millis(500)).unwrap();
    let through = through.with_options(options);
    let held = through.mutex("held").acquire().await.unwrap();
    own.pause();
    let started = Instant::now();
    for _ in 0..2 {
        let error = through.mutex("m").acquire().timeout(Duration::from_millis(200)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    assert!(started.elapsed() < LIMIT, "{:?}", started.elapsed());
    own.resume();
    within("a grant", LIMIT, async {
        loop {
            if let Ok(guard) = through.mutex("m").acquire().await {
                return guard.release().await;
            }
        }
    })
    .await
    .unwrap();
    assert!(!held.is_lost());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_the_server_closed_when_idle_is_reopened_without_an_error() {
    let test_schema = TestSchema::new();
    let url = test_schema.url("postgres", &server().url());
    let through = locks(&test_schema.as_role_with(&[("idle_session_timeout", "500")], &url)).await;
    for round in 0..3 {
        let guard = through.mutex("now and then").acquire().await.unwrap();
        eventually("the server closed it", async || test_schema.sessions(server()) == 0).await;
        guard.release().await.unwrap_or_else(|error| panic!("round {round}: {error}"));
        eventually("the server closed it", async || test_schema.sessions(server()) == 0).await;
    }
}

/// A request on a session that the server had closed is sent again on another one, which may end at any moment too: while it
/// is opened, before the statement arrives, after it was applied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_after_an_idle_session_was_closed_may_fail_at_any_moment() {
    let test_schema = TestSchema::new();
    let proxy = Proxy::start(server().addr());
    let url = test_schema.url("postgres", &proxy.through(&server().url()));
    let through = locks(&test_schema.as_role_with(&[("idle_session_timeout", "500")], &url)).await;
    let direct = locks(&test_schema.url("postgres", &server().url())).await;
    let sessions = format!("SELECT count(*) FROM pg_stat_activity WHERE usename = '{}'", test_schema.name);
    let (mut released, mut unknown) = (0, 0);
    for nth in 1..=8 {
        let guard = within("a grant", LIMIT, async {
            loop {
                // The connection of the last round may fail once.
                match through.mutex("now and then").acquire().await {
                    Ok(guard) => return guard,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
                }
            }
        })
        .await;
        // The end of the session does not reach the client, so the release is sent on the closed session.
        proxy.pause();
        eventually("the server closed it", async || server().value(&sessions) == "0").await;
        let releasing = tokio::spawn(guard.release());
        tokio::time::sleep(Duration::from_millis(30)).await;
        proxy.lose_reply(nth, AfterLoss::Close);
        proxy.resume();
        match within("an end of the release", LIMIT, releasing).await.unwrap() {
            Ok(()) => released += 1,
            Err(ReleaseError::Unknown { .. }) => unknown += 1,
            Err(error) => panic!("reply {nth} was lost: {error}"),
        }
        proxy.heal();
        let next = direct.mutex("now and then").acquire().timeout(LIMIT).await;
        next.unwrap_or_else(|error| panic!("reply {nth} was lost: {error}")).release().await.unwrap();
    }
    assert!(released > 0 && unknown > 0, "{released} released, {unknown} unknown");
}

/// Dropping a future at any moment leaves the shared connection usable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_requests_do_not_mix_up_the_replies_to_others() {
    let test_schema = TestSchema::new();
    let store = postgres_store(&test_schema.url("postgres", &server().url())).await;
    let ids = LockIds::new("dropped");
    let claim = |name: String| {
        Claim::new(Resource::new(Kind::Mutex, name).unwrap(), ids.next(), Duration::from_secs(60))
    };
    for round in 0..200_u64 {
        let dropped = claim(format!("dropped/{round}"));
        let request = store.try_acquire(std::slice::from_ref(&dropped));
        let limit = Duration::from_micros(round * 5 % 1000);
        let _ = tokio::time::timeout(limit, request).await;
        let kept = claim(format!("kept/{round}"));
        let answers = store.try_acquire(std::slice::from_ref(&kept)).await.unwrap();
        assert!(matches!(answers[..], [Ok(Attempt::Granted { .. })]), "round {round}: {answers:?}");
        let lease = Lease::of(&kept, FencingToken::new(1));
        let answers = store.release(std::slice::from_ref(&lease)).await.unwrap();
        assert!(matches!(answers[..], [Ok(Released::Done { .. })]), "round {round}: {answers:?}");
    }
    assert_eq!(test_schema.sessions(server()), 1, "one connection was enough");
}

/// Without waiters a cycle costs two statements on one connection. Only a process with waiters opens a second one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_connection_is_open_only_while_a_process_has_waiters() {
    let test_schema = TestSchema::new();
    let url = test_schema.url("postgres", &server().url());
    let store = postgres_store(&url).await;
    let one = Locks::new(Backend::lease(store.clone())).unwrap();
    one.mutex("warm").acquire().await.unwrap().release().await.unwrap();
    let before = store.statements();
    for n in 0..10 {
        one.mutex(format!("alone/{n}")).acquire().await.unwrap().release().await.unwrap();
    }
    assert_eq!(store.statements() - before, 20, "two statements a cycle");
    assert_eq!(test_schema.sessions(server()), 1);
    let held = one.mutex("waited for").acquire().await.unwrap();
    let other = locks(&url).await;
    let waiting =
        tokio::spawn(async move { other.mutex("waited for").acquire().await.unwrap().release().await });
    eventually("a connection that listens", async || test_schema.sessions(server()) == 3).await;
    held.release().await.unwrap();
    waiting.await.unwrap().unwrap();
    eventually("the waiter's connections are gone", async || test_schema.sessions(server()) == 1).await;
}

/// An operator, a fail-over or a restart ends the sessions of a process. What asks right then is served on the next session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquisition_right_after_its_session_was_terminated_succeeds_within_its_limit() {
    let mut failed = Vec::new();
    for scheme in ["postgres", "postgres+advisory"] {
        let test_schema = TestSchema::new();
        let locks = locks(&test_schema.url(scheme, &server().url())).await;
        let end_all = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '{}'",
            test_schema.name
        );
        for round in 0..24 {
            // Not waited for: the server may still be ending the session when the request arrives.
            server().sql(&end_all);
            let name = format!("m{round}");
            let acquiring = match round % 3 {
                0 => locks.mutex(name).acquire(),
                1 => locks.rw_lock(name).write(),
                _ => locks.semaphore(name, 2).acquire(),
            };
            match acquiring.timeout(Duration::from_secs(5)).await {
                Ok(guard) => drop(guard.release().await),
                Err(error) => failed.push(format!("{scheme}, round {round}: {error}")),
            }
        }
    }
    assert!(failed.is_empty(), "{} of 48 failed: {failed:#?}", failed.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_survives_the_end_of_its_session() {
    for scheme in ["postgres", "postgres+advisory"] {
        let test_schema = TestSchema::new();
        let holder = locks(&test_schema.url(scheme, &server().url())).await;
        let waiter_schema = TestSchema { name: format!("waiter_{}", test_schema.name) };
        let waiter_url =
            test_schema.url(scheme, &server().url()).replace("application_name=", "application_name=waiter_");
        let waiter = locks(&waiter_url).await;
        let held = (
            holder.mutex("m").acquire().await.unwrap(),
            holder.rw_lock("r").write().await.unwrap(),
            holder.semaphore("s", 1).acquire().await.unwrap(),
        );
        let waiting = [
            tokio::spawn(waiter.mutex("m").acquire().into_future()),
            tokio::spawn(waiter.rw_lock("r").read().into_future()),
            tokio::spawn(waiter.semaphore("s", 1).acquire().timeout(LIMIT).into_future()),
        ];
        let registered = async || {
            let records = holder.inspect(&Query::default()).await.unwrap();
            records.iter().filter(|record| !record.waiters.is_empty()).count() == 3
        };
        for _ in 0..3 {
            eventually("all wait", registered).await;
            waiter_schema.cut(server());
        }
        eventually("all wait again", registered).await;
        assert!(waiting.iter().all(|task| !task.is_finished()), "{scheme}");
        drop(held);
        for task in waiting {
            let guard = within("a grant", LIMIT, task).await.unwrap();
            drop(guard.unwrap_or_else(|error| panic!("{scheme}: {error}")));
        }
    }
}
