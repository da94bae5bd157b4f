//! Bad input, servers that are not there, users that may not: a clear error each, in time, and nothing overwritten.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::time::Instant;

use common::guarded::{guarded_url, user_with};
use common::said::{listen, said};
use common::{Place, SECOND, connect, eventually};
use distlock_core::store::{Finding, Level};
use distlock_core::{Error, ErrorKind, Kind, Locks};
use distlock_testkit::servers::{MongoServer, Port};
use mongodb::bson::{Document, doc};

async fn refused(url: &str) -> Error {
    connect(url).await.err().unwrap_or_else(|| panic!("{url} was accepted"))
}

#[tokio::test]
async fn illegal_names_are_refused_before_anything_is_sent() {
    // Nobody listens there: whatever is refused at once was not sent.
    let port = Port::reserve();
    for bad in ["local", "config", "a%20b", "a%24b", &"x".repeat(64)] {
        let begun = Instant::now();
        let error = refused(&format!("mongodb://127.0.0.1:{}/{bad}", port.number())).await;
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{bad}: {error}");
        assert!(begun.elapsed() < SECOND);
    }
    for bad in ["", "a%24b", "system.x", ".a", "a%00b"] {
        let error =
            refused(&format!("mongodb://127.0.0.1:{}/app?distlock.collection={bad}", port.number())).await;
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{bad}: {error}");
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_said_to_be_unavailable_in_time() {
    let port = Port::reserve();
    for (options, at_most) in [("", 8 * SECOND), ("?serverSelectionTimeoutMS=500", 3 * SECOND)] {
        let begun = Instant::now();
        let error = refused(&format!("mongodb://u:s3cret@127.0.0.1:{}/app{options}", port.number())).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(begun.elapsed() < at_most, "it took {:?}", begun.elapsed());
        assert!(error.advice().is_some() && !error.is_outcome_unknown(), "{error}");
        assert!(!error.to_string().contains("s3cret") && !error.to_string().contains('\n'), "{error}");
    }
}

/// A server that stands still accepts connections and never answers; one that was killed accepts none. The driver by
/// itself would look for another one for half a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_gone_does_not_hold_up_an_acquire_with_a_time_limit() {
    let server = MongoServer::start();
    let place = Place::on(&server.url());
    let locks = place.locks().await;
    locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
    type Harm = fn(&MongoServer);
    let harms: [(Harm, Harm); 2] = [(|s| s.pause(), |s| s.resume()), (|s| s.kill(), |s| s.start_again())];
    for (harm, mend) in harms {
        harm(&server);
        let begun = Instant::now();
        let error = locks.mutex("a").acquire().timeout(2 * SECOND).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(begun.elapsed() < 4 * SECOND, "it took {:?}", begun.elapsed());
        let begun = Instant::now();
        let hasty = place.url.replace('?', "?serverSelectionTimeoutMS=2000&");
        assert_eq!(refused(&hasty).await.kind(), ErrorKind::Unavailable);
        assert!(begun.elapsed() < 6 * SECOND, "it took {:?}", begun.elapsed());
        mend(&server);
        // Another name: what is dropped here may still be on its way back when the server goes away again.
        eventually("it answers again", || async { locks.mutex("b").try_acquire().await.is_ok() }).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_credentials_and_missing_rights_are_denied() {
    let error = refused(&guarded_url("root", "wr0ng", "app")).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(!error.to_string().contains("wr0ng"), "{error}");
    assert!(!error.can_retry());

    user_with("reader", "app", &[("", &["find"])]).await;
    let locks = Locks::new(connect(&guarded_url("reader", "s3cret", "app")).await.unwrap()).unwrap();
    let error = locks.mutex("a").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let findings = locks.doctor().await.unwrap();
    assert!(
        findings
            .iter()
            .any(|finding| finding.level == Level::Warning && finding.what.contains("may not be written"))
    );
}

/// Lacking the right to make an index is no error: locks work without.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn indexes_that_may_not_be_made_are_no_error() {
    let rights: &[&str] = &["find", "insert", "update", "remove", "listIndexes"];
    listen();
    user_with("writer", "plain", &[("", rights)]).await;
    let locks = Locks::new(connect(&guarded_url("writer", "s3cret", "plain")).await.unwrap()).unwrap();
    let held = locks.mutex("a").acquire().await.unwrap();
    let permit = locks.semaphore("a", 2).acquire().await.unwrap();
    held.release().await.unwrap();
    permit.release().await.unwrap();
    // Again and again, and by another engine: it is said once.
    let again = Locks::new(connect(&guarded_url("writer", "s3cret", "plain")).await.unwrap()).unwrap();
    eventually("it is noted", || async { said("indexes that tidy up cannot be created", "plain") > 0 }).await;
    for locks in [&locks, &again] {
        locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
    }
    assert_eq!(said("indexes that tidy up cannot be created", "plain"), 1);
    let findings = locks.doctor().await.unwrap();
    let missing =
        |finding: &Finding| finding.level == Level::Warning && finding.what.contains("expiresAt_ttl");
    let found = findings.iter().find(|finding| missing(finding)).unwrap_or_else(|| panic!("{findings:?}"));
    assert!(found.advice.as_deref().is_some_and(|advice| advice.contains("schema")), "{found:?}");
}

/// A user that may write the mutexes and nothing else: mutexes work, pools are denied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mutexes_need_no_right_to_the_second_collection() {
    let rights: &[&str] = &["find", "insert", "update", "remove"];
    listen();
    user_with("narrow", "narrow", &[("distributed.locks", rights)]).await;
    let locks = Locks::new(connect(&guarded_url("narrow", "s3cret", "narrow")).await.unwrap()).unwrap();
    let held = locks.mutex("a").acquire().await.unwrap();
    assert!(locks.mutex("a").try_acquire().await.unwrap().is_none());
    held.release().await.unwrap();
    assert_eq!(said("only mutexes will work", "narrow"), 1);
    let error = locks.semaphore("a", 2).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("distributed.locks.queues"), "{error}");
}

