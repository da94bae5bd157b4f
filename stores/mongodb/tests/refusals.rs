//! Bad input, unreachable servers, missing rights, foreign documents: each gets a clear error in time, and nothing is
//! overwritten.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::time::Instant;

use common::log_capture::{capture_logs, logged};
use common::restricted_users::{auth_url, user_with};
use common::{SECOND, TestDatabase, connect, eventually};
use distlock_core::store::{Finding, Level};
use distlock_core::{Error, ErrorKind, Kind, Locks};
use distlock_testkit::servers::{MongoServer, Port};
use mongodb::bson::{Document, doc};

async fn refused(url: &str) -> Error {
    connect(url).await.err().unwrap_or_else(|| panic!("{url} was accepted"))
}

#[tokio::test]
async fn illegal_names_are_refused_before_anything_is_sent() {
    // No server listens there: what is refused at once was not sent.
    let port = Port::reserve();
    for bad in ["local", "config", "a%20b", "a%24b", &"x".repeat(64)] {
        let started = Instant::now();
        let error = refused(&format!("mongodb://127.0.0.1:{}/{bad}", port.number())).await;
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{bad}: {error}");
        assert!(started.elapsed() < SECOND);
    }
    for bad in ["", "a%24b", "system.x", ".a", "a%00b"] {
        let error =
            refused(&format!("mongodb://127.0.0.1:{}/app?distlock.collection={bad}", port.number())).await;
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{bad}: {error}");
    }
}

#[tokio::test]
async fn an_unreachable_server_is_reported_in_time() {
    let port = Port::reserve();
    for (options, at_most) in [("", 8 * SECOND), ("?serverSelectionTimeoutMS=500", 3 * SECOND)] {
        let started = Instant::now();
        let error = refused(&format!("mongodb://u:s3cret@127.0.0.1:{}/app{options}", port.number())).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(started.elapsed() < at_most, "it took {:?}", started.elapsed());
        assert!(error.advice().is_some() && !error.is_outcome_unknown(), "{error}");
        assert!(!error.to_string().contains("s3cret") && !error.to_string().contains('\n'), "{error}");
    }
}

/// A stalled server accepts connections and never answers; a killed one accepts none. With its own defaults the driver
/// would look for another server for half a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_or_killed_server_does_not_delay_an_acquire_with_a_time_limit() {
    let server = MongoServer::start();
    let test_db = TestDatabase::on(&server.url());
    let locks = test_db.locks().await;
    locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
    type ServerAction = fn(&MongoServer);
    let outages: [(ServerAction, ServerAction); 2] =
        [(|s| s.pause(), |s| s.resume()), (|s| s.kill(), |s| s.start_again())];
    for (stop, restore) in outages {
        stop(&server);
        let started = Instant::now();
        let error = locks.mutex("a").acquire().timeout(2 * SECOND).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(started.elapsed() < 4 * SECOND, "it took {:?}", started.elapsed());
        let started = Instant::now();
        let hasty = test_db.url.replace('?', "?serverSelectionTimeoutMS=2000&");
        assert_eq!(refused(&hasty).await.kind(), ErrorKind::Unavailable);
        assert!(started.elapsed() < 6 * SECOND, "it took {:?}", started.elapsed());
        restore(&server);
        // Another name: the release of a guard dropped here may be in flight when the server stops again.
        eventually("it answers again", || async { locks.mutex("b").try_acquire().await.is_ok() }).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_credentials_and_missing_rights_are_denied() {
    let error = refused(&auth_url("root", "wr0ng", "app")).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(!error.to_string().contains("wr0ng"), "{error}");
    assert!(!error.can_retry());

    user_with("reader", "app", &[("", &["find"])]).await;
    let locks = Locks::new(connect(&auth_url("reader", "s3cret", "app")).await.unwrap()).unwrap();
    let error = locks.mutex("a").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let findings = locks.doctor().await.unwrap();
    assert!(
        findings
            .iter()
            .any(|finding| finding.level == Level::Warning && finding.what.contains("may not be written"))
    );
}

/// Locks work without the right to create indexes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_rights_to_create_indexes_are_no_error() {
    let rights: &[&str] = &["find", "insert", "update", "remove", "listIndexes"];
    capture_logs();
    user_with("writer", "plain", &[("", rights)]).await;
    let locks = Locks::new(connect(&auth_url("writer", "s3cret", "plain")).await.unwrap()).unwrap();
    let held = locks.mutex("a").acquire().await.unwrap();
    let permit = locks.semaphore("a", 2).acquire().await.unwrap();
    held.release().await.unwrap();
    permit.release().await.unwrap();
    // Logged once, although both engines acquire repeatedly.
    let again = Locks::new(connect(&auth_url("writer", "s3cret", "plain")).await.unwrap()).unwrap();
    eventually("it is logged", || async {
        logged("indexes that purge old documents cannot be created", "plain") > 0
    })
    .await;
    for locks in [&locks, &again] {
        locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
    }
    assert_eq!(logged("indexes that purge old documents cannot be created", "plain"), 1);
    let findings = locks.doctor().await.unwrap();
    let missing =
        |finding: &Finding| finding.level == Level::Warning && finding.what.contains("expiresAt_ttl");
    let found = findings.iter().find(|finding| missing(finding)).unwrap_or_else(|| panic!("{findings:?}"));
    assert!(found.advice.as_deref().is_some_and(|advice| advice.contains("schema")), "{found:?}");
}

