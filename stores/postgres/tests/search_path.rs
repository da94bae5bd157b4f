//! Functions, operators, types and views that another user created in `public` are never used: on our own sessions, behind
//! a pooler, and in transactions of the caller.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Duration;

use common::{TestSchema, advisory_store, config, expiry, postgres_store, server, wait_for_waiters, within};
use distlock_core::store::{Backend, Query, Store};
use distlock_core::{FencingToken, Kind, Locks};
use distlock_postgres::{AdvisoryKey, AdvisoryStore, Fence, PostgresStore, TransactionLocks};
use distlock_testkit::servers::PgBouncer;
use tokio_postgres::{Client, NoTls};

const LIMIT: Duration = Duration::from_secs(25);

/// The argument types of the planted overloads.
const TYPES: [&str; 19] = [
    "text",
    "bigint",
    "integer",
    "smallint",
    "numeric",
    "float8",
    "boolean",
    "jsonb",
    "bytea",
    "timestamptz",
    "interval",
    "oid",
    "name",
    "xid",
    "regclass",
    "regtype",
    "text[]",
    "bigint[]",
    "\"char\"",
];

/// A database in which a user without rights has planted overloads of everything that our statements use: all functions and
/// operators, for all types of their first two arguments, and some with more.
fn planted() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let (name, words) = (TestSchema::new().name, words());
        server().sql(&format!("CREATE DATABASE {name}"));
        server().sql(&format!("CREATE ROLE planter_{name} LOGIN; CREATE ROLE victim_{name} LOGIN"));
        server().sql(&format!("GRANT CREATE ON DATABASE {name} TO victim_{name}"));
        let inside = |role: &str, sql: &str| {
            let port = server().port();
            let url = format!("postgres://{role}@127.0.0.1:{port}/{name}");
            let config = tokio_postgres::Config::from_str(&url).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let (client, connection) = config.connect(NoTls).await.unwrap();
                let driver = tokio::spawn(connection);
                client.batch_execute(sql).await.unwrap();
                driver.abort();
            });
        };
        // The default before PostgreSQL 15, and in every database that was upgraded.
        std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    inside("postgres", "GRANT ALL ON SCHEMA public TO PUBLIC");
                    inside(&format!("planter_{name}"), &plant(&words));
                })
                .join()
                .unwrap();
        });
        name
    })
}

/// All words of our statements, separated by commas.
fn words() -> String {
    let mut text = String::new();
    let mut folders = vec![std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => text.push_str(&std::fs::read_to_string(path).unwrap()),
            }
        }
    }
    let mut words: Vec<&str> =
        text.split(|c: char| !(c.is_ascii_lowercase() || c == '_' || c.is_ascii_digit())).collect();
    words.sort_unstable();
    words.dedup();
    words.join(",")
}

fn plant(words: &str) -> String {
    let types = TYPES.map(|name| format!("'{name}'")).join(", ");
    format!(
        r#"SET search_path = pg_catalog; DO $do$
DECLARE
    types text[] := ARRAY[{types}];
    body text := 'LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION ''planted''; END $$';
    f text; a text; b text;
BEGIN
    FOREACH a IN ARRAY types LOOP
        EXECUTE format('CREATE FUNCTION public.planted(%s) RETURNS boolean %s', a, body);
        FOREACH b IN ARRAY types LOOP
            EXECUTE format('CREATE FUNCTION public.planted(%s, %s) RETURNS boolean %s', a, b, body);
            FOREACH f IN ARRAY ARRAY['=', '<>', '<', '>', '<=', '>=', '+', '-', '*', '/', '||', '->', '->>', '&', '|',
                                     '<<', '>>', '~'] LOOP
                EXECUTE format('CREATE OPERATOR public.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = public.planted)', f, a, b);
            END LOOP;
        END LOOP;
    END LOOP;
    FOR f IN SELECT DISTINCT p.proname FROM pg_proc p
             WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind IN ('f', 'a', 'w')
               AND p.proname = ANY (string_to_array('{words}', ',')) LOOP
        EXECUTE format('CREATE FUNCTION public.%I() RETURNS boolean %s', f, body);
        FOREACH a IN ARRAY types LOOP
            EXECUTE format('CREATE FUNCTION public.%I(%s) RETURNS boolean %s', f, a, body);
            FOREACH b IN ARRAY types LOOP
                EXECUTE format('CREATE FUNCTION public.%I(%s, %s) RETURNS boolean %s', f, a, b, body);
            END LOOP;
        END LOOP;
    END LOOP;
    FOREACH f IN ARRAY ARRAY['concat_ws(text, text, bigint, bigint, bigint, text)',
                             'concat_ws(text, text, bigint, bigint, bigint, bigint, text)',
                             'jsonb_build_object(text, text, text, bigint)', 'jsonb_build_object(text, text[], text, bigint)',
                             'jsonb_path_query_array(jsonb, text, jsonb)', 'jsonb_path_query_first(jsonb, text, jsonb)',
                             'set_config(text, text, boolean)', 'replace(text, text, text)', 'lpad(text, integer, text)',
                             'regexp_replace(text, text, text)'] LOOP
        EXECUTE format('CREATE FUNCTION public.%s RETURNS boolean %s', f, body);
    END LOOP;
    FOR f IN SELECT c.relname FROM pg_class c
             WHERE c.relnamespace = 'pg_catalog'::regnamespace AND c.relkind IN ('r', 'v')
               AND c.relname = ANY (string_to_array('{words}', ',')) LOOP
        EXECUTE format('CREATE VIEW public.%I AS SELECT public.planted(1)', f);
    END LOOP;
    FOREACH f IN ARRAY ARRAY['text', 'jsonb', 'bytea', 'timestamptz', 'oid', 'regtype', 'regclass', 'bool', 'int8'] LOOP
        EXECUTE format('CREATE DOMAIN public.%I AS pg_catalog.int4 CHECK (public.planted(VALUE))', f);
    END LOOP;
END $do$"#
    )
}

