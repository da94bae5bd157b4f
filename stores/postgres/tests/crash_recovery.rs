//! The lease table after a crash of the server, a fail-over and a change of the server's clock.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{backend, locks, postgres_store, wait_for_waiters, within};
use distlock_core::store::{Attempt, Backend, Claim, Lease, LeaseStore, Query};
use distlock_core::{Kind, LockId, LockIds, Resource};
use distlock_testkit::conformance::{ActorMode, Fixture, cases, run};
use distlock_testkit::servers::{PostgresPair, PostgresServer};

const LIMIT: Duration = Duration::from_secs(25);

/// A server of its own, which the test may kill.
struct Fragile(PostgresServer);

impl Fixture for Fragile {
    async fn open() -> Self {
        Fragile(PostgresServer::configure().movable_clock().start())
    }

    async fn connect(&self) -> Backend {
        backend(&self.0.url()).await.unwrap()
    }

    fn actor_mode(&self) -> ActorMode {
        ActorMode::Threads { reason: "these cases need none" }
    }

    async fn restart(&self) {
        self.0.kill();
        self.0.start_again();
    }

    async fn move_clock(&self, seconds: i64) {
        self.0.move_clock(seconds);
    }
}

#[test]
fn a_killed_server_restarts_with_its_locks_and_tokens() {
    run::<Fragile, _, _>("", cases::faults::restart);
}

#[test]
fn a_server_clock_that_is_set_back_and_forward_lowers_no_token() {
    run::<Fragile, _, _>("", cases::faults::move_clock);
}

/// A primary that waits for its replica before it acknowledges; the URL names both.
struct Pair(PostgresPair);

impl Fixture for Pair {
    async fn open() -> Self {
        Pair(PostgresPair::start_synchronous())
    }

    async fn connect(&self) -> Backend {
        let (one, other) = (self.0.primary.port(), self.0.replica.port());
        let url = format!("postgres://postgres@127.0.0.1:{one},127.0.0.1:{other}/postgres?connect_timeout=1");
        for _ in 0..100 {
            match backend(&url).await {
                Ok(backend) => return backend,
                Err(error) => assert!(error.can_retry(), "{error}"),
            }
        }
        panic!("no server takes writes");
    }

    fn actor_mode(&self) -> ActorMode {
        ActorMode::Threads { reason: "these cases need none" }
    }

    /// The second call has no replica left to promote.
    async fn fail_over(&self) {
        if self.0.primary.try_sql("SELECT 1").is_ok() {
            self.0.primary.kill();
            self.0.promote();
        }
    }
}

#[test]
fn a_promoted_replica_has_all_grants_and_tokens() {
    run::<Pair, _, _>("", cases::faults::fail_over);
}

fn claim(kind: Kind, name: impl Into<Arc<str>>, lock_id: LockId) -> Claim {
    Claim::new(Resource::new(kind, name).unwrap(), lock_id, Duration::from_secs(60))
}

/// The server writes its log to the disk when a commit waits for it, and hardly before.
fn lazy_server() -> PostgresServer {
    PostgresServer::configure().setting("wal_writer_delay", "10s").start()
}

/// A release does not wait for the disk. A lock that a crash restores has no guard, and ends with its expiry.
#[tokio::test]
async fn a_release_that_a_crash_undoes_ends_with_its_expiry_and_no_token_is_lower() {
    let own = lazy_server();
    let store = postgres_store(&own.url()).await;
    let ids = LockIds::new("crash");
    let taken = claim(Kind::Mutex, "m", ids.next()).with_expiry(Duration::from_secs(4));
    let Attempt::Granted { token, .. } =
        store.try_acquire(std::slice::from_ref(&taken)).await.unwrap().pop().unwrap().unwrap()
    else {
        panic!("a new name is free");
    };
    store.release(&[Lease::of(&taken, token)]).await.unwrap().pop().unwrap().unwrap();
    own.kill();
    own.start_again();
    let mut undone = false;
    let later = within("a grant", LIMIT, async {
        loop {
            let next = claim(Kind::Mutex, "m", ids.next());
            match store.try_acquire(&[next]).await.and_then(|mut answers| answers.pop().unwrap()) {
                Ok(Attempt::Granted { token, .. }) => return token,
                Ok(_) => undone = true,
                Err(error) => assert!(error.can_retry(), "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert!(undone, "the release was on the disk: the test proves nothing");
    assert!(later > token, "{later} after {token}");
}

/// A waiter that was notified of its grant holds the lock, also if the server crashes at the same moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handoff_survives_a_crash() {
    let own = lazy_server();
    let (holder, waiter, other) = (locks(&own.url()).await, locks(&own.url()).await, locks(&own.url()).await);
    for round in 0..3 {
        let held = holder.mutex("m").acquire().await.unwrap();
        let waiting = tokio::spawn({
            let waiter = waiter.clone();
            async move { waiter.mutex("m").acquire().await.unwrap() }
        });
        wait_for_waiters(&other, "m", 1).await;
        held.release().await.unwrap();
        let granted = waiting.await.unwrap();
        own.kill();
        own.start_again();
        let found = within("a reply", LIMIT, async {
            loop {
                match other.inspect(&Query::named("m")).await {
                    Ok(found) => return found,
                    Err(error) => assert!(error.can_retry(), "{error}"),
                }
            }
        })
        .await;
        let tokens: Vec<_> =
            found.iter().flat_map(|record| &record.holders).map(|holder| holder.token).collect();
        assert_eq!(tokens, [Some(granted.token())], "in round {round}");
        assert!(other.mutex("m").try_acquire().await.unwrap().is_none());
        assert!(!granted.is_lost());
        granted.release().await.unwrap();
    }
}
