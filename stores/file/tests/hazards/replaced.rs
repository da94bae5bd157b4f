//! Hazard: another program removes or replaces a lock file, and there are two holders, or a waiter waits for ever.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use distlock_core::store::{Claim, LossReason, SessionHold};
use distlock_core::{Kind, LockIds, Resource};
use distlock_file::{FileConfig, FileStore, Wakeups};

use crate::agent::{Agent, spell};
use crate::support::{LONG, acquire, claim, lock_file, median, mutex, open, release, tree, try_once, until};

async fn assert_lost(hold: &SessionHold) {
    tokio::time::timeout(LONG, hold.session.wait_for_end()).await.expect("the loss was not detected");
    let Some(LossReason::SessionEnded(reason)) = hold.session.ended() else {
        panic!("{:?}", hold.session.ended())
    };
    assert!(reason.contains("removed or replaced"), "{reason}");
}

fn remove(path: &Path) {
    fs::remove_file(path).unwrap();
}

fn replace(path: &Path) {
    fs::write(path.with_extension("copy"), fs::read(path).unwrap()).unwrap();
    fs::rename(path.with_extension("copy"), path).unwrap();
}

fn move_away(path: &Path) {
    fs::rename(path, path.with_extension("away")).unwrap();
}

fn move_folder(path: &Path) {
    let folder = path.parent().unwrap();
    fs::rename(folder, folder.with_extension("away")).unwrap();
}

#[tokio::test]
async fn the_holder_of_a_removed_or_replaced_lock_file_loses_it() {
    for wakeups in [Wakeups::Auto, Wakeups::Poll] {
        for (change, spares_others) in
            [(remove as fn(&Path), true), (replace, true), (move_away, true), (move_folder, false)]
        {
            let dir = tempfile::tempdir().unwrap();
            let store = FileStore::connect(FileConfig::new(dir.path()).wakeups(wakeups)).await.unwrap();
            let (held, other) = (mutex("x"), mutex("other"));
            let (hold, other_hold) = (acquire(&store, &held).await, acquire(&store, &other).await);
            change(&dir.path().join("mutex/x.lock"));
            assert_lost(&hold).await;
            assert!(!spares_others || other_hold.session.ended().is_none());
            // The token of the next holder is higher although the file is new.
            let next = mutex("x");
            let later = acquire(&store, &next).await;
            assert!(later.token > hold.token);
            release(&store, &held, &hold).await;
            assert!(
                try_once(&store, &mutex("x")).await.unwrap().is_none(),
                "releasing the old hold freed the new one"
            );
        }
    }
}

/// Of the lock ids of the first engine on a store only the numbers are kept. Those of the second engine have the same numbers.
#[tokio::test]
async fn each_holder_of_a_removed_lock_file_loses_it_whichever_engine_it_has() {
    for wakeups in [Wakeups::Auto, Wakeups::Poll] {
        let dir = tempfile::tempdir().unwrap();
        let store = FileStore::connect(FileConfig::new(dir.path()).wakeups(wakeups)).await.unwrap();
        let engines = [LockIds::new("one"), LockIds::new("one")];
        let mut holds = Vec::new();
        for n in 0..40 {
            for (engine, ids) in engines.iter().enumerate() {
                let name = format!("{engine}-{n}");
                let resource = Resource::new(Kind::Mutex, name.as_str()).unwrap();
                let claim = Claim::new(resource, ids.next(), Duration::from_secs(30));
                let hold = acquire(&store, &claim).await;
                holds.push((dir.path().join("mutex").join(format!("{name}.lock")), claim, hold));
            }
        }
        let (removed, kept): (Vec<_>, Vec<_>) = holds.iter().enumerate().partition(|(at, _)| at % 3 == 0);
        for (_, (path, ..)) in &removed {
            remove(path);
        }
        for (_, (.., hold)) in &removed {
            assert_lost(hold).await;
        }
        for (_, (_, claim, hold)) in &kept {
            assert!(hold.session.ended().is_none());
            // Still locked, and freed by its own lock id alone.
            assert!(try_once(&store, &mutex(claim.resource.name())).await.unwrap().is_none());
            release(&store, &mutex(claim.resource.name()), hold).await;
            assert!(try_once(&store, &mutex(claim.resource.name())).await.unwrap().is_none());
            release(&store, claim, hold).await;
            assert!(try_once(&store, &mutex(claim.resource.name())).await.unwrap().is_some());
        }
    }
}

