//! A server that refuses: read only, full, or given names that look like SQL.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{TestSchema, backend, eventually, locks, postgres_store, server, within};
use distlock_core::store::{Attempt, Claim, Inbox, Lease, LeaseStore, Query, Store, Waiting};
use distlock_core::{ErrorKind, FencingToken, Kind, LockId, Resource};
use distlock_testkit::servers::PostgresServer;

const LIMIT: Duration = Duration::from_secs(25);

#[tokio::test]
async fn a_read_only_server_is_unavailable_and_the_error_names_the_primary() {
    let own = PostgresServer::start();
    let test_schema = TestSchema::new();
    let through = locks(&test_schema.url("postgres", &own.url())).await;
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
async fn a_full_disk_is_reported_and_no_lock_is_granted() {
    let test_schema = TestSchema::new();
    let through = locks(&test_schema.url("postgres", &server().url())).await;
    let schema = &test_schema.name;
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

fn claim(kind: Kind, name: impl Into<Arc<str>>, lock_id: LockId) -> Claim {
    Claim::new(Resource::new(kind, name).unwrap(), lock_id, Duration::from_secs(60))
}

/// Names, lock ids, labels and inboxes are parameters, never text of a statement.
#[tokio::test]
async fn sql_in_names_is_not_executed() {
    const EVIL: [&str; 6] = [
        "'; DROP TABLE distribute_lock; --",
        "\"; DROP SCHEMA public CASCADE; --",
        "$1",
        "x' || pg_sleep(60) || '",
        "{table}",
        "E'\\'; SELECT 1; --",
    ];
    let test_schema = TestSchema::new();
    let store = postgres_store(&test_schema.url("postgres", &server().url())).await;
    let table = format!("{}.distribute_lock", test_schema.name);
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
