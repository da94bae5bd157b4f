//! A dead process that still holds, or still waits.

use std::time::Duration;

use distlock_core::store::{Query, SessionStore, Store};
use distlock_core::{Kind, WRITER_WEIGHT};
use distlock_file::FileStore;
use tokio_util::sync::CancellationToken;

use crate::agent::{Agent, spell};
use crate::support::{acquire, claim, median, mutex, release, try_once, until};

/// From the kill of a holder to the grant in another process that waits.
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
            // Long enough for the holder to watch its file. The kernel takes its time to end a process that watches
            // files, and must not do so before it frees the lock.
            std::thread::sleep(Duration::from_millis(300));
        }
        let killed = holder.kill();
        let (next, granted) = waiter.granted(2);
        assert_eq!(next, token + 1);
        times.push(Duration::from_nanos(granted - killed));
        last = next;
    }
    times
}

/// Waits until somebody waits, as everybody can see.
fn until_waiting(dir: &std::path::Path, kind: Kind, count: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let store = FileStore::open(dir).unwrap();
    runtime.block_on(until("enough wait", async || {
        let records = store.inspect(&Query::default().with_kind(kind)).await.unwrap();
        records.iter().map(|record| record.waiters.len()).sum::<usize>() == count
    }));
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
fn a_killed_waiter_does_not_stop_those_behind_it() {
    let dir = tempfile::tempdir().unwrap();
    let lock = spell(Kind::Semaphore, "x", 1, 1);
    let mut agents: Vec<Agent> = (0..4).map(|_| Agent::start(dir.path())).collect();
    let (token, _) = agents[0].acquire(1, &lock);
    for (at, agent) in agents.iter_mut().enumerate().skip(1) {
        agent.tell(&format!("acquire 1 {lock}"));
        until_waiting(dir.path(), Kind::Semaphore, at);
    }
    // The first of the queue and the one in the middle.
    agents[1].kill();
    agents[2].kill();
    until_waiting(dir.path(), Kind::Semaphore, 1);
    agents[0].release(1);
    assert_eq!(agents[3].granted(1).0, token + 1);
    agents[3].release(1);
    assert!(slots(dir.path()).is_empty(), "{:?}", slots(dir.path()));
}

fn slots(dir: &std::path::Path) -> Vec<String> {
    let tree = crate::support::tree(dir).into_iter();
    tree.filter(|path| path.contains("/hold/") || path.contains("/queue/")).collect()
}

#[tokio::test]
async fn a_killed_waiter_for_a_mutex_is_not_shown_and_its_file_goes() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::open(dir.path()).unwrap();
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
fn a_runtime_that_ends_keeps_no_lock_of_its_waiters() {
    let dir = tempfile::tempdir().unwrap();
    let other = FileStore::open(dir.path()).unwrap();
    for kind in [Kind::Mutex, Kind::RwLock] {
        let (held, wanted) =
            (claim(kind, "x", WRITER_WEIGHT, WRITER_WEIGHT), claim(kind, "x", 1, WRITER_WEIGHT));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
        let hold = runtime.block_on(acquire(&other, &held));
        let store = FileStore::open(dir.path()).unwrap();
        runtime.spawn(async move { store.acquire(&wanted, &CancellationToken::new()).await.map(drop) });
        until_waiting(dir.path(), kind, 1);
        drop(runtime);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            until_waiting_async(&other, kind).await;
            release(&other, &held, &hold).await;
            let again = claim(kind, "x", WRITER_WEIGHT, WRITER_WEIGHT);
            let hold = try_once(&other, &again).await.unwrap().expect("nobody else specs it");
            release(&other, &again, &hold).await;
        });
    }
}

async fn until_waiting_async(store: &FileStore, kind: Kind) {
    until("nobody waits", async || {
        let records = store.inspect(&Query::default().with_kind(kind)).await.unwrap();
        records.iter().all(|record| record.waiters.is_empty())
    })
    .await;
}

#[tokio::test]
async fn a_crash_between_the_count_and_the_grant_never_takes_a_token_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut last = 0;
    for round in 0..20 {
        let mut agent = Agent::start(dir.path());
        // Killed somewhere on the way: sometimes before, sometimes after the count.
        agent.tell(&format!("acquire 1 {}", spell(Kind::Mutex, "x", 1, 1)));
        if round % 2 == 0 {
            agent.granted(1);
        }
        agent.kill();
        let store = FileStore::open(dir.path()).unwrap();
        let claim = mutex("x");
        let hold = acquire(&store, &claim).await;
        assert!(hold.token.get() > last, "{} after {last}", hold.token);
        last = hold.token.get();
        release(&store, &claim, &hold).await;
    }
}