/// On a replica set the second collection is refused only when somebody waits: the waiter asks again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_get_their_turn_though_the_second_collection_is_refused() {
    listen();
    let place = Place::on_one_node();
    let database = place.database().await;
    // Nobody can write to a view.
    let view = doc! { "create": "distributed.locks.queues", "viewOn": "x", "pipeline": [] };
    database.run_command(view).await.unwrap();
    let (holder, waiter) = (place.locks().await, place.locks().await);
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
        last = common::within("the waiter's turn", waiting).await.unwrap().unwrap();
        assert!(last.token() > token);
    }
    last.release().await.unwrap();
    assert!(said("waiters of a mutex cannot be woken", database.name()) <= 2, "once for each engine");
    assert!(holder.semaphore("a", 1).acquire().await.is_err());
}

/// A collection of something else: whatever its documents are, they stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_that_are_not_locks_are_left_as_they_are() {
    let place = Place::on_standalone();
    let database = place.database().await;
    let locks = place.locks().await;
    let strangers = [
        doc! { "_id": "account", "balance": 5 },
        doc! { "_id": "half", "lockId": "x", "fencingToken": "seven" },
        doc! { "_id": "more", "lockId": "", "fencingToken": 7_i64, "owner": "somebody" },
        doc! { "_id": "typed", "lockId": 5, "fencingToken": 7_i64 },
        doc! { "_id": "dated", "lockId": "", "fencingToken": 7_i64, "expiresAt": "tomorrow" },
    ];
    let collection = database.collection::<Document>("distributed.locks");
    collection.insert_many(strangers.clone()).await.unwrap();
    for stranger in &strangers {
        let name = stranger.get_str("_id").unwrap();
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
    for stranger in strangers {
        let found = collection.find_one(doc! { "_id": stranger.get_str("_id").unwrap() }).await.unwrap();
        assert_eq!(found.as_ref(), Some(&stranger), "it was changed");
    }
    let queues = database.collection::<Document>("distributed.locks.queues");
    let stranger = doc! { "_id": "semaphore:a", "queue": "of customers" };
    queues.insert_one(stranger.clone()).await.unwrap();
    let error = locks.semaphore("a", 2).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert_eq!(queues.find_one(doc! { "_id": "semaphore:a" }).await.unwrap(), Some(stranger));
}