/// A user that may write only the mutexes: mutexes work, pools are denied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mutexes_need_no_rights_to_the_queue_collection() {
    let rights: &[&str] = &["find", "insert", "update", "remove"];
    capture_logs();
    user_with("narrow", "narrow", &[("distributed.locks", rights)]).await;
    let locks = Locks::new(connect(&auth_url("narrow", "s3cret", "narrow")).await.unwrap()).unwrap();
    let held = locks.mutex("a").acquire().await.unwrap();
    assert!(locks.mutex("a").try_acquire().await.unwrap().is_none());
    held.release().await.unwrap();
    assert_eq!(logged("only mutexes will work", "narrow"), 1);
    let error = locks.semaphore("a", 2).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("distributed.locks.queues"), "{error}");
}

/// On a replica set the queue collection is used only by waiters. If it is refused they poll.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_served_without_the_queue_collection() {
    capture_logs();
    let test_db = TestDatabase::on_replica_set();
    let database = test_db.database().await;
    // A view cannot be written.
    let view = doc! { "create": "distributed.locks.queues", "viewOn": "x", "pipeline": [] };
    database.run_command(view).await.unwrap();
    let (holder, waiter) = (test_db.locks().await, test_db.locks().await);
    let mut last = holder.mutex("a").acquire().await.unwrap();
    for round in 0..3 {
        let (mutex, next) = (waiter.mutex("a"), holder.mutex("a"));
        let waiting =
            tokio::spawn(
                async move { if round % 2 == 0 { mutex.acquire().await } else { next.acquire().await } },
            );
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        let token = last.token();
        last.release().await.unwrap();
        last = common::within("the waiter is granted", waiting).await.unwrap().unwrap();
        assert!(last.token() > token);
    }
    last.release().await.unwrap();
    assert!(logged("waiters of a mutex cannot be woken", database.name()) <= 2, "at most once per engine");
    assert!(holder.semaphore("a", 1).acquire().await.is_err());
}

/// A collection with other documents: they are not changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_documents_are_not_changed() {
    let test_db = TestDatabase::on_standalone();
    let database = test_db.database().await;
    let locks = test_db.locks().await;
    let foreign = [
        doc! { "_id": "account", "balance": 5 },
        doc! { "_id": "half", "lockId": "x", "fencingToken": "seven" },
        doc! { "_id": "more", "lockId": "", "fencingToken": 7_i64, "owner": "anna" },
        doc! { "_id": "typed", "lockId": 5, "fencingToken": 7_i64 },
        doc! { "_id": "dated", "lockId": "", "fencingToken": 7_i64, "expiresAt": "tomorrow" },
    ];
    let collection = database.collection::<Document>("distributed.locks");
    collection.insert_many(foreign.clone()).await.unwrap();
    for document in &foreign {
        let name = document.get_str("_id").unwrap();
        let error = locks.mutex(name).acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}: {error}");
        assert!(error.to_string().contains("distributed.locks"), "{error}");
        let broken = locks.break_lock(Kind::Mutex, name).await;
        assert!(broken.is_err() || broken.unwrap().is_empty());
    }
    // In a batch each of them fails alone.
    let mut tasks = tokio::task::JoinSet::new();
    for name in ["account", "good", "half", "well", "more", "typed", "dated"] {
        let mutex = locks.mutex(name);
        tasks.spawn(async move { (name, mutex.acquire().await.map(|guard| guard.token())) });
    }
    while let Some(done) = tasks.join_next().await {
        let (name, answer) = done.unwrap();
        assert_eq!(answer.is_ok(), ["good", "well"].contains(&name), "{name}: {answer:?}");
    }
    for document in foreign {
        let found = collection.find_one(doc! { "_id": document.get_str("_id").unwrap() }).await.unwrap();
        assert_eq!(found.as_ref(), Some(&document), "it was changed");
    }
    let queues = database.collection::<Document>("distributed.locks.queues");
    let stranger = doc! { "_id": "semaphore:a", "queue": "of customers" };
    queues.insert_one(stranger.clone()).await.unwrap();
    let error = locks.semaphore("a", 2).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert_eq!(queues.find_one(doc! { "_id": "semaphore:a" }).await.unwrap(), Some(stranger));
}

