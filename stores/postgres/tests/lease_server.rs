//! The lease table on a server that restarts, fails over, is set to another time, is full, read only, or differs from
//! what we expect.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{Corner, backend, eventually, lease_table, locks, server, within};
use distlock_core::store::{Attempt, Backend, Claim, Inbox, Lease, LeaseStore, Query, Store, Waiting};
use distlock_core::{ErrorKind, FencingToken, Kind, LockId, LockIds, Locks, Resource};
use distlock_testkit::conformance::{ActorMode, Fixture, cases, run};
use distlock_testkit::servers::{PostgresPair, PostgresServer};

const LIMIT: Duration = Duration::from_secs(25);

/// A server of its own, that can be harmed.
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
fn a_server_killed_in_the_middle_comes_back_with_its_locks_and_tokens() {
    run::<Fragile, _, _>("", cases::faults::restart);
}

#[test]
fn a_clock_that_is_set_back_and_forward_takes_no_token_back() {
    run::<Fragile, _, _>("", cases::faults::move_clock);
}

/// A primary that acknowledges nothing which its replica lacks; the URL names both.
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

    /// The second time there is nobody left to take over.
    async fn fail_over(&self) {
        if self.0.primary.try_sql("SELECT 1").is_ok() {
            self.0.primary.kill();
            self.0.promote();
        }
    }
}

#[test]
fn a_promoted_replica_has_what_was_granted_and_counted() {
    run::<Pair, _, _>("", cases::faults::fail_over);
}

#[tokio::test]
async fn a_server_that_takes_no_writes_says_where_to_go() {
    let own = PostgresServer::start();
    let corner = Corner::new();
    let through = locks(&corner.url("postgres", &own.url())).await;
    through.mutex("m").acquire().await.unwrap().release().await.unwrap();
    own.sql("ALTER SYSTEM SET default_transaction_read_only = on");
    own.sql("SELECT pg_reload_conf()");
    eventually("it is read only", async || own.value("SHOW default_transaction_read_only") == "on").await;
    let error = within("an error", LIMIT, async {
        loop {
            match through.mutex("m").acquire().await {
                Ok(guard) => drop(guard),
                Err(error) => return error,
            }
        }
    })
    .await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(
        error.to_string().contains("takes no writes") && error.to_string().contains("primary"),
        "{error}"
    );
    let findings = through.doctor().await.unwrap();
    assert!(findings.iter().any(|finding| finding.what.contains("read only")), "{findings:?}");
    own.sql("ALTER SYSTEM RESET default_transaction_read_only");
    own.sql("SELECT pg_reload_conf()");
    within("a grant", LIMIT, async { while through.mutex("m").acquire().await.is_err() {} }).await;
}

