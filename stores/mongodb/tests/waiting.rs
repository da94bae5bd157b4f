//! How many requests it takes, and how waiting goes on when something is amiss.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use common::bare::Bare;
use common::{MS, Place, SECOND, commands, eventually, expiring, until_waiting, within};
use distlock_core::store::{Attempt, Inbox, Lease};
use distlock_core::{FencingToken, Kind, LockId};
use distlock_testkit::servers::MongoReplicaSet;
use mongodb::bson::{Document, doc};

/// Everything a client asks, and asks the change stream too.
const REQUESTS: [&str; 6] = ["findAndModify", "update", "find", "delete", "aggregate", "getMore"];

/// Counting needs a server that nobody else asks anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cost_does_not_grow_with_the_number_of_waiters() {
    let set = MongoReplicaSet::start(1);
    let place = Place::on(&set.url());
    let database = place.database().await;
    let locks = place.locks().await;

    // Uncontended: two requests a cycle, and no stream for nobody.
    database.run_command(doc! { "profile": 2 }).await.unwrap();
    let mutex = locks.mutex("uncontended");
    mutex.acquire().await.unwrap().release().await.unwrap();
    eventually("the indexes are made", || async { asked(&database, "createIndexes").await >= 3 }).await;
    for _ in 0..50 {
        mutex.acquire().await.unwrap().release().await.unwrap();
    }
    assert_eq!(asked(&database, "findAndModify").await, 102);
    for other in ["aggregate", "find", "q"] {
        assert_eq!(asked(&database, other).await, 0, "nobody waits, and there was a command with {other}");
    }
    // Another engine of this process: the indexes are there.
    place.locks().await.mutex("uncontended").acquire().await.unwrap().release().await.unwrap();
    assert_eq!(asked(&database, "createIndexes").await, 3, "indexes were made twice in one process");
    database.run_command(doc! { "profile": 0 }).await.unwrap();

    let four = requests_per_grant(&place, 4).await;
    let twelve = requests_per_grant(&place, 12).await;
    println!("requests for each grant: {four:.2} with 4 contenders, {twelve:.2} with 12");
    // One to join the line, one to hear of the turn, one to hand it on; a busy machine makes some holds long, and those
    // behind look at the lock once.
    assert!(four < 4.0 && twelve < 4.0, "{four:.2} with 4 contenders, {twelve:.2} with 12");
}

async fn counts(database: &mongodb::Database) -> Vec<i64> {
    let mut counts = Vec::new();
    for command in REQUESTS {
        counts.push(commands(database, &[command]).await);
    }
    counts
}

/// How many commands of this sort the profiler of a database saw on the collections of locks.
async fn asked(database: &mongodb::Database, command: &str) -> u64 {
    let of_ours =
        doc! { "ns": { "$regex": "distributed[.]locks" }, format!("command.{command}"): { "$exists": true } };
    // The stream is that of the whole database.
    let which = if command == "aggregate" {
        doc! { "command.aggregate": 1 }
    } else {
        of_ours
    };
    database.collection::<Document>("system.profile").count_documents(which).await.unwrap()
}