/// Not contention, and not a missing right.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_instead_of_the_collection_is_reported() {
    let test_db = TestDatabase::on_standalone();
    let database = test_db.database().await;
    database
        .run_command(doc! { "create": "distributed.locks", "viewOn": "x", "pipeline": [] })
        .await
        .unwrap();
    let error = test_db.locks().await.mutex("a").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

/// A replica set without warnings, and a standalone server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_reports_version_topology_write_concern_indexes_rights_and_clock() {
    let alone = TestDatabase::on_standalone();
    let locks = alone.locks().await;
    locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
    eventually("the indexes exist", || async {
        let found = locks.doctor().await.unwrap();
        found.iter().filter(|finding| finding.what.contains("_ttl") && finding.level == Level::Ok).count()
            == 3
    })
    .await;
    let found = locks.doctor().await.unwrap();
    let warnings: Vec<&Finding> = found.iter().filter(|finding| finding.level == Level::Warning).collect();
    assert!(matches!(&warnings[..], [only] if only.what.contains("standalone")), "{found:?}");

    let set = TestDatabase::on_replica_set();
    let locks = set.locks().await;
    locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
    eventually("the doctor finds no problem", || async {
        locks.doctor().await.unwrap().iter().all(|finding| finding.level == Level::Ok)
    })
    .await;
    let found = locks.doctor().await.unwrap();
    for word in
        ["MongoDB ", "replica set", "majority", "expiresAt_ttl", "may be written", "change stream", "clock"]
    {
        assert!(found.iter().any(|finding| finding.what.contains(word)), "nothing about {word} in {found:?}");
    }
}

/// The doctor only reads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_writes_nothing() {
    for test_db in [TestDatabase::on_standalone(), TestDatabase::on_replica_set()] {
        let (database, locks) = (test_db.database().await, test_db.locks().await);
        assert!(!locks.doctor().await.unwrap().is_empty());
        assert_eq!(database.list_collection_names().await.unwrap(), Vec::<String>::new());
        locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
        let before = test_db.lock("a").await;
        locks.doctor().await.unwrap();
        assert_eq!(test_db.lock("a").await, before);
        for (collection, count) in [("distributed.locks", 1), ("distributed.locks.queues", 0)] {
            let found = database.collection::<Document>(collection).count_documents(doc! {}).await.unwrap();
            assert_eq!(found, count, "{collection}");
        }
    }
}

/// The server's clock decides, so the doctor warns about a large difference.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_reports_a_clock_that_is_far_off() {
    let server = MongoServer::configure().movable_clock().start();
    let locks = TestDatabase::on(&server.url()).locks().await;
    server.set_clock_offset("+1d");
    eventually("the doctor notices", || async {
        let found = locks.doctor().await.unwrap();
        found.iter().any(|finding| finding.level == Level::Warning && finding.what.contains("ms from ours"))
    })
    .await;
}

/// Names with characters that have a meaning in MongoDB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_with_dollars_dots_and_nul_bytes_are_ordinary_names() {
    let test_db = TestDatabase::on_replica_set();
    let (one, other) = (test_db.locks().await, test_db.locks().await);
    let long = "ü".repeat(2048);
    for name in ["$name", "$$NOW", "a.b", ".", "a\0b", "\0", "{}", "_id", "lockId", "mutex:a", long.as_str()]
    {
        for kind in 0..2 {
            let take = |locks: &Locks| match kind {
                0 => locks.mutex(name).try_acquire().into_future(),
                _ => locks.rw_lock(name).try_write().into_future(),
            };
            let held = take(&one).await.unwrap().unwrap_or_else(|| panic!("{name:?} is not free"));
            assert!(take(&other).await.unwrap().is_none(), "{name:?} was granted twice");
            let shown = common::records(&other, name).await;
            assert_eq!(shown.len(), 1, "{name:?}: {shown:?}");
            assert_eq!(shown[0].name.as_deref(), Some(name));
            held.release().await.unwrap();
        }
        // A handoff too: the name passes through the wait queue and the change stream.
        let held = one.mutex(name).acquire().await.unwrap();
        let waiting = {
            let mutex = other.mutex(name);
            tokio::spawn(async move { mutex.acquire().await.unwrap() })
        };
        common::until_waiting(&one, name, 1).await;
        held.release().await.unwrap();
        common::within("a handoff", waiting).await.unwrap().release().await.unwrap();
    }
}