fn url(scheme: &str, port: u16, role: &str, more: &str) -> String {
    let (database, schema) = (planted(), TestSchema::new().name);
    format!(
        "{scheme}://{role}@127.0.0.1:{port}/{database}?application_name={schema}&distlock.schema={schema}{more}"
    )
}

fn victim(scheme: &str, more: &str) -> String {
    url(scheme, server().port(), &format!("victim_{}", planted()), more)
}

/// Uses every operation on locks, with a holder and a waiter.
async fn exercise(one: &Locks, other: &Locks) {
    for kind in [Kind::Mutex, Kind::FairQueue, Kind::RwLock, Kind::Semaphore] {
        let acquire = |locks: &Locks| match kind {
            Kind::Mutex => locks.mutex("m").acquire(),
            Kind::FairQueue => locks.mutex("f").fair().acquire(),
            Kind::RwLock => locks.rw_lock("r").write(),
            _ => locks.semaphore("s", 2).acquire_many(2),
        };
        let name = match kind {
            Kind::Mutex => "m",
            Kind::FairQueue => "f",
            Kind::RwLock => "r",
            _ => "s",
        };
        let held = acquire(one).await.unwrap();
        let waiting = tokio::spawn(acquire(other).into_future());
        wait_for_waiters(one, name, 1).await;
        held.release().await.unwrap();
        let held = within("the waiter", LIMIT, waiting).await.unwrap().unwrap();
        // Long enough for a renewal.
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert!(!held.is_lost(), "{kind}: {:?}", held.lost().await);
        assert!(
            one.inspect(&Query::prefixed("")).await.unwrap().iter().any(|record| !record.holders.is_empty())
        );
        let withdrawn = tokio::spawn(acquire(one).into_future());
        wait_for_waiters(other, name, 1).await;
        withdrawn.abort();
        wait_for_waiters(other, name, 0).await;
        let kind = if kind == Kind::FairQueue { Kind::Mutex } else { kind };
        assert_eq!(one.break_lock(kind, name).await.unwrap().len(), 1);
        within("the loss", LIMIT, held.lost()).await;
        drop(held);
    }
    // Batches.
    let names: Vec<String> = (0..20).map(|n| format!("all/{n}")).collect();
    one.acquire_all(names.iter().map(String::as_str)).await.unwrap().release().await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..20 {
        let one = one.clone();
        tasks.spawn(async move {
            one.mutex(format!("m/{n}")).acquire().await.unwrap().release().await.unwrap();
            one.semaphore(format!("s/{n}"), 1).acquire().await.unwrap().release().await.unwrap();
        });
    }
    within("all of them", LIMIT, tasks.join_all()).await;
    one.doctor().await.unwrap();
}

async fn leases(url: &str) -> PostgresStore {
    let store = postgres_store(url).await;
    let locks =
        |store: &PostgresStore| Locks::new(Backend::lease(store.clone())).unwrap().with_options(expiry(1.5));
    let other = postgres_store(url).await;
    exercise(&locks(&store), &locks(&other)).await;
    store.sweep().await.unwrap();
    store
}

