//! The cost of waiting in requests, and waiting under faults.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use common::bare_store::BareStore;
use common::{MS, SECOND, TestDatabase, commands, eventually, expiring, until_waiting, within};
use distlock_core::store::{Attempt, Inbox, Lease};
use distlock_core::{FencingToken, Kind, LockId};
use distlock_testkit::servers::MongoReplicaSet;
use mongodb::bson::{Document, doc};

/// The commands of clients, those of the change stream included.
const REQUESTS: [&str; 6] = ["findAndModify", "update", "find", "delete", "aggregate", "getMore"];

/// Counts on a server of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cost_does_not_grow_with_the_number_of_waiters() {
    let set = MongoReplicaSet::start(1);
    let test_db = TestDatabase::on(&set.url());
    let database = test_db.database().await;
    let locks = test_db.locks().await;

    // Uncontended: two requests per cycle, and no change stream.
    database.run_command(doc! { "profile": 2 }).await.unwrap();
    let mutex = locks.mutex("uncontended");
    mutex.acquire().await.unwrap().release().await.unwrap();
    eventually("the indexes exist", || async { profiled(&database, "createIndexes").await >= 3 }).await;
    for _ in 0..50 {
        mutex.acquire().await.unwrap().release().await.unwrap();
    }
    assert_eq!(profiled(&database, "findAndModify").await, 102);
    for other in ["aggregate", "find", "q"] {
        assert_eq!(profiled(&database, other).await, 0, "a command with {other} without a waiter");
    }
    // Another engine of this process finds the indexes.
    test_db.locks().await.mutex("uncontended").acquire().await.unwrap().release().await.unwrap();
    assert_eq!(profiled(&database, "createIndexes").await, 3, "indexes were created twice in one process");
    database.run_command(doc! { "profile": 0 }).await.unwrap();

    let four = requests_per_grant(&test_db, 4).await;
    let twelve = requests_per_grant(&test_db, 12).await;
    println!("requests per grant: {four:.2} with 4 contenders, {twelve:.2} with 12");
    // One to register, one of the change stream, one for the handoff. A busy machine makes some holds long, and the waiters
    // behind them try the lock once.
    assert!(four < 4.0 && twelve < 4.0, "{four:.2} with 4 contenders, {twelve:.2} with 12");
}

async fn counts(database: &mongodb::Database) -> Vec<i64> {
    let mut counts = Vec::new();
    for command in REQUESTS {
        counts.push(commands(database, &[command]).await);
    }
    counts
}

/// How often the profiler of a database saw this command on the locks' collections.
async fn profiled(database: &mongodb::Database, command: &str) -> u64 {
    let of_ours =
        doc! { "ns": { "$regex": "distributed[.]locks" }, format!("command.{command}"): { "$exists": true } };
    // The change stream is opened on the whole database.
    let which = if command == "aggregate" {
        doc! { "command.aggregate": 1 }
    } else {
        of_ours
    };
    database.collection::<Document>("system.profile").count_documents(which).await.unwrap()
}

