//! Advisory locks that claims, processes and other programs share: connections, keys, queues and tokens.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::time::Duration;

use common::{TestSchema, config, eventually, locks, server, wait_for_waiters, within};
use distlock_core::store::{Backend, Query};
use distlock_core::{ErrorKind, Kind, Locks};
use distlock_postgres::{AdvisoryKey, AdvisoryStore};

const LIMIT: Duration = Duration::from_secs(25);

/// Locks that are granted at once share one connection. A waiter gets one of its own, which is reused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_locks_share_one_connection() {
    let test_schema = TestSchema::new();
    let url = test_schema.url("postgres+advisory", &server().url());
    let holder = locks(&url).await;
    let mut guards = Vec::new();
    for n in 0..500 {
        guards.push(holder.mutex(format!("m/{n}")).acquire().await.unwrap());
        guards.push(holder.rw_lock("read by many").read().await.unwrap());
    }
    assert_eq!(test_schema.sessions(server()), 1);
    let other = locks(&url).await;
    assert!(other.mutex("m/7").try_acquire().await.unwrap().is_none());
    assert!(other.rw_lock("read by many").try_write().await.unwrap().is_none());
    for guard in guards {
        guard.release().await.unwrap();
    }
    other.rw_lock("read by many").write().await.unwrap().release().await.unwrap();
    assert_eq!(
        server().value(&format!("SELECT count(*) FROM {}.distribute_lock_session", test_schema.name)),
        "0"
    );
    // Sixteen clients wait, each is granted in its order, and few connections remain.
    let held = holder.mutex("contended").acquire().await.unwrap();
    let mut waiters = tokio::task::JoinSet::new();
    for n in 0..16 {
        let other = other.clone();
        waiters.spawn(async move {
            let name = if n % 2 == 0 { "contended" } else { "read by many" };
            match n % 2 {
                0 => drop(other.mutex(name).acquire().await.unwrap()),
                _ => drop(other.rw_lock(name).write().await.unwrap()),
            }
        });
    }
    held.release().await.unwrap();
    within("all of them", LIMIT, waiters.join_all()).await;
    eventually("few are left", async || test_schema.sessions(server()) <= 4).await;
}

/// A writer waits. Readers on the connection that holds the lock already do not overtake it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_that_share_a_connection_do_not_starve_a_writer() {
    let test_schema = TestSchema::new();
    let url = test_schema.url("postgres+advisory", &server().url());
    let (readers, writer) = (locks(&url).await, locks(&url).await);
    let first = readers.rw_lock("r").read().await.unwrap();
    let writing = tokio::spawn(async move { writer.rw_lock("r").write().await.unwrap().token() });
    wait_for_waiters(&readers, "r", 1).await;
    assert!(readers.rw_lock("r").try_read().await.unwrap().is_none(), "a reader overtook the writer");
    let late = tokio::spawn({
        let readers = readers.clone();
        async move { readers.rw_lock("r").read().await.unwrap().token() }
    });
    first.release().await.unwrap();
    let (written, read) = (writing.await.unwrap(), within("the late reader", LIMIT, late).await.unwrap());
    assert!(read > written);
}

/// A withdrawn wait leaves no session that waits and no lock without a guard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn withdrawn_waits_leave_nothing_on_the_server() {
    let test_schema = TestSchema::new();
    let url = test_schema.url("postgres+advisory", &server().url());
    let (holder, other) = (locks(&url).await, locks(&url).await);
    let held = holder.mutex("m").acquire().await.unwrap();
    let permits = holder.semaphore("s", 1).acquire().await.unwrap();
    for round in 0..30_u64 {
        let limit = Duration::from_millis(round % 10);
        let error = other.mutex("m").acquire().timeout(limit).await.unwrap_err();
        // Unavailable if the server does not reply within the limit and its slack, as on a busy machine.
        assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unavailable), "{error}");
        let _ = tokio::time::timeout(limit, other.semaphore("s", 1).acquire().into_future()).await;
    }
    for name in ["m", "s"] {
        eventually("there are no waiters", async || {
            let found = holder.inspect(&Query::named(name)).await.unwrap();
            found.iter().all(|record| record.waiters.is_empty())
        })
        .await;
    }
    let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND pid IN
                   (SELECT pid FROM pg_stat_activity WHERE application_name = '{}')";
    let waiting = waiting.replace("{}", &test_schema.name);
    eventually("no session waits", async || server().value(&waiting) == "0").await;
    held.release().await.unwrap();
    permits.release().await.unwrap();
    other.mutex("m").acquire().await.unwrap().release().await.unwrap();
    other.semaphore("s", 1).acquire().await.unwrap().release().await.unwrap();
}

/// Programs that use the same keys exclude us, and `inspect` names them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn raw_keys_exclude_other_programs_both_ways() {
    let test_schema = TestSchema::new();
    let url = format!("{}&distlock.keys=raw", test_schema.url("postgres+advisory", &server().url()));
    let through = locks(&url).await;
    for (name, call) in [("4711", "pg_advisory_lock(4711)"), ("7,-9", "pg_advisory_lock(7, -9)")] {
        let mut theirs = server().connect().unwrap();
        theirs.query("SET application_name = 'their_program'").unwrap();
        theirs.query(&format!("SELECT {call}")).unwrap();
        assert!(through.mutex(name).try_acquire().await.unwrap().is_none(), "{name}");
        let found = through.inspect(&Query::named(name)).await.unwrap();
        let holder = found[0].holders[0].lock_id.as_str();
        assert!(holder.contains("their_program"), "{holder}");
        let ours = tokio::spawn({
            let through = through.clone();
            async move { through.mutex(name).acquire().await.unwrap() }
        });
        theirs.query(&format!("SELECT {}", call.replace("lock(", "unlock("))).unwrap();
        let guard = within("our grant", LIMIT, ours).await.unwrap();
        let tried = format!("SELECT {}", call.replace("pg_", "pg_try_"));
        assert_eq!(theirs.query(&tried).unwrap(), [[Some("f".to_owned())]]);
        guard.release().await.unwrap();
    }
    let error = through.mutex("not a number").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
}

/// The lock of a name has the documented key, and another schema has other keys.
#[tokio::test]
async fn the_key_of_a_name_is_as_documented() {
    const NAME: &str = "größe/42";
    let test_schema = TestSchema::new();
    let ours = test_schema.url("postgres+advisory", &server().url());
    let usual = server().url().replacen("postgres", "postgres+advisory", 1);
    let (ours, usual) = (config(&ours), config(&usual));
    let mut guards = Vec::new();
    for (config, namespace) in
        [(ours, format!("{}.distribute_lock:", test_schema.name)), (usual, String::new())]
    {
        let AdvisoryKey::One(key) = AdvisoryKey::within(&config, Kind::Mutex, NAME) else {
            panic!("one number")
        };
        let computed = format!(
            "SELECT ('x' || left(encode(sha256(convert_to('distlock:{namespace}mutex:{NAME}', 'UTF8')), 'hex'), 16))::bit(64)::bigint"
        );
        assert_eq!(server().value(&computed), key.to_string());
        let through = Locks::new(Backend::session(AdvisoryStore::connect(config).await.unwrap())).unwrap();
        let guard = through.mutex(NAME).try_acquire().await.unwrap().expect("another schema has another key");
        assert_eq!(server().value(&format!("SELECT pg_try_advisory_lock({key})")), "f");
        guards.push((key, guard));
    }
    for (key, guard) in guards {
        guard.release().await.unwrap();
        assert_eq!(server().value(&format!("SELECT pg_try_advisory_lock({key})")), "t");
    }
}
