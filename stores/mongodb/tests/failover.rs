//! Fail-over: the primary of three members is killed or stalled while locks are held and waited for. No two clients hold
//! at once, tokens rise, holders keep their locks, and waiters are served.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use common::{MS, SECOND, TestDatabase, eventually, expiring, until_waiting};
use distlock_core::store::Query;
use distlock_core::{ErrorKind, Locks, Options};
use distlock_testkit::servers::{MongoReplicaSet, MongoServer};
use tokio::sync::{Mutex, MutexGuard};

/// One replica set for all tests. One test at a time: each stops a member and restores it.
async fn three_nodes() -> (&'static MongoReplicaSet, MutexGuard<'static, ()>) {
    static SET: OnceLock<MongoReplicaSet> = OnceLock::new();
    static EXCLUSIVE: Mutex<()> = Mutex::const_new(());
    let exclusive = EXCLUSIVE.lock().await;
    let set = SET.get_or_init(|| MongoReplicaSet::start(3));
    set.wait_healthy();
    (set, exclusive)
}

/// How long an election may take on a busy machine, until the driver knows its result.
const ELECTION: Duration = Duration::from_secs(30);

/// The holder keeps its locks, the waiter is served, and contenders continue.
async fn survive_failover(
    set: &MongoReplicaSet,
    stop: impl Fn(&MongoServer),
    restore: impl Fn(&MongoServer),
) {
    let test_db = TestDatabase::on(&set.url());
    let (holder, waiter, witness) = (test_db.locks().await, test_db.locks().await, test_db.locks().await);
    let held = holder.mutex("held").acquire().await.unwrap();
    let read = holder.rw_lock("held").read().await.unwrap();
    let waiting = {
        let waiter = waiter.clone();
        tokio::spawn(async move { waiter.mutex("held").acquire().timeout(2 * ELECTION).await.unwrap() })
    };
    until_waiting(&witness, "held", 1).await;

    let contest = Contest::start(&test_db, 3).await;
    eventually("the contest has started", || async { contest.grants() > 10 }).await;

    let old = set.primary();
    stop(old);
    let before = contest.grants();
    let started = Instant::now();
    while contest.grants() < before + 20 {
        assert!(started.elapsed() < ELECTION, "no grants after the primary was lost");
        tokio::time::sleep(20 * MS).await;
    }
    println!("grants continue {:?} after the primary was lost", started.elapsed());
    assert!(!held.is_lost() && !read.is_lost(), "a fail-over cost the holder its lock");
    assert!(!waiting.is_finished(), "two holders");
    let token = held.token();
    release_in_election(held.release()).await;
    let next = tokio::time::timeout(ELECTION, waiting).await.expect("the waiter is granted").unwrap();
    assert!(next.token() > token);
    release_in_election(next.release()).await;
    release_in_election(read.release()).await;

    restore(old);
    let before = contest.grants();
    set.wait_healthy();
    eventually("the contest continues after the old primary is back", || async {
        contest.grants() > before + 5
    })
    .await;
    contest.end().await;
    eventually("nothing is left", || async {
        witness.inspect(&Query::default()).await.is_ok_and(|records| records.is_empty())
    })
    .await;
}

/// A release during an election may have an unknown outcome; the engine completes it.
async fn release_in_election(release: impl Future<Output = Result<(), distlock_core::ReleaseError>>) {
    match release.await {
        Ok(()) | Err(distlock_core::ReleaseError::Unknown { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

/// Engines that contend for one mutex.
struct Contest {
    stop: Arc<AtomicBool>,
    granted: Arc<AtomicU32>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Contest {
    async fn start(test_db: &TestDatabase, contenders: u32) -> Self {
        let (stop, granted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let (inside, last) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU64::new(0)));
        let mut tasks = Vec::new();
        for _ in 0..contenders {
            let locks = test_db.locks_with(patient()).await;
            let (stop, granted, inside, last) = (stop.clone(), granted.clone(), inside.clone(), last.clone());
            tasks.push(tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    acquire_once(&locks, &inside, &last, &granted).await;
                    tokio::time::sleep(5 * MS).await;
                }
            }));
        }
        Contest { stop, granted, tasks }
    }

    fn grants(&self) -> u32 {
        self.granted.load(Ordering::SeqCst)
    }

    async fn end(self) {
        self.stop.store(true, Ordering::SeqCst);
        for task in self.tasks {
            tokio::time::timeout(ELECTION, task).await.expect("an end of the contest").unwrap();
        }
    }
}

fn patient() -> Options {
    expiring(60 * SECOND).request_timeout(2 * SECOND).unwrap()
}

async fn acquire_once(locks: &Locks, inside: &AtomicU32, last: &AtomicU64, granted: &AtomicU32) {
    let guard = match locks.mutex("contended").acquire().await {
        Ok(guard) => guard,
        // Expected during an election.
        Err(error) if error.kind() == ErrorKind::Unavailable => return tokio::time::sleep(50 * MS).await,
        Err(error) => panic!("{error}"),
    };
    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
    let token = guard.token().get();
    let before = last.swap(token, Ordering::SeqCst);
    assert!(token > before, "{token} after {before}");
    tokio::time::sleep(2 * MS).await;
    assert!(!guard.is_lost());
    inside.fetch_sub(1, Ordering::SeqCst);
    granted.fetch_add(1, Ordering::SeqCst);
    release_in_election(guard.release()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_survive_a_killed_primary() {
    let (set, _exclusive) = three_nodes().await;
    survive_failover(set, |primary| primary.kill(), |primary| primary.start_again()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_survive_a_stalled_primary() {
    let (set, _exclusive) = three_nodes().await;
    survive_failover(set, |primary| primary.pause(), |primary| primary.resume()).await;
}

/// Two of three members are stalled: a write that only the primary has is no grant, and is undone when they resume.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_without_a_majority_is_no_grant_and_leaves_nothing() {
    let (set, _exclusive) = three_nodes().await;
    let test_db = TestDatabase::on(&set.url());
    let locks = test_db.locks_with(Options::new().request_timeout(SECOND).unwrap()).await;
    locks.mutex("alone").acquire().await.unwrap().release().await.unwrap();
    let primary = set.primary().port();
    let others: Vec<_> = set.members().iter().filter(|member| member.port() != primary).collect();
    others.iter().for_each(|member| member.pause());
    let error = locks.mutex("alone").acquire().timeout(SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(locks.semaphore("alone", 1).acquire().timeout(SECOND).await.is_err());
    others.iter().for_each(|member| member.resume());
    set.wait_healthy();
    let other = test_db.locks().await;
    eventually("another client can acquire both", || async {
        let mutex = other.mutex("alone").try_acquire().await.ok().flatten();
        let permit = other.semaphore("alone", 1).try_acquire().await.ok().flatten();
        mutex.is_some() && permit.is_some()
    })
    .await;
}
