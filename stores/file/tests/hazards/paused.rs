//! Hazard: a paused process stalls others.

use std::time::{Duration, Instant};

use distlock_core::store::SessionStore;
use distlock_core::{ErrorKind, Kind};
use rustix::process::Signal;
use tokio_util::sync::CancellationToken;

use crate::agent::{Agent, spell};
use crate::support::{LONG, acquire, claim, mutex, open, release, tree, try_once, until};

/// A process that is paused while it has the lock of the pool `x`.
fn pause_with_pool_lock(dir: &std::path::Path) -> Agent {
    let mut agent = Agent::start(dir);
    agent.ask(&format!("lock {}", dir.join("semaphore/x/gate").display()), "locked");
    agent.signal(Signal::STOP);
    agent
}

#[tokio::test]
async fn a_process_paused_with_the_pool_lock_stalls_others_only_until_they_withdraw() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let (held, wanted) = (claim(Kind::Semaphore, "x", 1, 2), claim(Kind::Semaphore, "x", 1, 2));
    let hold = acquire(&store, &held).await;
    let before = tree(dir.path());
    let paused = pause_with_pool_lock(dir.path());

    let withdraw = CancellationToken::new();
    let waiting = {
        let (store, wanted, withdraw) = (store.clone(), wanted.clone(), withdraw.clone());
        tokio::spawn(async move { store.acquire(&wanted, &withdraw).await })
    };
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!waiting.is_finished());
    withdraw.cancel();
    let answer = tokio::time::timeout(LONG, waiting).await.unwrap().unwrap();
    assert!(answer.unwrap().is_none());
    assert_eq!(tree(dir.path()), before);

    // A single attempt gives up by itself, and does not report contention.
    let error = try_once(&store, &wanted).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("gate") && error.advice().is_some(), "{error}");

    // A release does not need the pool lock.
    release(&store, &held, &hold).await;
    assert!(!tree(dir.path()).iter().any(|path| path.contains("/hold/")));

    paused.signal(Signal::CONT);
    drop(paused);
    let hold = acquire(&store, &wanted).await;
    release(&store, &wanted, &hold).await;
}

#[tokio::test]
async fn a_waiter_is_served_once_a_paused_process_frees_the_pool_lock() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let (held, wanted) = (claim(Kind::Semaphore, "x", 1, 1), claim(Kind::Semaphore, "x", 1, 1));
    let hold = acquire(&store, &held).await;
    let waiting = {
        let (store, wanted) = (store.clone(), wanted.clone());
        tokio::spawn(async move { acquire(&store, &wanted).await })
    };
    until("it waits", async || tree(dir.path()).iter().any(|path| path.contains("/queue/"))).await;
    let mut paused = pause_with_pool_lock(dir.path());
    release(&store, &held, &hold).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!waiting.is_finished(), "it ignored the pool lock");
    paused.kill();
    let hold = waiting.await.unwrap();
    release(&store, &wanted, &hold).await;
}

#[tokio::test]
async fn a_paused_waiter_of_a_mutex_does_not_keep_others_from_being_woken() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let held = mutex("x");
    let hold = acquire(&store, &held).await;
    let mut first = Agent::start(dir.path());
    first.tell(&format!("acquire 1 {}", spell(Kind::Mutex, "x", 1, 1)));
    let waiting = async |count: usize| {
        until("enough wait", async || {
            tree(dir.path()).iter().filter(|path| path.matches('/').count() == 2).count() == count
        })
        .await;
    };
    waiting(1).await;
    first.signal(Signal::STOP);
    let mut second = Agent::start(dir.path());
    second.tell(&format!("acquire 1 {}", spell(Kind::Mutex, "x", 1, 1)));
    waiting(2).await;
    release(&store, &held, &hold).await;
    let start = Instant::now();
    second.granted(1);
    assert!(start.elapsed() < LONG);
}

#[tokio::test]
async fn a_paused_holder_keeps_its_lock() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    for kind in [Kind::Mutex, Kind::RwLock] {
        let mut agent = Agent::start(dir.path());
        agent.acquire(1, &spell(kind, "x", 1, 1));
        agent.signal(Signal::STOP);
        assert!(try_once(&store, &claim(kind, "x", 1, 1)).await.unwrap().is_none());
        agent.signal(Signal::CONT);
        agent.release(1);
        assert!(try_once(&store, &claim(kind, "x", 1, 1)).await.unwrap().is_some());
    }
}