/// Engines that contend for one mutex.
async fn requests_per_grant(test_db: &TestDatabase, contenders: u32) -> f64 {
    let database = test_db.database().await;
    let (stop, granted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let mut tasks = Vec::new();
    for _ in 0..contenders {
        let (locks, stop, granted) = (test_db.locks().await, stop.clone(), granted.clone());
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
        async move { eventually("grants continue", || async { granted.load(Ordering::SeqCst) >= count }).await }
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
    let sent: Vec<i64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
    println!("{grants} grants to {contenders} contenders: {REQUESTS:?} {sent:?}");
    #[allow(clippy::cast_precision_loss)]
    let requests = sent.iter().sum::<i64>() as f64;
    requests / grants
}

/// Two clients that meet at a name again and again: one finds it free, the other waits for it. From the second time on the
/// release is the handoff, without a request before it that finds the waiter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handoff_like_the_last_one_is_one_request() {
    const ROUNDS: usize = 12;
    // Counts on a server of its own.
    let set = MongoReplicaSet::start(1);
    let test_db = TestDatabase::on(&set.url());
    let database = test_db.database().await;
    let engines = [test_db.locks().await, test_db.locks().await];
    let mut requests = Vec::new();
    for round in 0..ROUNDS {
        let (holder, waiter) = (&engines[round % 2], engines[1 - round % 2].clone());
        let held = within("the name is free", holder.mutex("again").acquire()).await.unwrap();
        let waiting = tokio::spawn(async move { waiter.mutex("again").acquire().await.unwrap() });
        until_waiting(holder, "again", 1).await;
        let count = || async {
            let single = commands(&database, &["findAndModify"]).await;
            (single, commands(&database, &["aggregate"]).await)
        };
        let before = count().await;
        held.release().await.unwrap();
        let next = within("the waiter is granted", waiting).await.unwrap();
        let after = count().await;
        requests.push((after.0 - before.0, after.1 - before.1));
        next.release().await.unwrap();
    }
    // A waiter that asks again at the same moment is counted too.
    let handed_off_at_once = requests[4..].iter().filter(|requests| **requests == (0, 1)).count();
    assert!(handed_off_at_once >= ROUNDS / 3, "findAndModify and aggregate of each handoff: {requests:?}");
    // A holder that expects a waiter and has none frees the lock.
    for locks in &engines {
        locks.mutex("again").acquire().await.unwrap().release().await.unwrap();
        assert!(common::records(locks, "again").await.is_empty());
    }
}

/// A lock is often released and acquired again within a millisecond, and the change stream then shows the new holder without a time.
/// The holder's process must not take that for a handoff to a lock id that has left, while the lock id is releasing it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_in_the_millisecond_of_a_release_is_not_passed_on_while_it_is_released() {
    const ROUNDS: usize = 400;
    let test_db = TestDatabase::on_replica_set();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let locks = test_db.locks().await;
        tasks.spawn(async move {
            for round in 0..ROUNDS {
                let guard = locks.mutex("turns").acquire().await.unwrap();
                tokio::task::yield_now().await;
                assert!(!guard.is_lost());
                guard.release().await.unwrap_or_else(|error| panic!("round {round}: {error:?}"));
            }
        });
    }
    within("both clients end", tasks.join_all()).await;
}

/// A dead waiter stays in the queue. It is handed the lock once, and the next waiter is served after its window.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_waiter_delays_the_next_one_by_its_window_only() {
    let test_db = TestDatabase::on_replica_set();
    let (holder, next) = (test_db.locks().await, test_db.locks().await);
    let held = holder.mutex("dead").acquire().await.unwrap();
    let bare = BareStore::new(&test_db).await;
    // Its entry outlives the test.
    let dead = bare.waiting(Kind::Mutex, "dead", bare.ids.next(), 60 * SECOND);
    assert!(matches!(bare.ask(&dead).await, Attempt::Busy { .. }));
    let waiting = tokio::spawn(async move { next.mutex("dead").acquire().await.unwrap() });
    until_waiting(&holder, "dead", 2).await;
    let released = Instant::now();
    held.release().await.unwrap();
    let held = within("the next waiter is granted", waiting).await.unwrap();
    assert!(released.elapsed() < 8 * SECOND, "it took {:?}", released.elapsed());
    held.release().await.unwrap();
}

/// A waiter whose lock id does not name its inbox cannot be handed the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_with_a_foreign_lock_id_is_woken() {
    let test_db = TestDatabase::on_replica_set();
    let holder = test_db.locks().await;
    let held = holder.mutex("woken").acquire().await.unwrap();
    let bare = BareStore::new(&test_db).await;
    let inbox = Inbox::new(bare.ids.prefix());
    let mut wakes = bare.store.subscribe(&inbox).await.unwrap();
    let claim = bare.waiting(Kind::Mutex, "woken", LockId::from_stored("some other#id"), 60 * SECOND);
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
    assert!(common::records(&holder, "woken").await.is_empty());
}

