//! Tokens that another program wrote: far ahead of the clock, or too high to be followed by another.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{SECOND, TestDatabase, connect, eventually, records, until_indexed, until_waiting, within};
use distlock_core::store::{Finding, Level};
use distlock_core::{Error, ErrorKind, Guard, Kind, Locks};
use mongodb::Collection;
use mongodb::bson::{Bson, DateTime, Document, doc};

const DAY_MS: i64 = 86_400_000;

fn now() -> i64 {
    DateTime::now().timestamp_millis()
}

fn is_near_the_clock(guard: &Guard) -> bool {
    i64::try_from(guard.token().get()).unwrap() < now() + DAY_MS
}

async fn mutexes(test_db: &TestDatabase) -> Collection<Document> {
    test_db.database().await.collection("distributed.locks")
}

/// Leaves a released document with this token, as another program would.
async fn leave(test_db: &TestDatabase, name: &str, token: impl Into<Bson>) -> Document {
    let left =
        doc! { "_id": name, "lockId": "", "acquiredAt": DateTime::now(), "fencingToken": token.into() };
    mutexes(test_db).await.insert_one(left.clone()).await.unwrap();
    left
}

/// Too high, too low or not a number.
fn uncountable() -> [Bson; 7] {
    let doubles = [9.3e18, 1e300, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    let [a, b, c, d, e] = doubles.map(Bson::Double);
    [Bson::Int64(i64::MAX), Bson::Int64(i64::MAX - 1), a, b, c, d, e]
}

fn warnings(findings: &[Finding], about: &str) -> usize {
    findings.iter().filter(|found| found.level == Level::Warning && found.what.contains(about)).count()
}

/// Otherwise one document would move the tokens of every name years ahead of the clock, and no tombstone would be
/// purged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_token_that_is_not_a_time_does_not_shift_the_tokens_of_other_names() {
    for test_db in [TestDatabase::on_standalone(), TestDatabase::on_replica_set()] {
        let open = || async {
            Locks::new(connect(&format!("{}&distlock.retention=1s", test_db.url)).await.unwrap()).unwrap()
        };
        let locks = open().await;
        for (name, token) in [("days", now() + 2 * DAY_MS), ("years", now() + 3000 * DAY_MS)] {
            leave(&test_db, name, token).await;
            let held = locks.mutex(name).acquire().await.unwrap();
            assert_eq!(held.token().get(), u64::try_from(token + 1).unwrap(), "it continues from theirs");
            held.release().await.unwrap();
        }
        for locks in [&locks, &open().await] {
            let (mutex, permit) = (
                locks.mutex("ours").acquire().await.unwrap(),
                locks.semaphore("ours", 1).acquire().await.unwrap(),
            );
            assert!(is_near_the_clock(&mutex), "a mutex got {}", mutex.token());
            assert!(is_near_the_clock(&permit), "a permit got {}", permit.token());
            mutex.release().await.unwrap();
            permit.release().await.unwrap();
        }
        let database = test_db.database().await;
        let queues = database.collection::<Document>("distributed.locks.queues");
        assert!(queues.find_one(doc! { "_id": "clock" }).await.unwrap().is_none(), "it is taken for a clock");
        until_indexed(&database).await;
        eventually("what is left of ours is purged", || async { test_db.lock("ours").await.is_none() }).await;
        let found = locks.doctor().await.unwrap();
        assert_eq!(warnings(&found, "\"years\""), 1, "{found:?}");
    }
}

