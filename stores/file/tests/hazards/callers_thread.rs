//! Hazard: a free mutex is granted in the calling thread, with what the process remembers about the folder, and that is wrong, or
//! other tasks suffer.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use distlock_core::store::{Query, SessionStore, Store};
use distlock_file::FileStore;
use futures_util::FutureExt;
use tokio_util::sync::CancellationToken;

use crate::agent::{Agent, spell};
use crate::support::{LONG, acquire, block_on, lock_file, mutex, open, release, tree, try_once, until};

/// Cycles until the process knows the folder of the mutexes.
async fn warm_up(store: &FileStore) {
    for _ in 0..3 {
        let claim = mutex("x");
        let hold = acquire(store, &claim).await;
        release(store, &claim, &hold).await;
    }
}

fn replace(dir: &Path) {
    let path = lock_file(dir);
    fs::write(path.with_extension("copy"), fs::read(&path).unwrap()).unwrap();
    fs::rename(path.with_extension("copy"), path).unwrap();
}

fn remove(dir: &Path) {
    fs::remove_file(lock_file(dir)).unwrap();
}

fn move_folder(dir: &Path) {
    fs::rename(dir.join("mutex"), dir.join("away")).unwrap();
}

fn replace_folder(dir: &Path) {
    move_folder(dir);
    fs::create_dir(dir.join("mutex")).unwrap();
    // The file of the old folder is still at hand, with its tokens.
    fs::copy(dir.join("away/x.lock"), dir.join("mutex/x.lock")).unwrap();
}

fn remove_folder(dir: &Path) {
    fs::remove_dir_all(dir.join("mutex")).unwrap();
}

const CHANGES: [fn(&Path); 5] = [replace, remove, move_folder, replace_folder, remove_folder];

#[tokio::test]
async fn a_file_or_folder_replaced_between_two_cycles_does_not_admit_two_holders() {
    for change in CHANGES {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).await;
        warm_up(&store).await;
        change(dir.path());
        let mut other = Agent::start(dir.path());
        let (token, _) = other.acquire(1, &spell(distlock_core::Kind::Mutex, "x", 1, 1));
        assert!(try_once(&store, &mutex("x")).await.unwrap().is_none(), "an attempt");
        let wanted = mutex("x");
        let mut waiting = Box::pin(acquire(&store, &wanted));
        let early = tokio::time::timeout(Duration::from_millis(100), &mut waiting).await;
        assert!(early.is_err(), "a waiter");
        other.release(1);
        assert!(waiting.await.token.get() > token);
    }
}

#[tokio::test]
async fn a_holder_in_a_folder_that_was_moved_away_does_not_make_a_free_lock_look_held() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    warm_up(&store).await;
    let mut other = Agent::start(dir.path());
    let (token, _) = other.acquire(1, &spell(distlock_core::Kind::Mutex, "x", 1, 1));
    move_folder(dir.path());
    let hold = try_once(&store, &mutex("x")).await.unwrap();
    assert!(hold.is_some_and(|hold| hold.token.get() > token));
}

#[tokio::test]
async fn a_file_removed_from_a_folder_that_was_made_anew_is_detected_before_the_next_tick() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    for round in 0..3 {
        let claim = mutex("x");
        let hold = acquire(&store, &claim).await;
        // Longer than it takes for the folder to be watched.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let start = Instant::now();
        if round == 1 {
            move_folder(dir.path());
        } else {
            remove_folder(dir.path());
        }
        tokio::time::timeout(LONG, hold.session.wait_for_end()).await.expect("the loss was not detected");
        // The tick comes every five seconds.
        assert!(start.elapsed() < Duration::from_secs(2), "{:?} in round {round}", start.elapsed());
        release(&store, &claim, &hold).await;
    }
}