/// A row that another session has locked needs further statements.
async fn with_a_locked_row(url: &str) {
    let store = postgres_store(url).await;
    let locks = Locks::new(Backend::lease(store.clone())).unwrap();
    let held = locks.mutex("stuck").acquire().await.unwrap();
    let config = tokio_postgres::Config::from_str(&url[..url.find('?').unwrap()]).unwrap();
    let (mut admin, connection) = config.connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    let schema = &url[url.rfind("distlock.schema=").unwrap() + "distlock.schema=".len()..];
    let transaction = admin.transaction().await.unwrap();
    let lock = format!("SELECT FROM {schema}.distribute_lock FOR UPDATE");
    transaction.batch_execute(&lock).await.unwrap();
    let error = locks.mutex("stuck").acquire().await.map(drop);
    drop(error);
    let error = store.break_lock(held.resource()).await.unwrap_err();
    assert!(error.to_string().contains("locked by another session (pid"), "{error}");
    transaction.rollback().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_planted_is_used_by_the_lease_table() {
    let url = victim("postgres", "");
    leases(&url).await;
    with_a_locked_row(&url).await;
}

/// Also if the role's own setting puts `public` first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_planted_is_used_on_our_sessions_whatever_search_path_the_role_has() {
    let (database, role) = (planted(), format!("{}_path", TestSchema::new().name));
    server().sql(&format!("CREATE ROLE {role} LOGIN; GRANT CREATE ON DATABASE {database} TO {role}"));
    server().sql(&format!("ALTER ROLE {role} SET search_path = public, pg_catalog"));
    leases(&url("postgres", server().port(), &role, "")).await;
    let url = url("postgres+advisory", server().port(), &role, "");
    let locks = Locks::new(Backend::session(advisory_store(&url).await)).unwrap();
    locks.mutex("m").acquire().await.unwrap().release().await.unwrap();
    locks.semaphore("s", 1).acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_planted_is_used_by_the_lease_table_behind_a_pooler() {
    planted();
    let bouncer = PgBouncer::start(server());
    let url = url("postgres", bouncer.port(), "postgres", "");
    leases(&url).await;
    with_a_locked_row(&url).await;
}

/// Behind a pooler the session is not ours, and its search path cannot be set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_search_path_that_finds_public_first_is_refused_behind_a_pooler() {
    let database = TestSchema::new().name;
    server().sql(&format!("CREATE DATABASE {database}"));
    server().sql(&format!("ALTER DATABASE {database} SET search_path = public, pg_catalog"));
    let bouncer = PgBouncer::start(server());
    let url = format!("postgres://postgres@127.0.0.1:{}/{database}", bouncer.port());
    let error = PostgresStore::connect(config(&url)).await.unwrap_err();
    assert_eq!(error.kind(), distlock_core::ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("search_path"), "{error}");
    postgres_store(&url.replace(&bouncer.port().to_string(), &server().port().to_string())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_planted_is_used_by_advisory_locks() {
    let url = victim("postgres+advisory", "");
    let (one, other): (AdvisoryStore, AdvisoryStore) =
        (advisory_store(&url).await, advisory_store(&url).await);
    let locks = |store: AdvisoryStore| Locks::new(Backend::session(store)).unwrap();
    exercise(&locks(one), &locks(other)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_planted_is_used_by_benchmarks() {
    let drivers = [
        postgres_store(&victim("postgres", "")).await.baseline().await.unwrap(),
        advisory_store(&victim("postgres+advisory", "")).await.baseline().await.unwrap(),
    ];
    for baseline in drivers {
        baseline.cycle("name").await.unwrap();
        baseline.server_requests().await.unwrap();
        baseline.clean_up("prefix").await.unwrap();
    }
}

/// The caller's connection has the caller's search path.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_planted_is_used_in_transactions_of_the_caller() {
    async fn client(url: &str) -> Client {
        let config = tokio_postgres::Config::from_str(&url[..url.find('?').unwrap()]).unwrap();
        let (client, connection) = config.connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }
    let url = victim("postgres", "");
    drop(postgres_store(&url).await);
    for path in ["public", "public, pg_catalog"] {
        let mut client = client(&url).await;
        let fence = Fence::new(&config(&url));
        client.batch_execute(&format!("SET search_path = {path}; {}", fence.commands())).await.unwrap();
        let transaction = client.transaction().await.unwrap();
        fence.admit(&transaction, "r", FencingToken::new(5)).await.unwrap();
        let stale = fence.admit(&transaction, "r", FencingToken::new(4)).await.unwrap_err();
        assert!(stale.to_string().contains("5 was seen"), "{stale}");
        let locks = TransactionLocks::of(&transaction);
        for key in [AdvisoryKey::One(1), AdvisoryKey::Pair(1, 2)] {
            locks.lock(key).await.unwrap();
            locks.lock_shared(key).await.unwrap();
            assert!(locks.try_lock(key).await.unwrap() && locks.try_lock_shared(key).await.unwrap());
        }
        transaction.commit().await.unwrap();
    }
}
