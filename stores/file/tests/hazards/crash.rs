//! Hazard: a dead process still holds, or still waits.

use std::time::Duration;

use distlock_core::store::{Query, SessionStore, Store};
use distlock_core::{Kind, WRITER_WEIGHT};
use distlock_file::FileStore;
use tokio_util::sync::CancellationToken;

use crate::agent::{Agent, spell};
use crate::support::{acquire, block_on, claim, median, mutex, open, release, try_once, until};

/// From the kill of a holder to the grant of a waiter in another process.
fn after_kill(kind: Kind) -> Vec<Duration> {
    let dir = tempfile::tempdir().unwrap();
    let lock = spell(kind, "x", 1, 1);
    let mut times = Vec::new();
    let mut last = 0;
    for round in 0..15 {
        let (mut holder, mut waiter) = (Agent::start(dir.path()), Agent::start(dir.path()));
        let (token, _) = holder.acquire(1, &lock);
        assert!(token > last);
        waiter.tell(&format!("acquire 2 {lock}"));
        until_waiting(dir.path(), kind, 1);
        if round % 3 == 0 {
            // Long enough for the holder to watch its file: the kernel needs time to end a process that watches files, and
            // must free the lock before.
            std::thread::sleep(Duration::from_millis(300));
        }
        let killed = holder.kill();
        let (next, granted) = waiter.granted(2);
        assert!(next > token, "{next} after {token}");
        times.push(Duration::from_nanos(granted - killed));
        last = next;
    }
    times
}

/// Waits until an inspection shows so many waiters.
fn until_waiting(dir: &std::path::Path, kind: Kind, count: usize) {
    block_on(async {
        let store = open(dir).await;
        until("enough wait", async || waiters(&store, kind).await == count).await;
    });
}

#[test]
fn a_killed_holder_of_a_mutex_does_not_keep_it() {
    let times = after_kill(Kind::Mutex);
    println!(
        "mutex: from kill -9 to the grant of a waiter: median {:?}, all {times:?}",
        median(times.clone())
    );
    assert!(median(times) < Duration::from_millis(50));
}

#[test]
fn a_killed_holder_of_a_pool_does_not_keep_it() {
    let times = after_kill(Kind::Semaphore);
    println!(
        "pool: from kill -9 to the grant of a waiter: median {:?}, all {times:?}",
        median(times.clone())
    );
    assert!(median(times) < Duration::from_millis(50));
}

#[test]
fn a_killed_waiter_does_not_block_the_waiters_behind_it() {
    let dir = tempfile::tempdir().unwrap();
    let lock = spell(Kind::Semaphore, "x", 1, 1);
    let mut agents: Vec<Agent> = (0..4).map(|_| Agent::start(dir.path())).collect();
    let (token, _) = agents[0].acquire(1, &lock);
    for (at, agent) in agents.iter_mut().enumerate().skip(1) {
        agent.tell(&format!("acquire 1 {lock}"));
        until_waiting(dir.path(), Kind::Semaphore, at);
    }
    // The queue head and the waiter behind it.
    agents[1].kill();
    agents[2].kill();
    until_waiting(dir.path(), Kind::Semaphore, 1);
    agents[0].release(1);
    assert!(agents[3].granted(1).0 > token);
    agents[3].release(1);
    assert!(slots(dir.path()).is_empty(), "{:?}", slots(dir.path()));
}

fn slots(dir: &std::path::Path) -> Vec<String> {
    let tree = crate::support::tree(dir).into_iter();
    tree.filter(|path| path.contains("/hold/") || path.contains("/queue/")).collect()
}

#[tokio::test]
async fn a_killed_waiter_of_a_mutex_is_not_shown_and_its_file_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let held = mutex("x");
    acquire(&store, &held).await;
    let before = crate::support::tree(dir.path());
    let mut agent = Agent::start(dir.path());
    agent.tell(&format!("acquire 1 {}", spell(Kind::Mutex, "x", 1, 1)));
    let waiters = async || store.inspect(&Query::named("x")).await.unwrap()[0].waiters.clone();
    until("it waits", async || waiters().await.len() == 1).await;
    assert!(waiters().await[0].lock_id.label().ends_with(&format!(":{}", agent.pid())));
    agent.kill();
    assert!(waiters().await.is_empty());
    assert_eq!(crate::support::tree(dir.path()), before);
}

#[test]
fn a_runtime_that_ends_leaves_no_waiter_and_no_lock() {
    let dir = tempfile::tempdir().unwrap();
    let other = block_on(open(dir.path()));
    for kind in [Kind::Mutex, Kind::RwLock] {
        let (held, wanted) =
            (claim(kind, "x", WRITER_WEIGHT, WRITER_WEIGHT), claim(kind, "x", 1, WRITER_WEIGHT));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
        let hold = runtime.block_on(acquire(&other, &held));
        let store = runtime.block_on(open(dir.path()));
        runtime.spawn(async move { store.acquire(&wanted, &CancellationToken::new()).await.map(drop) });
        until_waiting(dir.path(), kind, 1);
        drop(runtime);
        block_on(async {
            until("no claim waits", async || waiters(&other, kind).await == 0).await;
            release(&other, &held, &hold).await;
            let again = claim(kind, "x", WRITER_WEIGHT, WRITER_WEIGHT);
            let hold = try_once(&other, &again).await.unwrap().expect("it is free");
            release(&other, &again, &hold).await;
        });
    }
}

async fn waiters(store: &FileStore, kind: Kind) -> usize {
    let records = store.inspect(&Query::default().with_kind(kind)).await.unwrap();
    records.iter().map(|record| record.waiters.len()).sum()
}

#[tokio::test]
async fn a_crash_between_count_and_grant_never_repeats_a_token() {
    let dir = tempfile::tempdir().unwrap();
    let mut last = 0;
    for round in 0..20 {
        let mut agent = Agent::start(dir.path());
        // Killed at some moment: sometimes before, sometimes after the token is counted.
        agent.tell(&format!("acquire 1 {}", spell(Kind::Mutex, "x", 1, 1)));
        if round % 2 == 0 {
            agent.granted(1);
        }
        agent.kill();
        let store = open(dir.path()).await;
        let claim = mutex("x");
        let hold = acquire(&store, &claim).await;
        assert!(hold.token.get() > last, "{} after {last}", hold.token);
        last = hold.token.get();
        release(&store, &claim, &hold).await;
    }
}