/// The wait queue is deleted during a wait. Only the lock document decides.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_wait_queue_costs_a_waiter_no_more_than_a_second() {
    let test_db = TestDatabase::on_replica_set();
    let (holder, waiter) = (test_db.locks().await, test_db.locks().await);
    let held = holder.mutex("lost queue").acquire().await.unwrap();
    let waiting = tokio::spawn(async move { waiter.mutex("lost queue").acquire().await.unwrap() });
    until_waiting(&holder, "lost queue", 1).await;
    let queues = test_db.database().await.collection::<Document>("distributed.locks.queues");
    queues.delete_many(doc! {}).await.unwrap();
    held.release().await.unwrap();
    let released = Instant::now();
    within("the waiter is granted", waiting).await.unwrap().release().await.unwrap();
    assert!(released.elapsed() < 5 * SECOND, "it took {:?}", released.elapsed());
}

/// The waiter behind a killed holder acquires the lock at its expiry, not at the next poll.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_acquires_the_lock_when_the_holder_expires() {
    let test_db = TestDatabase::on_replica_set();
    let (holder, waiter) =
        (test_db.locks_with(expiring(700 * MS).auto_extend(false)).await, test_db.locks().await);
    let mut late = Vec::new();
    for _ in 0..5 {
        let held = holder.mutex("expiring").acquire().await.unwrap();
        std::mem::forget(held);
        let started = Instant::now();
        let next = within("the waiter is granted", waiter.mutex("expiring").acquire()).await.unwrap();
        late.push(started.elapsed().saturating_sub(700 * MS));
        next.release().await.unwrap();
    }
    late.sort_unstable();
    println!("late by {late:?}");
    assert!(late[0] < 200 * MS, "the fastest of five was {:?} late", late[0]);
}

/// How many cursors a server has open, idle ones included.
async fn cursors(database: &mongodb::Database) -> i64 {
    let status = database.client().database("admin").run_command(doc! { "serverStatus": 1 }).await.unwrap();
    let cursors = status.get_document("metrics").unwrap().get_document("cursor").unwrap();
    cursors.get_document("open").unwrap().get_i64("total").unwrap()
}

/// One change stream per process with waiters, however many there are, and none after the last one is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_stream_is_open_only_during_a_wait() {
    // Counts on a server of its own.
    let set = MongoReplicaSet::start(1);
    let test_db = TestDatabase::on(&set.url());
    let database = test_db.database().await;
    let open = async |count| {
        eventually(&format!("{count} streams are open"), || async { cursors(&database).await == count })
            .await;
    };
    let (holder, waiter) = (test_db.locks().await, test_db.locks().await);
    holder.mutex("one").acquire().await.unwrap().release().await.unwrap();
    let (one, other) =
        (holder.mutex("one").acquire().await.unwrap(), holder.rw_lock("other").write().await.unwrap());
    assert!(waiter.mutex("one").try_acquire().await.unwrap().is_none());
    assert_eq!(cursors(&database).await, 0, "there is no waiter");

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
    assert_eq!(cursors(&database).await, 1, "one per process");

    one.release().await.unwrap();
    let one = within("the waiter is granted", first).await.unwrap();
    other.release().await.unwrap();
    drop(within("the reader is granted", reader).await.unwrap());
    open(0).await;
    one.release().await.unwrap();

    // Cancelled waits, and waits of a dropped engine, leave none behind either.
    let one = holder.mutex("one").acquire().await.unwrap();
    let gone = test_db.locks().await;
    let cancelled = [waits(&waiter), waits(&gone)];
    open(2).await;
    drop(gone);
    cancelled.iter().for_each(tokio::task::JoinHandle::abort);
    open(0).await;
    one.release().await.unwrap();
}

/// Without change streams waiters poll, and the capabilities say so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_standalone_server_waiters_poll() {
    let test_db = TestDatabase::on_standalone();
    let (holder, waiter) = (test_db.locks().await, test_db.locks().await);
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
        within("the waiter is granted", waiting).await.unwrap().release().await.unwrap();
    }
}
