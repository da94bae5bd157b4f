//! The rows of advisory locks: rows that another session has locked do not affect other locks, and unused rows are deleted.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::time::{Duration, Instant};

use common::{TestSchema, advisory_store, eventually, locks, server, wait_for_waiters, within};
use distlock_core::store::{Backend, Query};
use distlock_core::{ErrorKind, Locks};
use distlock_testkit::proxy::Proxy;

const LIMIT: Duration = Duration::from_secs(25);
/// Far below the time after which a session that does not answer is ended.
const SOON: Duration = Duration::from_secs(4);

fn url(test_schema: &TestSchema) -> String {
    format!("{}&distlock.session_timeout=5s", test_schema.url("postgres+advisory", &server().url()))
}

/// An administrator has locked the rows of all holders and waiters, and the row of one semaphore.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn advisory_locks_survive_rows_that_another_session_has_locked() {
    let test_schema = TestSchema::new();
    let schema = &test_schema.name;
    let holder = locks(&url(&test_schema)).await;
    let released = holder.mutex("released").acquire().await.unwrap();
    let waited_for = holder.mutex("waited for").acquire().await.unwrap();
    let permit = holder.semaphore("stuck", 1).acquire().await.unwrap();
    let kept = [
        holder.mutex("kept").acquire().await.unwrap(),
        holder.rw_lock("kept").read().await.unwrap(),
        holder.semaphore("kept", 1).acquire().await.unwrap(),
    ];
    let waiter = locks(&url(&test_schema)).await;
    let waiting = tokio::spawn({
        let waiter = waiter.clone();
        async move { waiter.mutex("waited for").acquire().await.unwrap() }
    });
    wait_for_waiters(&holder, "waited for", 1).await;
    let mut admin = server().connect().unwrap();
    admin
        .query(&format!(
            "BEGIN; SELECT FROM {schema}.distribute_lock_session FOR UPDATE;
             SELECT FROM {schema}.distribute_lock_session_pool WHERE key = 'semaphore:stuck' FOR UPDATE"
        ))
        .unwrap();

    let other = within("a session", SOON, locks(&url(&test_schema))).await;
    within("a release", SOON, released.release()).await.unwrap();
    assert!(
        within("a lock", SOON, other.mutex("released").try_acquire().into_future()).await.unwrap().is_some()
    );
    within("a release", SOON, waited_for.release()).await.unwrap();
    let granted = within("the waiter's lock", SOON, waiting).await.unwrap();
    for locks in [&holder, &other] {
        let asked = locks.semaphore("stuck", 1).try_acquire().into_future();
        let error = within("a reply", SOON, asked).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("locked by another session"), "{error}");
    }
    // It cannot be released yet, and is released as soon as the row is free.
    let _ = within("a reply", SOON, permit.release()).await;
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(7) {
        for guard in kept.iter().chain([&granted]) {
            assert!(!guard.is_lost(), "{}: {:?}", guard.resource(), guard.lost().await);
        }
        let taken = holder.mutex("taken").acquire().into_future();
        within("a lock", SOON, taken).await.unwrap().release().await.unwrap();
        let taken = holder.semaphore("taken", 2).acquire().into_future();
        within("a permit", SOON, taken).await.unwrap().release().await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    admin.query("COMMIT").unwrap();
    drop(within("the permit", LIMIT, other.semaphore("stuck", 1).acquire().into_future()).await.unwrap());
    for guard in kept.into_iter().chain([granted]) {
        guard.release().await.unwrap();
    }
}

/// A semaphore that was used once leaves no row forever, and neither does an ended session. Rows in use stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_unused_advisory_semaphores_are_deleted() {
    let test_schema = TestSchema::new();
    let schema = &test_schema.name;
    let store = advisory_store(&url(&test_schema)).await;
    let ours = Locks::new(Backend::session(store.clone())).unwrap();
    let held = ours.semaphore("held", 1).acquire().await.unwrap();
    let mutex = ours.mutex("held").acquire().await.unwrap();
    for n in 0..30 {
        ours.semaphore(format!("used/{n}"), 2).acquire().await.unwrap().release().await.unwrap();
    }
    // A client whose session ends while it holds permits.
    let died = locks(&url(&test_schema).replace("application_name=", "application_name=died_")).await;
    for n in 0..10 {
        std::mem::forget(died.semaphore(format!("died/{n}"), 1).acquire().await.unwrap());
        std::mem::forget(died.mutex(format!("died/{n}")).acquire().await.unwrap());
    }
    server().sql(&format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'died_{schema}'"
    ));
    let sessions = format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'died_{schema}'");
    eventually("its session ended", async || server().value(&sessions) == "0").await;

    let rows = format!("SELECT count(*) FROM {schema}.distribute_lock_session_pool");
    assert_eq!(server().value(&rows), "41");
    assert_eq!(store.sweep().await.unwrap(), 0, "all of them were used a moment ago");
    let shown = format!("SELECT count(*) FROM {schema}.distribute_lock_session");
    assert_eq!(server().value(&shown), "1", "the rows of the ended session are deleted");
    // Two hours later.
    server().sql(&format!(
        "UPDATE {schema}.distribute_lock_session_pool
         SET used_until = used_until - interval '2 hours', token = token - 7200000"
    ));
    // Another program may sweep at the same moment, and this sweep then deletes nothing.
    let mut deleted = 0;
    eventually("all are deleted", async || {
        deleted += store.sweep().await.unwrap();
        deleted == 40
    })
    .await;
    assert_eq!(server().value(&rows), "1");
    assert!(!held.is_lost() && !mutex.is_lost());
    assert!(ours.semaphore("held", 1).try_acquire().await.unwrap().is_none(), "still held");
    let token = ours.semaphore("used/1", 2).acquire().await.unwrap().token();
    assert!(token > held.token());
}