/// A view cannot be written; that is not the user's fault and not a busy lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_in_the_place_of_the_collection_is_told() {
    let place = Place::on_standalone();
    let database = place.database().await;
    database
        .run_command(doc! { "create": "distributed.locks", "viewOn": "x", "pipeline": [] })
        .await
        .unwrap();
    let error = place.locks().await.mutex("a").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

/// What a user sees of a good server and of a standalone one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_tells_version_topology_write_concern_indexes_rights_and_clock() {
    let alone = Place::on_standalone();
    let locks = alone.locks().await;
    locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
    eventually("the indexes are made", || async {
        let found = locks.doctor().await.unwrap();
        found.iter().filter(|finding| finding.what.contains("_ttl") && finding.level == Level::Ok).count()
            == 3
    })
    .await;
    let found = locks.doctor().await.unwrap();
    let warnings: Vec<&Finding> = found.iter().filter(|finding| finding.level == Level::Warning).collect();
    assert!(matches!(&warnings[..], [only] if only.what.contains("standalone")), "{found:?}");

    let set = Place::on_one_node();
    let locks = set.locks().await;
    locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
    eventually("all is well", || async {
        locks.doctor().await.unwrap().iter().all(|finding| finding.level == Level::Ok)
    })
    .await;
    let found = locks.doctor().await.unwrap();
    for word in
        ["MongoDB ", "replica set", "majority", "expiresAt_ttl", "may be written", "change stream", "clock"]
    {
        assert!(found.iter().any(|finding| finding.what.contains(word)), "no word of {word} in {found:?}");
    }
}

/// Looking after a server must not leave anything there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_writes_nothing() {
    for place in [Place::on_standalone(), Place::on_one_node()] {
        let (database, locks) = (place.database().await, place.locks().await);
        assert!(!locks.doctor().await.unwrap().is_empty());
        assert_eq!(database.list_collection_names().await.unwrap(), Vec::<String>::new());
        locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
        let before = place.lock("a").await;
        locks.doctor().await.unwrap();
        assert_eq!(place.lock("a").await, before);
        for (collection, count) in [("distributed.locks", 1), ("distributed.locks.queues", 0)] {
            let found = database.collection::<Document>(collection).count_documents(doc! {}).await.unwrap();
            assert_eq!(found, count, "{collection}");
        }
    }
}

/// The clock of the server is far away: it decides, and the doctor says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_tells_of_a_clock_that_is_far_away() {
    let server = MongoServer::configure().movable_clock().start();
    let locks = Place::on(&server.url()).locks().await;
    server.set_clock_offset("+1d");
    eventually("the doctor notices", || async {
        let found = locks.doctor().await.unwrap();
        found.iter().any(|finding| finding.level == Level::Warning && finding.what.contains("ms from ours"))
    })
    .await;
}

/// Names that other stores have trouble with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_with_dollars_dots_and_nul_bytes_are_plain_names() {
    let place = Place::on_one_node();
    let (one, other) = (place.locks().await, place.locks().await);
    let long = "ü".repeat(2048);
    for name in ["$name", "$$NOW", "a.b", ".", "a\0b", "\0", "{}", "_id", "lockId", "mutex:a", long.as_str()]
    {
        for kind in 0..2 {
            let take = |locks: &Locks| match kind {
                0 => locks.mutex(name).try_acquire().into_future(),
                _ => locks.rw_lock(name).try_write().into_future(),
            };
            let held = take(&one).await.unwrap().unwrap_or_else(|| panic!("{name:?} is not free"));
            assert!(take(&other).await.unwrap().is_none(), "{name:?} was given out twice");
            let shown = common::records(&other, name).await;
            assert_eq!(shown.len(), 1, "{name:?}: {shown:?}");
            assert_eq!(shown[0].name.as_deref(), Some(name));
            held.release().await.unwrap();
        }
        // Handed over, too: the name goes through the line and the change stream.
        let held = one.mutex(name).acquire().await.unwrap();
        let waiting = {
            let mutex = other.mutex(name);
            tokio::spawn(async move { mutex.acquire().await.unwrap() })
        };
        common::until_waiting(&one, name, 1).await;
        held.release().await.unwrap();
        common::within("a hand-over", waiting).await.unwrap().release().await.unwrap();
    }
}