#[tokio::test]
async fn a_full_disk_is_told_as_such_and_nothing_is_granted() {
    let corner = Corner::new();
    let through = locks(&corner.url("postgres", &server().url())).await;
    let schema = &corner.schema;
    server().sql(&format!(
        "CREATE FUNCTION {schema}.full_disk() RETURNS trigger LANGUAGE plpgsql AS
         'BEGIN RAISE EXCEPTION USING ERRCODE = ''disk_full'', MESSAGE = ''No space left on device''; END';
         CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON {schema}.distribute_lock
         FOR EACH ROW EXECUTE FUNCTION {schema}.full_disk()"
    ));
    let error = through.mutex("m").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
    assert!(error.to_string().contains("No space left"), "{error}");
    assert_eq!(server().value(&format!("SELECT count(*) FROM {schema}.distribute_lock")), "0");
    server().sql(&format!("DROP TRIGGER full_disk ON {schema}.distribute_lock"));
    through.mutex("m").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_who_start_at_once_on_an_empty_database_all_find_its_tables() {
    let corner = Corner::new();
    let mut starting = tokio::task::JoinSet::new();
    for scheme in ["postgres", "postgres+advisory"].into_iter().cycle().take(40) {
        let url = corner.url(scheme, &server().url());
        starting.spawn(async move {
            let locks = locks(&url).await;
            locks.mutex("first").acquire().await.unwrap().release().await.unwrap();
        });
    }
    within("all of them", Duration::from_secs(60), starting.join_all()).await;
}

#[tokio::test]
async fn tables_that_are_dropped_are_made_again() {
    let corner = Corner::new();
    let through = locks(&corner.url("postgres", &server().url())).await;
    through.mutex("m").acquire().await.unwrap().release().await.unwrap();
    server().sql(&format!("DROP SCHEMA {} CASCADE", corner.schema));
    through.mutex("m").acquire().await.unwrap().release().await.unwrap();
    through.semaphore("s", 2).acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_table_of_somebody_elses_shape_is_refused() {
    let corner = Corner::new();
    let schema = &corner.schema;
    // As other programs create it: a time without a zone is another moment for each client.
    server().sql(&format!(
        "CREATE SCHEMA {schema};
         CREATE TABLE {schema}.distribute_lock (key text PRIMARY KEY, value text NOT NULL, expire_time timestamp NOT NULL)"
    ));
    let error = backend(&corner.url("postgres", &server().url())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("distlock.table"), "{error}");
}

/// Programs that know only the three columns share the mutex with us, both ways.
#[tokio::test]
async fn programs_that_know_only_the_three_columns_exclude_us_and_are_excluded() {
    let corner = Corner::new();
    let through = locks(&corner.url("postgres", &server().url())).await;
    let table = format!("{}.distribute_lock", corner.schema);
    let insert = format!(
        "INSERT INTO {table} (key, value, expire_time) VALUES ('shared', 'theirs', now() + interval '1 hour')
         ON CONFLICT (key) DO NOTHING RETURNING 1"
    );
    let ours = through.mutex("shared").acquire().await.unwrap();
    assert_eq!(server().value(&insert), "");
    let token = ours.token();
    ours.release().await.unwrap();
    // They delete what has expired, and take it; and delete what they held.
    server().sql(&format!("DELETE FROM {table} WHERE expire_time < now()"));
    assert_eq!(server().value(&insert), "1");
    assert!(through.mutex("shared").try_acquire().await.unwrap().is_none());
    server().sql(&format!("DELETE FROM {table} WHERE key = 'shared' AND value = 'theirs'"));
    let ours = through.mutex("shared").acquire().await.unwrap();
    assert!(ours.token() > token);
    ours.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_serializable_by_default_only_costs_retries() {
    let corner = Corner::new();
    let settings = [("default_transaction_isolation", "'serializable'")];
    let url = corner.as_role_with(&settings, &corner.url("postgres", &server().url()));
    let inside = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (locks, inside) = (locks(&url).await, Arc::clone(&inside));
        tasks.spawn(async move {
            for _ in 0..25 {
                let guard = locks.semaphore("s", 1).acquire().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.unwrap();
            }
        });
    }
    within("all of them", Duration::from_secs(60), tasks.join_all()).await;
}

fn claim(kind: Kind, name: impl Into<Arc<str>>, lock_id: LockId) -> Claim {
    Claim::new(Resource::new(kind, name).unwrap(), lock_id, Duration::from_secs(60))
}

/// The log is on the disk when somebody waits for it, and hardly before.
fn lazy_server() -> PostgresServer {
    PostgresServer::configure().setting("wal_writer_delay", "10s").start()
}

/// A release does not wait for the disk. The lock that a crash brings back is nobody's, and ends with its expiry.
#[tokio::test]
async fn a_release_that_a_crash_undoes_ends_with_its_expiry_and_no_token_falls() {
    let own = lazy_server();
    let store = lease_table(&own.url()).await;
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
    assert!(undone, "the release was on the disk: this test shows nothing");
    assert!(later > token, "{later} after {token}");
}

/// Whoever was told that the lock is his has it, whatever happens to the server in the same moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_release_granted_survives_a_crash() {
    let own = lazy_server();
    let (holder, waiter, other) = (locks(&own.url()).await, locks(&own.url()).await, locks(&own.url()).await);
    for round in 0..3 {
        let held = holder.mutex("m").acquire().await.unwrap();
        let waiting = tokio::spawn({
            let waiter = waiter.clone();
            async move { waiter.mutex("m").acquire().await.unwrap() }
        });
        eventually("somebody waits", async || {
            let found = other.inspect(&Query::named("m")).await.unwrap();
            found.iter().any(|record| record.waiters.len() == 1)
        })
        .await;
        held.release().await.unwrap();
        let granted = waiting.await.unwrap();
        own.kill();
        own.start_again();
        let found = within("an answer", LIMIT, async {
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

/// Two stores lock the same rows, each batch in another order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_in_opposite_orders_never_deadlock() {
    // Long before a statement gives up waiting for a row.
    let own = PostgresServer::configure().setting("deadlock_timeout", "10ms").start();
    let mut tasks = tokio::task::JoinSet::new();
    for backwards in [false, true, false, true] {
        let store = lease_table(&own.url()).await;
        tasks.spawn(async move {
            let ids = LockIds::new("batch");
            for _ in 0..60 {
                for kind in [Kind::Mutex, Kind::Semaphore] {
                    let mut names: Vec<u32> = (0..40).collect();
                    fastrand::shuffle(&mut names);
                    if backwards {
                        names.reverse();
                    }
                    let claims: Vec<Claim> =
                        names.iter().map(|n| claim(kind, format!("row/{n}"), ids.next())).collect();
                    let answers = store.try_acquire(&claims).await.unwrap();
                    let leases: Vec<Lease> = claims
                        .iter()
                        .zip(answers)
                        .filter_map(|(claim, answer)| match answer.unwrap() {
                            Attempt::Granted { token, .. } => Some(Lease::of(claim, token)),
                            _ => None,
                        })
                        .collect();
                    store.renew(&leases).await.unwrap();
                    store.release(&leases).await.unwrap();
                }
            }
        });
    }
    within("all of them", Duration::from_secs(60), tasks.join_all()).await;
    // The server writes down each one that it resolves.
    assert!(!own.log().contains("deadlock detected"), "{}", own.log_tail());
}

/// A release that serves several who wait tells each of them: rows that nobody reads are not made, and what they would
/// have sent is not sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_serves_many_tells_all_of_them() {
    let corner = Corner::new();
    for scheme in ["postgres", "postgres+advisory"] {
        let url = corner.url(scheme, &server().url());
        let holder = locks(&url).await;
        let all = holder.semaphore("served together", 8).acquire_many(8).await.unwrap();
        let mut waiters = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let locks = locks(&url).await;
            waiters.spawn(async move {
                let guard = locks.semaphore("served together", 8).acquire().await.unwrap();
                (guard, std::time::Instant::now(), locks)
            });
        }
        eventually("eight wait", async || {
            let found = holder.inspect(&Query::named("served together")).await.unwrap();
            found.iter().any(|record| record.waiters.len() == 8)
        })
        .await;
        // All have just asked: none would ask again for most of a second.
        let released = std::time::Instant::now();
        all.release().await.unwrap();
        for (guard, granted, _) in waiters.join_all().await {
            let late = granted - released;
            assert!(late < Duration::from_millis(800), "{scheme}: a waiter was told {late:?} late");
            guard.release().await.unwrap();
        }
    }
}

#[tokio::test]
async fn what_was_of_no_use_for_long_is_forgotten_and_later_tokens_are_still_higher() {
    let corner = Corner::new();
    let store =
        lease_table(&format!("{}&distlock.retention=60", corner.url("postgres", &server().url()))).await;
    let through = Locks::new(Backend::lease(store.clone())).unwrap();
    let mut tokens = Vec::new();
    for name in ["old", "ahead of the clock", "recent", "held"] {
        let guard = through.mutex(name).acquire().await.unwrap();
        tokens.push(guard.token());
        if name == "held" {
            std::mem::forget(guard);
        } else {
            guard.release().await.unwrap();
        }
    }
    through.semaphore("old", 3).acquire().await.unwrap().release().await.unwrap();
    assert_eq!(store.sweep().await.unwrap(), 0);
    let schema = &corner.schema;
    server().sql(&format!(
        "UPDATE {schema}.distribute_lock SET expire_time = now() - interval '2 hours', token = token - 7200000
         WHERE key = 'old';
         UPDATE {schema}.distribute_lock SET expire_time = now() - interval '2 hours' WHERE key = 'ahead of the clock';
         UPDATE {schema}.distribute_lock_pool SET used_until = now() - interval '2 hours', token = token - 7200000"
    ));
    assert_eq!(store.sweep().await.unwrap(), 2);
    let left = server().sql(&format!("SELECT key FROM {schema}.distribute_lock ORDER BY key"));
    let left: Vec<String> = left.into_iter().flatten().flatten().collect();
    assert_eq!(left, ["ahead of the clock", "held", "recent"]);
    assert!(through.mutex("old").acquire().await.unwrap().token() > tokens[0]);
    assert!(through.mutex("ahead of the clock").acquire().await.unwrap().token() > tokens[1]);
}

/// Names, lock ids, labels and inboxes are values, never text of a statement.
#[tokio::test]
async fn injection_attempts_in_every_name_are_just_names() {
    const EVIL: [&str; 6] = [
        "'; DROP TABLE distribute_lock; --",
        "\"; DROP SCHEMA public CASCADE; --",
        "$1",
        "x' || pg_sleep(60) || '",
        "{table}",
        "E'\\'; SELECT 1; --",
    ];
    let corner = Corner::new();
    let store = lease_table(&corner.url("postgres", &server().url())).await;
    let table = format!("{}.distribute_lock", corner.schema);
    for evil in EVIL {
        for kind in [Kind::Mutex, Kind::Semaphore] {
            let id = LockId::from_stored(format!("{evil}#1"));
            let waiting = Some(Waiting::new(Inbox::new(evil), Duration::from_secs(9), 1));
            let held = claim(kind, evil, id).with_waiting(waiting);
            let granted = store.try_acquire(std::slice::from_ref(&held)).await.unwrap();
            assert!(matches!(granted[..], [Ok(Attempt::Granted { .. })]), "{evil}: {granted:?}");
            let other = held.clone().with_lock_id(LockId::from_stored(evil));
            let busy = store.try_acquire(std::slice::from_ref(&other)).await.unwrap();
            assert!(matches!(busy[..], [Ok(Attempt::Busy { .. })]), "{evil}: {busy:?}");
            drop(store.subscribe(&Inbox::new(evil)).await.unwrap());
            for query in [Query::named(evil), Query::prefixed(evil)] {
                let found = store.inspect(&query).await.unwrap();
                assert!(found.iter().any(|record| record.name.as_deref() == Some(evil)), "{evil}: {found:?}");
            }
            let lease = Lease::of(&held, FencingToken::new(1));
            store.renew(std::slice::from_ref(&lease)).await.unwrap();
            store.release(std::slice::from_ref(&lease)).await.unwrap();
            store.break_lock(&held.resource).await.unwrap();
        }
        for parameter in ["schema", "table"] {
            let url = format!("{}?distlock.{parameter}={}", server().url(), evil.replace('%', "%25"));
            let error = backend(&url).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        }
    }
    assert_eq!(server().value(&format!("SELECT count(*) > 0 FROM {table}")), "t");
}