/// Lets the server refuse to insert or to delete rows.
fn refuse(TestSchema { name }: &TestSchema, change: &str) {
    server().sql(&format!("CREATE SEQUENCE {name}.refused"));
    server().sql(&format!(
        "CREATE FUNCTION {name}.refuse() RETURNS trigger LANGUAGE plpgsql
         AS $$ BEGIN PERFORM nextval('{name}.refused'); RAISE EXCEPTION 'refused'; END $$"
    ));
    server().sql(&format!(
        "CREATE TRIGGER refuse BEFORE {change} ON {name}.distribute_lock_session
         FOR EACH ROW EXECUTE FUNCTION {name}.refuse()"
    ));
}

/// Waits until the server has refused a change, and then lets it accept changes again.
async fn accept_after_a_refusal(TestSchema { name }: &TestSchema) {
    let refused = format!("SELECT is_called::text FROM {name}.refused");
    eventually("a change is refused", async || server().value(&refused) == "true").await;
    server().sql(&format!("DROP TRIGGER refuse ON {name}.distribute_lock_session"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_whose_row_could_not_be_written_is_shown_later() {
    let test_schema = TestSchema::new();
    let (holder, other) = (locks(&url(&test_schema)).await, locks(&url(&test_schema)).await);
    refuse(&test_schema, "INSERT");
    let guard = holder.mutex("m").acquire().await.unwrap();
    accept_after_a_refusal(&test_schema).await;
    eventually("the holder is shown", async || {
        let found = other.inspect(&Query::default()).await.unwrap();
        found.iter().flat_map(|record| &record.holders).any(|holder| holder.lock_id == *guard.lock_id())
    })
    .await;
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_could_not_be_deleted_is_deleted_later() {
    let test_schema = TestSchema::new();
    let holder = locks(&url(&test_schema)).await;
    let rows = format!("SELECT count(*) FROM {}.distribute_lock_session", test_schema.name);
    let guard = holder.mutex("m").acquire().await.unwrap();
    eventually("the row is written", async || server().value(&rows) == "1").await;
    refuse(&test_schema, "DELETE");
    guard.release().await.unwrap();
    accept_after_a_refusal(&test_schema).await;
    eventually("the row is deleted", async || server().value(&rows) == "0").await;
}

/// Each look reads all locks of the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_of_another_schema_do_not_delay_a_list_of_locks() {
    let (theirs, ours) = (TestSchema::new(), TestSchema::new());
    let held = locks(&url(&theirs)).await.mutex("m").acquire().await.unwrap();
    let proxy = Proxy::start(server().addr());
    let through = locks(&ours.url("postgres+advisory", &proxy.through(&server().url()))).await;
    let before = proxy.counters().to_server.bursts;
    assert!(through.inspect(&Query::default()).await.unwrap().is_empty());
    let requests = proxy.counters().to_server.bursts - before;
    assert!(requests < 20, "{requests} requests");
    assert!(!held.is_lost());
}

/// As for a lock in short holds: its holder has no row whenever `inspect` looks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_without_a_row_does_not_delay_a_look_at_its_lock_and_is_shown_as_a_process() {
    let test_schema = TestSchema::new();
    let holder = locks(&url(&test_schema)).await;
    refuse(&test_schema, "INSERT");
    let guard = holder.mutex("m").acquire().await.unwrap();
    let proxy = Proxy::start(server().addr());
    let through = locks(&test_schema.url("postgres+advisory", &proxy.through(&server().url()))).await;
    let before = proxy.counters().to_server.bursts;
    let found = through.inspect(&Query::named("m")).await.unwrap();
    let requests = proxy.counters().to_server.bursts - before;
    assert!(requests < 40, "{requests} requests");
    let shown: Vec<&str> =
        found.iter().flat_map(|record| &record.holders).map(|holder| holder.lock_id.as_str()).collect();
    assert!(matches!(shown[..], [process] if process.starts_with("pid:")), "{found:?}");
    guard.release().await.unwrap();
}

/// The sessions queue for longer than any of them waits for the row. None fails, and each is served: single attempts, waiters, and
/// releases. A change of the row takes as long as on a very slow disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_queue_for_the_row_of_a_semaphore_are_no_error() {
    let test_schema = TestSchema::new();
    let TestSchema { name } = &test_schema;
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(locks(&test_schema.url("postgres+advisory", &server().url())).await);
    }
    let permit = clients[0].semaphore("crowded", 2).acquire().await.unwrap();
    server().sql(&format!(
        "CREATE FUNCTION {name}.slow() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM pg_sleep(0.3); RETURN NEW; END $$;
         CREATE TRIGGER slow BEFORE UPDATE ON {name}.distribute_lock_session_pool
             FOR EACH ROW EXECUTE FUNCTION {name}.slow()"
    ));
    let mut asking = tokio::task::JoinSet::new();
    for (n, locks) in clients.drain(1..).enumerate() {
        asking.spawn(async move {
            for _ in 0..2 {
                if n % 2 == 0 {
                    locks.semaphore("crowded", 2).acquire().await.unwrap().release().await.unwrap();
                } else if let Some(permit) = locks.semaphore("crowded", 2).try_acquire().await.unwrap() {
                    permit.release().await.unwrap();
                }
            }
        });
    }
    let waits = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}' AND wait_event_type = 'Lock'"
    );
    eventually("they queue for the row", async || server().value(&waits).parse::<u32>().unwrap() > 3).await;
    within("a release", LIMIT, permit.release()).await.unwrap();
    while let Some(asked) = within("the others", LIMIT, asking.join_next()).await {
        asked.unwrap();
    }
}