/// Engines that hand one mutex around.
async fn requests_per_grant(place: &Place, contenders: u32) -> f64 {
    let database = place.database().await;
    let (stop, granted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let mut tasks = Vec::new();
    for _ in 0..contenders {
        let (locks, stop, granted) = (place.locks().await, stop.clone(), granted.clone());
        tasks.push(tokio::spawn(async move {
            let mut own = 0_u32;
            while !stop.load(Ordering::SeqCst) {
                let guard = locks.mutex("contended").acquire().await.unwrap();
                own += 1;
                granted.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(MS).await;
                guard.release().await.unwrap();
                tokio::time::sleep(MS).await;
            }
            own
        }));
    }
    let reach = |count: u32| {
        let granted = granted.clone();
        async move { eventually("grants go on", || async { granted.load(Ordering::SeqCst) >= count }).await }
    };
    reach(contenders * 10).await;
    let (before, first) = (counts(&database).await, granted.load(Ordering::SeqCst));
    reach(first + 200).await;
    let (after, last) = (counts(&database).await, granted.load(Ordering::SeqCst));
    stop.store(true, Ordering::SeqCst);
    let mut each = Vec::new();
    for task in tasks {
        each.push(within("an end", task).await.unwrap());
    }
    let (least, most) = (each.iter().min().unwrap(), each.iter().max().unwrap());
    assert!(
        f64::from(*most) <= 1.5 * f64::from(*least) + 3.0,
        "some are served more often than others: {each:?}"
    );
    let grants = f64::from(last - first);
    let asked: Vec<i64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
    println!("{grants} grants to {contenders} contenders: {REQUESTS:?} {asked:?}");
    #[allow(clippy::cast_precision_loss)]
    let requests = asked.iter().sum::<i64>() as f64;
    requests / grants
}

/// A waiter that dies leaves its place in the line. It is handed the lock once, and those behind it get their turn
/// when its window is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_died_is_passed_over_after_its_window() {
    let place = Place::on_one_node();
    let (holder, next) = (place.locks().await, place.locks().await);
    let held = holder.mutex("dead").acquire().await.unwrap();
    let bare = Bare::new(&place).await;
    // It lasts as long as the test: nobody says that it is gone.
    let dead = bare.waiting(Kind::Mutex, "dead", bare.ids.next(), 60 * SECOND);
    assert!(matches!(bare.ask(&dead).await, Attempt::Busy { .. }));
    let waiting = tokio::spawn(async move { next.mutex("dead").acquire().await.unwrap() });
    until_waiting(&holder, "dead", 2).await;
    let released = Instant::now();
    held.release().await.unwrap();
    let held = within("the next one's turn", waiting).await.unwrap();
    assert!(released.elapsed() < 8 * SECOND, "it took {:?}", released.elapsed());
    held.release().await.unwrap();
}

/// Lock ids that do not say whose they are: whoever is next is woken, not handed the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_with_a_foreign_lock_id_is_woken() {
    let place = Place::on_one_node();
    let holder = place.locks().await;
    let held = holder.mutex("rung").acquire().await.unwrap();
    let bare = Bare::new(&place).await;
    let inbox = Inbox::new(bare.ids.prefix());
    let mut wakes = bare.store.subscribe(&inbox).await.unwrap();
    let claim = bare.waiting(Kind::Mutex, "rung", LockId::from_stored("some other#id"), 60 * SECOND);
    assert!(matches!(bare.ask(&claim).await, Attempt::Busy { .. }));
    held.release().await.unwrap();
    let next = std::future::poll_fn(|context| wakes.as_mut().poll_next(context));
    let wake = within("a wake-up", next).await.expect("an open stream");
    assert!(
        matches!(&wake, distlock_core::store::Wake::Retry { lock_id, .. } if *lock_id == claim.lock_id),
        "{wake:?}"
    );
    assert!(matches!(bare.ask(&claim).await, Attempt::Granted { .. }));
    let lease = Lease::of(&claim, FencingToken::new(0));
    bare.store.release(&[lease]).await.unwrap();
    assert!(common::records(&holder, "rung").await.is_empty());
}

/// The second collection is lost while somebody waits: who holds a mutex, its own document says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_line_costs_a_waiter_no_more_than_a_second() {
    let place = Place::on_one_node();
    let (holder, waiter) = (place.locks().await, place.locks().await);
    let held = holder.mutex("lost line").acquire().await.unwrap();
    let waiting = tokio::spawn(async move { waiter.mutex("lost line").acquire().await.unwrap() });
    until_waiting(&holder, "lost line", 1).await;
    let queues = place.database().await.collection::<Document>("distributed.locks.queues");
    queues.delete_many(doc! {}).await.unwrap();
    held.release().await.unwrap();
    let released = Instant::now();
    within("the waiter's turn", waiting).await.unwrap().release().await.unwrap();
    assert!(released.elapsed() < 5 * SECOND, "it took {:?}", released.elapsed());
}