#[tokio::test]
async fn a_removed_lock_file_is_detected_before_the_next_tick() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let (held, slot) = (mutex("x"), claim(Kind::Semaphore, "x", 1, 1));
    let (mutex, pool) = (acquire(&store, &held).await, acquire(&store, &slot).await);
    // Longer than it takes for a hold to be watched.
    tokio::time::sleep(Duration::from_millis(400)).await;
    let start = Instant::now();
    remove(&lock_file(dir.path()));
    assert_lost(&mutex).await;
    let first = start.elapsed();
    fs::remove_dir_all(dir.path().join("semaphore")).unwrap();
    assert_lost(&pool).await;
    println!("detected after {first:?}, and after {:?}", start.elapsed() - first);
    // The tick comes every five seconds.
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_base_folder_that_is_moved_away_is_detected_before_the_next_tick() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("base");
    let store = open(&base).await;
    let held = mutex("x");
    let hold = acquire(&store, &held).await;
    // Longer than it takes for a hold to be watched.
    tokio::time::sleep(Duration::from_millis(400)).await;
    let start = Instant::now();
    fs::rename(&base, dir.path().join("away")).unwrap();
    let next = acquire(&open(&base).await, &mutex("x")).await;
    assert_lost(&hold).await;
    // The tick comes every five seconds.
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert!(next.token > hold.token);
}

#[tokio::test]
async fn a_lock_file_removed_right_after_the_grant_is_lost_soon() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let mut times = Vec::new();
    for _ in 0..15 {
        let held = mutex("x");
        let hold = acquire(&store, &held).await;
        let start = Instant::now();
        remove(&lock_file(dir.path()));
        assert_lost(&hold).await;
        times.push(start.elapsed());
        release(&store, &held, &hold).await;
    }
    println!("detected after {:?}, all {times:?}", median(times.clone()));
    // There can be two holders until then.
    assert!(median(times.clone()) < Duration::from_millis(100), "{times:?}");
}

#[tokio::test]
async fn a_waiter_for_a_removed_or_replaced_lock_file_does_not_wait_for_ever() {
    for change in [remove, replace, move_away] {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).await;
        let mut holder = Agent::start(dir.path());
        let (token, _) = holder.acquire(1, &spell(Kind::Mutex, "x", 1, 1));
        let wanted = mutex("x");
        let waiting = {
            let (store, wanted) = (store.clone(), wanted.clone());
            tokio::spawn(async move { acquire(&store, &wanted).await })
        };
        until("it waits", async || tree(dir.path()).iter().any(|path| path.starts_with("waiting/"))).await;
        change(&lock_file(dir.path()));
        holder.wait_for("lost 1");
        let hold = waiting.await.unwrap();
        assert!(hold.token.get() > token);
        assert!(try_once(&store, &mutex("x")).await.unwrap().is_none());
    }
}

#[tokio::test]
async fn the_holder_of_a_removed_pool_loses_it_and_its_waiters_join_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let mut holder = Agent::start(dir.path());
    let (token, _) = holder.acquire(1, &spell(Kind::RwLock, "x", 1, 1));
    let wanted = claim(Kind::RwLock, "x", 1, 1);
    let waiting = {
        let (store, wanted) = (store.clone(), wanted.clone());
        tokio::spawn(async move { acquire(&store, &wanted).await })
    };
    until("it waits", async || tree(dir.path()).iter().any(|path| path.contains("/queue/"))).await;
    fs::remove_dir_all(dir.path().join("rwlock")).unwrap();
    holder.wait_for("lost 1");
    let hold = waiting.await.unwrap();
    assert!(hold.token.get() > token);
    holder.release(1);
    assert!(try_once(&store, &claim(Kind::RwLock, "x", 1, 1)).await.unwrap().is_none());
    assert!(hold.session.ended().is_none());
}

#[tokio::test]
async fn a_removed_gate_file_does_not_admit_too_many() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let first = acquire(&store, &claim(Kind::Semaphore, "x", 1, 2)).await;
    remove(&dir.path().join("semaphore/x/gate"));
    let second = acquire(&store, &claim(Kind::Semaphore, "x", 1, 2)).await;
    assert!(second.token > first.token);
    assert!(try_once(&store, &claim(Kind::Semaphore, "x", 1, 2)).await.unwrap().is_none());
    assert!(first.session.ended().is_none());
}

/// As a clean-up job of temporary files does.
#[test]
fn a_folder_that_is_removed_at_any_moment_is_created_again() {
    const TRIES: usize = 240;
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("locks");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let remover = scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                let _ = fs::remove_dir_all(&base);
                std::thread::sleep(Duration::from_micros(fastrand::u64(5_000..50_000)));
            }
        });
        let failed = crate::support::block_on(async {
            let store = open(&base).await;
            let mut failed = Vec::new();
            for round in 0..TRIES {
                let kind = [Kind::Mutex, Kind::RwLock, Kind::Semaphore][round % 3];
                let claim = claim(kind, "x", 1, 1);
                match try_once(&store, &claim).await {
                    Ok(Some(hold)) => release(&store, &claim, &hold).await,
                    Ok(None) => failed.push(format!("{kind}: held by another client")),
                    Err(error) => failed.push(format!("{error:#}")),
                }
            }
            failed
        });
        stop.store(true, std::sync::atomic::Ordering::SeqCst);
        remover.join().unwrap();
        assert!(failed.is_empty(), "{} of {TRIES} tries failed: {:?}", failed.len(), failed.first());
    });
}
