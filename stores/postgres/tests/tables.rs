//! The tables: created by many clients at once, dropped, of another shape, shared with other programs, and swept.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::str::FromStr;
use std::time::Duration;

use common::{TestSchema, backend, locks, postgres_store, server, within};
use distlock_core::store::Backend;
use distlock_core::{ErrorKind, Locks};
use distlock_postgres::{AdvisoryStore, PostgresConfig, PostgresStore};
use distlock_testkit::servers::postgres::wire::PostgresConnection;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_clients_that_start_at_once_on_an_empty_database_find_their_tables() {
    let test_schema = TestSchema::new();
    let mut starting = tokio::task::JoinSet::new();
    for scheme in ["postgres", "postgres+advisory"].into_iter().cycle().take(40) {
        let url = test_schema.url(scheme, &server().url());
        starting.spawn(async move {
            let locks = locks(&url).await;
            locks.mutex("first").acquire().await.unwrap().release().await.unwrap();
        });
    }
    within("all of them", Duration::from_secs(60), starting.join_all()).await;
}

#[tokio::test]
async fn dropped_tables_are_created_again() {
    let test_schema = TestSchema::new();
    let through = locks(&test_schema.url("postgres", &server().url())).await;
    through.mutex("m").acquire().await.unwrap().release().await.unwrap();
    server().sql(&format!("DROP SCHEMA {} CASCADE", test_schema.name));
    through.mutex("m").acquire().await.unwrap().release().await.unwrap();
    through.semaphore("s", 2).acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_table_of_another_shape_is_refused() {
    let test_schema = TestSchema::new();
    let schema = &test_schema.name;
    // Other programs create it like this. A time without a zone is another moment for each client.
    server().sql(&format!(
        "CREATE SCHEMA {schema};
         CREATE TABLE {schema}.distribute_lock (key text PRIMARY KEY, value text NOT NULL, expire_time timestamp NOT NULL)"
    ));
    let error = backend(&test_schema.url("postgres", &server().url())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("distlock.table"), "{error}");
    assert!(error.to_string().contains("expire_time is a timestamp without time zone"), "{error}");
}

/// The statements of the C# library: parameters without a zone, in the local time of UTC+8.
struct LocalTimeClient {
    session: PostgresConnection,
    table: String,
}

impl LocalTimeClient {
    fn new(table: &str, zone: &str) -> Self {
        let mut session = server().connect().unwrap();
        session.query(&format!("SET TIME ZONE {zone}")).unwrap();
        LocalTimeClient { session, table: table.to_owned() }
    }

    /// `DateTime.UtcNow.AddHours(8)`, without a zone.
    fn now(offset: &str) -> String {
        format!("(now() AT TIME ZONE 'UTC' + interval '8 hours' + interval '{offset}')::timestamp")
    }

    /// Whether it acquired.
    fn insert(&mut self, key: &str) -> bool {
        let sql = format!(
            "INSERT INTO {} (key, value, expire_time) VALUES ('{key}', 'theirs', {}) ON CONFLICT (key) DO NOTHING RETURNING 1",
            self.table,
            Self::now("5 seconds")
        );
        !self.session.query(&sql).unwrap().is_empty()
    }

    fn delete_expired(&mut self) {
        let sql = format!("DELETE FROM {} WHERE expire_time < {}", self.table, Self::now("0 seconds"));
        self.session.query(&sql).unwrap();
    }

    fn release(&mut self, key: &str) {
        self.session
            .query(&format!("DELETE FROM {} WHERE key = '{key}' AND value = 'theirs'", self.table))
            .unwrap();
    }
}

const MIGRATION: &str = include_str!("../docs/migrate_foreign_table.sql");

/// A table of the C# library, migrated as the documentation says.
fn migrated_table(schema: &str, with_trigger: bool) -> String {
    server().sql(&format!(
        "CREATE SCHEMA {schema};
         CREATE TABLE {schema}.distribute_lock (
             key TEXT NOT NULL CONSTRAINT distribute_lock_pk PRIMARY KEY,
             value TEXT NOT NULL,
             expire_time TIMESTAMP WITHOUT TIME ZONE NOT NULL
         );
         INSERT INTO {schema}.distribute_lock VALUES ('theirs', 'v', {})",
        LocalTimeClient::now("1 hour")
    ));
    let migration = MIGRATION.replace("public.", &format!("{schema}."));
    let (columns, trigger) = migration.split_once("-- Optional").unwrap();
    server().sql(&if with_trigger {
        format!("{columns}-- Optional{trigger}")
    } else {
        format!("{columns}COMMIT;")
    });
    format!("{schema}.distribute_lock")
}

#[tokio::test]
async fn a_migrated_table_is_shared_with_programs_that_write_local_times() {
    let test_schema = TestSchema::new();
    let table = migrated_table(&test_schema.name, true);
    let through = locks(&test_schema.url("postgres", &server().url())).await;
    assert!(
        through.mutex("theirs").try_acquire().await.unwrap().is_none(),
        "a lock was lost in the migration"
    );
    let mut theirs = LocalTimeClient::new(&table, "'Asia/Shanghai'");
    let ours = through.mutex("shared").acquire().await.unwrap();
    theirs.delete_expired();
    assert!(!theirs.insert("shared"), "two holders");
    let token = ours.token();
    ours.release().await.unwrap();
    theirs.delete_expired();
    assert!(theirs.insert("shared"));
    assert!(through.mutex("shared").try_acquire().await.unwrap().is_none(), "two holders");
    theirs.release("shared");
    let ours = through.mutex("shared").acquire().await.unwrap();
    assert!(ours.token() > token);
    // A semaphore needs the other table, which is created.
    through.semaphore("s", 2).acquire().await.unwrap().release().await.unwrap();
    ours.release().await.unwrap();
}

/// What the documentation warns of, and the trigger that excludes it.
#[tokio::test]
async fn a_program_that_reads_local_times_in_another_zone_cannot_delete_a_held_lock_past_the_trigger() {
    for with_trigger in [false, true] {
        let test_schema = TestSchema::new();
        let table = migrated_table(&test_schema.name, with_trigger);
        let through = locks(&test_schema.url("postgres", &server().url())).await;
        let ours = through.mutex("shared").acquire().await.unwrap();
        let mut theirs = LocalTimeClient::new(&table, "'UTC'");
        theirs.delete_expired();
        assert_eq!(theirs.insert("shared"), !with_trigger, "with the trigger: {with_trigger}");
        drop(ours);
    }
}

/// Programs that know only the three columns share mutexes with us.
#[tokio::test]
async fn programs_that_know_only_the_three_columns_exclude_us_and_are_excluded() {
    let test_schema = TestSchema::new();
    let through = locks(&test_schema.url("postgres", &server().url())).await;
    let table = format!("{}.distribute_lock", test_schema.name);
    let insert = format!(
        "INSERT INTO {table} (key, value, expire_time) VALUES ('shared', 'theirs', now() + interval '1 hour')
         ON CONFLICT (key) DO NOTHING RETURNING 1"
    );
    let ours = through.mutex("shared").acquire().await.unwrap();
    assert_eq!(server().value(&insert), "");
    let token = ours.token();
    ours.release().await.unwrap();
    // They delete an expired row and insert their own; and delete it to release.
    server().sql(&format!("DELETE FROM {table} WHERE expire_time < now()"));
    assert_eq!(server().value(&insert), "1");
    assert!(through.mutex("shared").try_acquire().await.unwrap().is_none());
    server().sql(&format!("DELETE FROM {table} WHERE key = 'shared' AND value = 'theirs'"));
    let ours = through.mutex("shared").acquire().await.unwrap();
    assert!(ours.token() > token);
    ours.release().await.unwrap();
}

#[tokio::test]
async fn unused_rows_are_deleted_and_later_tokens_are_still_higher() {
    let test_schema = TestSchema::new();
    let store =
        postgres_store(&format!("{}&distlock.retention=1m", test_schema.url("postgres", &server().url())))
            .await;
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
    let schema = &test_schema.name;
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

/// The server is that of the driver's configuration, the tables are those of ours.
#[tokio::test]
async fn a_store_uses_the_configuration_of_the_applications_driver() {
    let test_schema = TestSchema::new();
    let client = tokio_postgres::Config::from_str(&server().url()).unwrap();
    let config = PostgresConfig::default().schema(&test_schema.name).unwrap();
    let lease = PostgresStore::with_client(client.clone(), config.clone()).await.unwrap();
    let advisory = AdvisoryStore::with_client(client, config).await.unwrap();
    for backend in [Backend::lease(lease), Backend::session(advisory)] {
        let through = Locks::new(backend).unwrap();
        through.semaphore("s", 1).acquire().await.unwrap().release().await.unwrap();
    }
    let tables = format!("SELECT count(*) FROM pg_tables WHERE schemaname = '{}'", test_schema.name);
    assert_eq!(server().value(&tables), "4");
}