fn is_refused(error: &Error, name: &str) {
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let text = error.to_string();
    assert!(
        text.contains(&format!("{name:?}")) && text.contains("token") && text.contains("delete"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mutex_with_an_uncountable_token_is_refused() {
    let test_db = TestDatabase::on_replica_set();
    let locks = test_db.locks().await;
    let mut left = Vec::new();
    for (at, token) in uncountable().into_iter().enumerate() {
        let name = format!("{at}");
        left.push((name.clone(), leave(&test_db, &name, token).await));
        is_refused(&locks.mutex(name.as_str()).acquire().await.unwrap_err(), &name);
    }
    let found = locks.doctor().await.unwrap();
    assert_eq!(warnings(&found, "\"0\""), 1, "{found:?}");
    // In a batch each of them fails alone.
    let mut tasks = tokio::task::JoinSet::new();
    for name in left.iter().map(|(name, _)| name.clone()).chain(["good".to_owned(), "well".to_owned()]) {
        let mutex = locks.mutex(name.as_str());
        tasks.spawn(async move { (name, mutex.acquire().await.map(|guard| guard.token())) });
    }
    while let Some(done) = tasks.join_next().await {
        let (name, answer) = done.unwrap();
        assert_eq!(answer.is_ok(), ["good", "well"].contains(&name.as_str()), "{name}: {answer:?}");
    }
    for (name, left) in left {
        let found = test_db.lock(&name).await.unwrap();
        // Compared as text: NaN is not equal to itself.
        assert_eq!(format!("{found:?}"), format!("{left:?}"), "it was changed");
        // Deleted, as the error advises.
        mutexes(&test_db).await.delete_one(doc! { "_id": &name }).await.unwrap();
        locks.mutex(name.as_str()).acquire().await.unwrap().release().await.unwrap();
    }
}

/// The claim is refused at once, not when the other program releases, and the lock can be shown and broken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_mutex_with_an_uncountable_token_is_shown_and_can_be_broken() {
    let test_db = TestDatabase::on_replica_set();
    let locks = test_db.locks().await;
    for (at, token) in uncountable().into_iter().enumerate() {
        let name = format!("{at}");
        let until = DateTime::from_millis(now() + 60_000);
        let held = doc! {
            "_id": &name, "lockId": "theirs", "acquiredAt": DateTime::now(), "expiresAt": until, "fencingToken": token,
        };
        mutexes(&test_db).await.insert_one(held).await.unwrap();
        is_refused(&locks.mutex(name.as_str()).acquire().await.unwrap_err(), &name);
        assert_eq!(records(&locks, &name).await[0].holders[0].lock_id.as_str(), "theirs");
        assert_eq!(locks.break_lock(Kind::Mutex, name.as_str()).await.unwrap().len(), 1);
        assert!(records(&locks, &name).await.is_empty());
    }
}

/// The token changes while we hold the lock: it can still be released, and the waiter gets the error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_whose_token_becomes_uncountable_can_be_released() {
    let test_db = TestDatabase::on_replica_set();
    let (holder, waiter) = (test_db.locks().await, test_db.locks().await);
    for (at, token) in uncountable().into_iter().enumerate() {
        for has_waiter in [false, true] {
            let name = format!("{at} {has_waiter}");
            let held = holder.mutex(name.as_str()).acquire().await.unwrap();
            let waiting = has_waiter.then(|| {
                let mutex = waiter.mutex(name.as_str());
                tokio::spawn(async move { mutex.acquire().await })
            });
            if has_waiter {
                until_waiting(&holder, &name, 1).await;
            }
            let change = doc! { "$set": { "fencingToken": token.clone() } };
            mutexes(&test_db).await.update_one(doc! { "_id": &name }, change).await.unwrap();
            if let Some(waiting) = waiting {
                // The waiter may try before the lock is released.
                drop(held.release().await);
                is_refused(&within("an answer", waiting).await.unwrap().unwrap_err(), &name);
            } else {
                held.release().await.unwrap();
            }
            eventually("it is free", || async { records(&holder, &name).await.is_empty() }).await;
            assert_eq!(test_db.lock(&name).await.unwrap().get_str("lockId").unwrap(), "");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_with_an_uncountable_token_is_refused_and_released() {
    let test_db = TestDatabase::on_replica_set();
    let (holder, waiter) = (test_db.locks().await, test_db.locks().await);
    let queues = test_db.database().await.collection::<Document>("distributed.locks.queues");
    for (at, token) in uncountable().into_iter().enumerate() {
        let name = format!("{at}");
        let held = holder.semaphore(name.as_str(), 1).acquire().await.unwrap();
        let waiting = {
            let semaphore = waiter.semaphore(name.as_str(), 1);
            tokio::spawn(async move { semaphore.acquire().await })
        };
        until_waiting(&holder, &name, 1).await;
        let id = format!("semaphore:{name}");
        let change = doc! { "$set": { "token": token.clone() } };
        queues.update_one(doc! { "_id": &id }, change).await.unwrap();
        held.release().await.unwrap();
        is_refused(&within("an answer", waiting).await.unwrap().unwrap_err(), &id);
        is_refused(&holder.semaphore(name.as_str(), 1).acquire().await.unwrap_err(), &id);
    }
    let found = holder.doctor().await.unwrap();
    assert_eq!(warnings(&found, "\"semaphore:0\""), 1, "{found:?}");
}

/// A foreign note of the clock does not shift tokens either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_note_that_is_not_a_time_is_ignored() {
    for behind in [i64::MAX, i64::MAX / 2] {
        let test_db = TestDatabase::on_standalone();
        let queues = test_db.database().await.collection::<Document>("distributed.locks.queues");
        queues.insert_one(doc! { "_id": "clock", "behind": behind }).await.unwrap();
        let locks = Locks::new(connect(&test_db.url).await.unwrap()).unwrap();
        let held = locks.mutex("a").acquire().timeout(5 * SECOND).await.unwrap();
        assert!(is_near_the_clock(&held), "{}", held.token());
        held.release().await.unwrap();
        let found = locks.doctor().await.unwrap();
        assert_eq!(warnings(&found, "\"clock\""), 1, "{found:?}");
    }
}
