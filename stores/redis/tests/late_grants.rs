//! A waiter that hears of its grant too late, on real servers: while it was stalled, or while the message was, the grant
//! ended and another process took the lock. It must not come in beside that one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use common::{LIMIT, locks, ms, store, until};
use distlock_core::store::{
    Attempt, Backend, Batch, Capabilities, Claim, Finding, Holder, Inbox, Lease, LeaseStore, Query, Record,
    Released, Renewal, Store, StoreUrl, WakeStream,
};
use distlock_core::{Guard, Locks, Options, Resource, Result};
use distlock_redis::{DRIVER, RedisStore};
use distlock_testkit::actors::{Actor, ActorConfig, TestOptions, run_if_actor};
use distlock_testkit::history::{LockSpec, Recorder};
use distlock_testkit::servers::RedisServer;
use futures_util::StreamExt;
use futures_util::future::join_all;

const ROUNDS: u32 = 5;
/// For how long no other client may come in beside the holder. The waiter asks again about once a second.
const WATCHED: Duration = Duration::from_millis(1500);

/// The entry for other processes: see [`perform`].
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

async fn taken(locks: &Locks, spec: &LockSpec) -> Guard {
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

/// One round for each kind of lock, all at once.
async fn stalled_waiters(server: &RedisServer, rounds: u32) {
    let folder = logs(&format!("stalled-{}", server.port()));
    let plays = specs().map(|spec| {
        let (url, folder) = (server.url(), folder.clone());
        async move {
            let (first, second) = (locks(&url, ms(30_000)).await, locks(&url, ms(30_000)).await);
            let director = Recorder::create(&folder, &format!("director-{}", spec.name()));
            let role = ActorConfig {
                name: format!("sleeper-{}", spec.name()),
                logs: folder,
                options: TestOptions::with_expiry(ms(30_000)),
                address: Some(url),
            };
            let mut sleeper = Actor::spawn_process("actor_entry", &role, &director);
            for round in 0..rounds {
                let held = taken(&first, &spec).await;
                let waiting = tokio::spawn(sleeper.acquire(round, &spec));
                until_waiting(&first, &spec).await;
                sleeper.pause().await;
                held.release().await.unwrap();
                // Longer than the window of the grant that the sleeper was not told of.
                tokio::time::sleep(ms(2150)).await;
                let next = taken(&second, &spec).await;
                sleeper.resume();
                let begun = tokio::time::Instant::now();
                while begun.elapsed() < WATCHED {
                    assert!(!waiting.is_finished(), "{spec:?}, round {round}: two inside");
                    tokio::time::sleep(ms(10)).await;
                }
                assert!(!next.is_lost(), "{spec:?}, round {round}: {:?}", next.loss());
                let token = next.token().get();
                next.release().await.unwrap();
                let later = tokio::time::timeout(LIMIT, waiting).await.expect("its turn").unwrap();
                assert!(later > token, "{spec:?}, round {round}: {later} after {token}");
                sleeper.release(round).await;
            }
            sleeper.shutdown().await;
        }
    });
    join_all(plays).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_was_stopped_while_it_waited_does_not_come_in_beside_the_next_holder() {
    stalled_waiters(&RedisServer::start(), ROUNDS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_was_stopped_while_it_waited_does_not_come_in_beside_the_next_holder_on_valkey() {
    stalled_waiters(&RedisServer::configure().valkey().start(), 2).await;
}

/// Passes everything on, wake-ups after a delay.
#[derive(Debug)]
struct LateWakes {
    inner: RedisStore,
    delay_ms: Arc<AtomicU64>,
}

#[async_trait]
impl Store for LateWakes {
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    async fn inspect(&self, query: &Query) -> Result<Vec<Record>> {
        self.inner.inspect(query).await
    }
    async fn break_lock(&self, resource: &Resource) -> Result<Vec<Holder>> {
        self.inner.break_lock(resource).await
    }
    async fn doctor(&self) -> Result<Vec<Finding>> {
        self.inner.doctor().await
    }
}

#[async_trait]
impl LeaseStore for LateWakes {
    async fn try_acquire(&self, claims: &[Claim]) -> Batch<Attempt> {
        self.inner.try_acquire(claims).await
    }
    async fn renew(&self, leases: &[Lease]) -> Batch<Renewal> {
        self.inner.renew(leases).await
    }
    async fn release(&self, leases: &[Lease]) -> Batch<Released> {
        self.inner.release(leases).await
    }
    async fn subscribe(&self, inbox: &Inbox) -> Result<WakeStream> {
        let delay = Arc::clone(&self.delay_ms);
        let stream = self.inner.subscribe(inbox).await?.then(move |wake| {
            let delay = Duration::from_millis(delay.load(Ordering::SeqCst));
            async move {
                tokio::time::sleep(delay).await;
                wake
            }
        });
        Ok(Box::pin(stream))
    }
}

/// No fault at all: an expiry of 500 ms, and messages that take longer than that.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_later_than_a_short_expiry_lets_no_second_holder_in() {
    let server = RedisServer::start();
    let plays = specs().map(|spec| {
        let url = server.url();
        async move {
            let options = || Options::new().expiry(ms(500)).unwrap();
            let delay_ms = Arc::new(AtomicU64::new(0));
            let late = LateWakes { inner: store(&url).await, delay_ms: Arc::clone(&delay_ms) };
            let late = Locks::builder(Backend::lease(late)).options(options()).build().unwrap();
            let (first, second) = (locks(&url, ms(5000)).await, locks(&url, ms(5000)).await);
            let (mut round, mut rounds_that_count) = (0, 0);
            while rounds_that_count < ROUNDS {
                round += 1;
                assert!(round < 10 * ROUNDS, "{spec:?}: the waiter asked within its window again and again");
                delay_ms.store(0, Ordering::SeqCst);
                let held = taken(&first, &spec).await;
                let mut waiting = tokio::spawn({
                    let (late, spec) = (late.clone(), spec.clone());
                    async move { taken(&late, &spec).await }
                });
                until_waiting(&first, &spec).await;
                delay_ms.store(1200, Ordering::SeqCst);
                held.release().await.unwrap();
                // The grant to the one that does not hear of it ends after 500 ms, unless it asks by itself before that, as
                // it does once a second.
                let next = tokio::select! {
                    next = taken(&second, &spec) => next,
                    asked = &mut waiting => {
                        asked.unwrap().release().await.ok();
                        continue;
                    }
                };
                rounds_that_count += 1;
                let begun = tokio::time::Instant::now();
                while begun.elapsed() < WATCHED {
                    assert!(!waiting.is_finished(), "{spec:?}, round {round}: two inside");
                    tokio::time::sleep(ms(10)).await;
                }
                assert!(!next.is_lost(), "{spec:?}, round {round}: {:?}", next.loss());
                let token = next.token();
                next.release().await.unwrap();
                let later = tokio::time::timeout(LIMIT, waiting).await.expect("its turn").unwrap();
                assert!(later.token() > token, "{spec:?}, round {round}");
                later.release().await.ok();
            }
        }
    });
    join_all(plays).await;
}

/// The number is what spares the waiter another request: a grant in time is taken from the message.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_is_heard_of_in_time_costs_no_further_request() {
    let server = RedisServer::start();
    let (first, second) = (locks(&server.url(), ms(30_000)).await, locks(&server.url(), ms(30_000)).await);
    // A fair mutex is two records.
    for spec in specs().into_iter().filter(|spec| *spec != LockSpec::fair("f")) {
        let mut spared = 0;
        for _ in 0..ROUNDS {
            let held = taken(&first, &spec).await;
            let waiting = tokio::spawn({
                let (second, spec) = (second.clone(), spec.clone());
                async move { taken(&second, &spec).await }
            });
            until_waiting(&first, &spec).await;
            let before = common::calls(&server, "evalsha");
            held.release().await.unwrap();
            let guard = waiting.await.unwrap();
            // The release alone. A waiter that asks in this very moment, as it does once a second, costs one more.
            spared += u32::from(common::calls(&server, "evalsha") - before == 1);
            guard.release().await.unwrap();
        }
        assert!(
            spared > ROUNDS / 2,
            "{spec:?}: only {spared} of {ROUNDS} grants were taken from the message"
        );
    }
}