#[tokio::test]
async fn only_the_holder_of_the_removed_file_loses_its_lock() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let claims: Vec<_> = (0..200).map(|number| mutex(&format!("Name {number}"))).collect();
    let mut holds = Vec::new();
    for claim in &claims {
        holds.push(acquire(&store, claim).await);
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    fs::remove_file(dir.path().join("mutex/%4eame%207.lock")).unwrap();
    tokio::time::timeout(Duration::from_secs(2), holds[7].session.wait_for_end())
        .await
        .expect("not detected");
    let lost = holds.iter().filter(|hold| hold.session.ended().is_some()).count();
    assert_eq!(lost, 1);
}

#[test]
fn a_task_that_cycles_does_not_keep_its_thread_from_other_tasks() {
    /// A small multiple of what the store grants in a row.
    const MOST: usize = 64;
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let store = open(dir.path()).await;
        warm_up(&store).await;
        let done = Arc::new(AtomicUsize::new(0));
        let cycles = tokio::spawn({
            let (store, done) = (store.clone(), Arc::clone(&done));
            async move {
                loop {
                    let claim = mutex("x");
                    let hold = acquire(&store, &claim).await;
                    release(&store, &claim, &hold).await;
                    done.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
        let mut before = 0;
        for turn in 0..100 {
            tokio::task::yield_now().await;
            let now = done.load(Ordering::SeqCst);
            assert!(now - before <= MOST, "{} cycles before turn {turn}", now - before);
            before = now;
        }
        cycles.abort();
        assert!(before > 0, "it did not cycle");
    });
}

#[tokio::test]
async fn a_free_mutex_that_was_used_before_needs_no_other_thread() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    warm_up(&store).await;
    let never = CancellationToken::new();
    let mut at_once = 0;
    for _ in 0..100 {
        let claim = mutex("x");
        let hold = match store.acquire(&claim, &never).now_or_never() {
            Some(granted) => {
                at_once += 1;
                granted.unwrap().unwrap()
            }
            // It lets other tasks run from time to time, and waits for the disk once a second.
            None => acquire(&store, &claim).await,
        };
        release(&store, &claim, &hold).await;
    }
    assert!(at_once >= 60, "{at_once} of 100 without another thread");
}

/// The file of a waiter is removed after its grant, by a thread that is kept from it here.
#[test]
fn a_waiter_that_was_granted_is_not_shown_as_waiter_and_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let busy = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .max_blocking_threads(1)
        .enable_time()
        .build()
        .unwrap();
    let store = busy.block_on(async {
        let store = open(dir.path()).await;
        warm_up(&store).await;
        store
    });
    block_on(async {
        let other = open(dir.path()).await;
        let held = mutex("x");
        let hold = acquire(&other, &held).await;
        let wanted = mutex("x");
        let waiting = busy.spawn({
            let (store, wanted) = (store.clone(), wanted.clone());
            async move { acquire(&store, &wanted).await }
        });
        let has_waiter_file = || tree(dir.path()).iter().any(|path| path.starts_with("waiting"));
        let waits = async || other.inspect(&Query::named("x")).await.unwrap()[0].waiters.len() == 1;
        until("it waits", waits).await;
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let kept_busy = busy.spawn_blocking(move || ended.recv_timeout(Duration::from_secs(2)));
        release(&other, &held, &hold).await;
        let granted = waiting.await.unwrap();
        let shown = other.inspect(&Query::named("x")).await.unwrap();
        assert_eq!((shown[0].holders.len(), shown[0].waiters.len()), (1, 0));
        let _ = end.send(());
        let _ = kept_busy.await;
        release(&store, &wanted, &granted).await;
        until("its file is removed", async || !has_waiter_file()).await;
    });
}

/// The watcher's thread looks after the holds too.
#[test]
fn a_store_that_is_dropped_frees_its_locks_at_once() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let other = open(dir.path()).await;
        for _ in 0..20 {
            let store = open(dir.path()).await;
            acquire(&store, &mutex("x")).await;
            drop(store);
            let claim = mutex("x");
            let hold = try_once(&other, &claim).await.unwrap().expect("still held");
            release(&other, &claim, &hold).await;
        }
    });
}