/// A holder that is killed and the waiters behind it: the first of them has the lock at its expiry, not at some poll.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_has_the_lock_when_the_holder_expires() {
    let place = Place::on_one_node();
    let (holder, waiter) =
        (place.locks_with(expiring(700 * MS).auto_extend(false)).await, place.locks().await);
    let mut late = Vec::new();
    for _ in 0..5 {
        let held = holder.mutex("expiring").acquire().await.unwrap();
        std::mem::forget(held);
        let begun = Instant::now();
        let next = within("the waiter's turn", waiter.mutex("expiring").acquire()).await.unwrap();
        late.push(begun.elapsed().saturating_sub(700 * MS));
        next.release().await.unwrap();
    }
    late.sort_unstable();
    println!("late by {late:?}");
    assert!(late[0] < 200 * MS, "the quickest of five came {:?} late", late[0]);
}

/// How many cursors a server has open, whoever they are for. Those at work and those that nobody asks right now count.
async fn cursors(database: &mongodb::Database) -> i64 {
    let status = database.client().database("admin").run_command(doc! { "serverStatus": 1 }).await.unwrap();
    let cursors = status.get_document("metrics").unwrap().get_document("cursor").unwrap();
    cursors.get_document("open").unwrap().get_i64("total").unwrap()
}

/// The server keeps a stream only for those who wait: one for a process, however many wait there, and none that was
/// left behind by somebody who is not there any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_is_open_only_while_somebody_waits() {
    // Counting needs a server that nobody else asks anything.
    let set = MongoReplicaSet::start(1);
    let place = Place::on(&set.url());
    let database = place.database().await;
    let open = async |count| {
        eventually(&format!("{count} streams are open"), || async { cursors(&database).await == count })
            .await;
    };
    let (holder, waiter) = (place.locks().await, place.locks().await);
    holder.mutex("one").acquire().await.unwrap().release().await.unwrap();
    let (one, other) =
        (holder.mutex("one").acquire().await.unwrap(), holder.rw_lock("other").write().await.unwrap());
    assert!(waiter.mutex("one").try_acquire().await.unwrap().is_none());
    assert_eq!(cursors(&database).await, 0, "nobody waits");

    let waits = |locks: &distlock_core::Locks| {
        let locks = locks.clone();
        tokio::spawn(async move { locks.mutex("one").acquire().await.unwrap() })
    };
    let first = waits(&waiter);
    open(1).await;
    let reader = {
        let waiter = waiter.clone();
        tokio::spawn(async move { waiter.rw_lock("other").read().await.unwrap() })
    };
    until_waiting(&holder, "one", 1).await;
    until_waiting(&holder, "other", 1).await;
    assert_eq!(cursors(&database).await, 1, "one for the whole process");

    one.release().await.unwrap();
    let one = within("the waiter's turn", first).await.unwrap();
    other.release().await.unwrap();
    drop(within("the reader's turn", reader).await.unwrap());
    open(0).await;
    one.release().await.unwrap();

    // Those who give up, and those whose engine goes, leave none behind either.
    let one = holder.mutex("one").acquire().await.unwrap();
    let gone = place.locks().await;
    let given_up = [waits(&waiter), waits(&gone)];
    open(2).await;
    drop(gone);
    given_up.iter().for_each(tokio::task::JoinHandle::abort);
    open(0).await;
    one.release().await.unwrap();
}

/// Without change streams waiters poll, and the store says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_standalone_server_waiters_poll() {
    let place = Place::on_standalone();
    let (holder, waiter) = (place.locks().await, place.locks().await);
    assert!(!holder.capabilities().push);
    for kind in 0..2 {
        let held = match kind {
            0 => holder.mutex("polled").acquire().await.unwrap(),
            _ => holder.semaphore("polled", 1).acquire().await.unwrap(),
        };
        let waiting = {
            let waiter = waiter.clone();
            tokio::spawn(async move {
                match kind {
                    0 => waiter.mutex("polled").acquire().await.unwrap(),
                    _ => waiter.semaphore("polled", 1).acquire().await.unwrap(),
                }
            })
        };
        tokio::time::sleep(50 * MS).await;
        held.release().await.unwrap();
        within("the waiter's turn", waiting).await.unwrap().release().await.unwrap();
    }
}
