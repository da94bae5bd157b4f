//! A waiter that learns of its grant too late, on real servers: the process or the message was delayed, the grant expired, and
//! another process acquired the lock. The waiter must not become a second holder.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use common::{LIMIT, locks, ms, store, until};
use distlock_core::faults::delay_wakes;
use distlock_core::store::{Backend, Query, StoreUrl};
use distlock_core::{Guard, Locks, Options};
use distlock_redis::DRIVER;
use distlock_testkit::actors::{Actor, ActorConfig, TestOptions, run_if_actor};
use distlock_testkit::history::{LockSpec, Recorder};
use distlock_testkit::servers::RedisServer;
use futures_util::future::join_all;

const ROUNDS: u32 = 5;
/// How long the test checks that there is no second holder. The waiter asks again about once a second.
const WATCHED: Duration = Duration::from_millis(1500);

/// The entry point of other processes: see [`perform`].
#[test]
fn actor_entry() {
    run_if_actor(|address| async move { DRIVER.connect(StoreUrl::parse(&address).unwrap()).await.unwrap() });
}

fn specs() -> [LockSpec; 4] {
    [LockSpec::mutex("m"), LockSpec::fair("f"), LockSpec::write("w"), LockSpec::permits("p", 1, 1)]
}

/// A folder for the logs of the actors of one test.
fn logs(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

async fn acquired(locks: &Locks, spec: &LockSpec) -> Guard {
    tokio::time::timeout(LIMIT, spec.acquire(locks))
        .await
        .unwrap_or_else(|_| panic!("no grant of {spec:?} in time"))
        .expect("a grant")
}

async fn until_waiting(locks: &Locks, spec: &LockSpec) {
    until("a waiter", async || {
        let found = locks.inspect(&Query::named(spec.name())).await.unwrap();
        found.iter().any(|record| record.kind == spec.kind() && record.waiters.len() == 1)
    })
    .await;
}

/// Rounds for each kind of lock, all kinds concurrently.
async fn stalled_waiters(server: &RedisServer, rounds: u32) {
    let folder = logs(&format!("stalled-{}", server.port()));
    let rounds_of_all = specs().map(|spec| {
        let (url, folder) = (server.url(), folder.clone());
        async move {
            let (first, second) = (locks(&url, ms(30_000)).await, locks(&url, ms(30_000)).await);
            let director = Recorder::create(&folder, &format!("director-{}", spec.name()));
            let role = ActorConfig {
                name: format!("paused-{}", spec.name()),
                logs: folder,
                options: TestOptions::with_expiry(ms(30_000)),
                address: Some(url),
            };
            let mut paused = Actor::spawn_process("actor_entry", &role, &director);
            for round in 0..rounds {
                let held = acquired(&first, &spec).await;
                let waiting = tokio::spawn(paused.acquire(round, &spec));
                until_waiting(&first, &spec).await;
                paused.pause().await;
                held.release().await.unwrap();
                // Longer than the window of the grant that the paused process did not learn of.
                tokio::time::sleep(ms(2150)).await;
                let next = acquired(&second, &spec).await;
                paused.resume();
                let started = tokio::time::Instant::now();
                while started.elapsed() < WATCHED {
                    assert!(!waiting.is_finished(), "{spec:?}, round {round}: two holders");
                    tokio::time::sleep(ms(10)).await;
                }
                assert!(!next.is_lost(), "{spec:?}, round {round}: {:?}", next.loss());
                let token = next.token().get();
                next.release().await.unwrap();
                let later = tokio::time::timeout(LIMIT, waiting).await.expect("a grant in time").unwrap();
                assert!(later > token, "{spec:?}, round {round}: {later} after {token}");
                paused.release(round).await;
            }
            paused.shutdown().await;
        }
    });
    join_all(rounds_of_all).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_was_paused_does_not_become_a_second_holder() {
    stalled_waiters(&RedisServer::start(), ROUNDS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_was_paused_does_not_become_a_second_holder_on_valkey() {
    stalled_waiters(&RedisServer::configure().valkey().start(), 2).await;
}

/// No fault: an expiry of 500 ms, and messages that take longer.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_arrives_after_a_short_expiry_makes_no_second_holder() {
    let server = RedisServer::start();
    let rounds_of_all = specs().map(|spec| {
        let url = server.url();
        async move {
            let options = || Options::new().expiry(ms(500)).unwrap();
            let (late, delay) = delay_wakes(Arc::new(store(&url).await));
            let late = Locks::builder(Backend::lease(late)).options(options()).build().unwrap();
            let (first, second) = (locks(&url, ms(5000)).await, locks(&url, ms(5000)).await);
            let (mut round, mut valid_rounds) = (0, 0);
            while valid_rounds < ROUNDS {
                round += 1;
                assert!(
                    round < 10 * ROUNDS,
                    "{spec:?}: in every round the waiter asked within the window of its grant"
                );
                delay.set(Duration::ZERO);
                let held = acquired(&first, &spec).await;
                let mut waiting = tokio::spawn({
                    let (late, spec) = (late.clone(), spec.clone());
                    async move { acquired(&late, &spec).await }
                });
                until_waiting(&first, &spec).await;
                delay.set(ms(1200));
                held.release().await.unwrap();
                // The grant that the waiter does not learn of expires after 500 ms, unless the waiter asks by itself before that, as it
                // does once a second.
                let next = tokio::select! {
                    next = acquired(&second, &spec) => next,
                    asked = &mut waiting => {
                        asked.unwrap().release().await.ok();
                        continue;
                    }
                };
                valid_rounds += 1;
                let started = tokio::time::Instant::now();
                while started.elapsed() < WATCHED {
                    assert!(!waiting.is_finished(), "{spec:?}, round {round}: two holders");
                    tokio::time::sleep(ms(10)).await;
                }
                assert!(!next.is_lost(), "{spec:?}, round {round}: {:?}", next.loss());
                let token = next.token();
                next.release().await.unwrap();
                let later = tokio::time::timeout(LIMIT, waiting).await.expect("a grant in time").unwrap();
                assert!(later.token() > token, "{spec:?}, round {round}");
                later.release().await.ok();
            }
        }
    });
    join_all(rounds_of_all).await;
}

/// The attempt number saves the waiter a request: it takes a grant that arrives in time from the message.
#[tokio::test(flavor = "multi_thread")]
async fn a_pushed_grant_that_arrives_in_time_costs_no_further_request() {
    let server = RedisServer::start();
    let (first, second) = (locks(&server.url(), ms(30_000)).await, locks(&server.url(), ms(30_000)).await);
    // A fair mutex is two records.
    for spec in specs().into_iter().filter(|spec| *spec != LockSpec::fair("f")) {
        let mut saved = 0;
        for _ in 0..ROUNDS {
            let held = acquired(&first, &spec).await;
            let waiting = tokio::spawn({
                let (second, spec) = (second.clone(), spec.clone());
                async move { acquired(&second, &spec).await }
            });
            until_waiting(&first, &spec).await;
            let before = common::calls(&server, "evalsha");
            held.release().await.unwrap();
            let guard = waiting.await.unwrap();
            // The release alone. A waiter that happens to ask now, as it does once a second, costs one more.
            saved += u32::from(common::calls(&server, "evalsha") - before == 1);
            guard.release().await.unwrap();
        }
        assert!(saved > ROUNDS / 2, "{spec:?}: only {saved} of {ROUNDS} grants were taken from the message");
    }
}
