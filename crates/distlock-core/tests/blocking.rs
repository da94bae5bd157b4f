//! The blocking API: for threads without a runtime.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use distlock_core::memory::MemoryStore;
use distlock_core::store::{Backend, Lazy, Query};
use distlock_core::{CancellationToken, ErrorKind, Kind, LossReason, Options, Request, blocking};

const MS: Duration = Duration::from_millis(1);

fn open(store: &MemoryStore) -> blocking::Locks {
    open_for(store, 300 * MS)
}

fn open_for(store: &MemoryStore, expiry: Duration) -> blocking::Locks {
    let options = Options::new().expiry(expiry).unwrap();
    let store = store.clone();
    blocking::Locks::open_with(async { Ok(Backend::lease(store)) }, options).unwrap()
}

#[test]
fn threads_exclude_each_other_and_locks_outlive_their_expiry() {
    let store = MemoryStore::new();
    let inside = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let locks = open(&store);
                for _ in 0..25 {
                    let guard = locks.mutex("a").acquire().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    std::thread::yield_now();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.release().unwrap();
                }
            });
        }
    });
    // Long enough for a busy machine on which a thread may not run for half a second.
    let locks = open_for(&store, 2000 * MS);
    let guard = locks.mutex("long").acquire().unwrap();
    assert_eq!(guard.wait_lost(3000 * MS).unwrap(), None, "it was renewed meanwhile");
    assert!(!guard.is_lost() && guard.time_left().is_some());
}

#[test]
fn a_dropped_guard_is_released_before_the_drop_returns() {
    let store = MemoryStore::new();
    let (ours, theirs) = (open(&store), open(&store));
    for _ in 0..20 {
        drop(ours.mutex("a").acquire().unwrap());
        drop(theirs.mutex("a").try_acquire().unwrap().expect("free"));
    }
}

#[test]
fn a_wait_is_cancelled_from_another_thread_and_leaves_nothing() {
    let store = MemoryStore::new();
    let (ours, theirs) = (open_for(&store, 60_000 * MS), open_for(&store, 60_000 * MS));
    let held = theirs.mutex("a").acquire().unwrap();
    let permits = theirs.semaphore("s", 2).acquire_many(2).unwrap();
    let stop = CancellationToken::new();
    let locks = ours.cancelled_by(&stop);
    let waiting: Vec<std::thread::JoinHandle<ErrorKind>> = vec![
        std::thread::spawn({
            let locks = locks.clone();
            move || locks.mutex("a").acquire().unwrap_err().kind()
        }),
        std::thread::spawn({
            let locks = locks.clone();
            move || locks.acquire_all(["a", "b"], None).unwrap_err().kind()
        }),
        std::thread::spawn({
            let waiter = ours.semaphore("s", 2).cancelled_by(&stop);
            move || waiter.acquire().unwrap_err().kind()
        }),
    ];
    while theirs.inspect(&Query::named("s")).unwrap()[0].waiters.is_empty() {
        std::thread::yield_now();
    }
    stop.cancel();
    for thread in waiting {
        assert_eq!(thread.join().unwrap(), ErrorKind::Cancelled);
    }
    // A new wait ends at once, and what is free is granted nevertheless.
    assert_eq!(locks.mutex("a").acquire().unwrap_err().kind(), ErrorKind::Cancelled);
    assert!(ours.mutex("c").try_acquire().unwrap().is_some(), "the others are not cancelled");
    while !theirs.inspect(&Query::named("s")).unwrap()[0].waiters.is_empty() {
        std::thread::yield_now();
    }
    drop((held, permits));
    assert!(theirs.mutex("b").try_acquire().unwrap().is_some(), "acquire_all left nothing");
}

#[test]
fn work_is_told_of_the_loss_and_its_result_does_not_count() {
    let store = MemoryStore::new();
    let (ours, theirs) = (open(&store), open(&store));
    let guard = ours.mutex("a").acquire().unwrap();
    assert_eq!(guard.run(|_| 42).unwrap(), 42);
    guard.renew().unwrap();
    let error = guard.run(|lost| {
        theirs.break_lock(Kind::Mutex, "a").unwrap();
        while !lost.is_cancelled() {
            std::thread::yield_now();
        }
    });
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(error.to_string().contains("mutex \"a\""), "{error}");
    let begun = AtomicU32::new(0);
    assert!(guard.run(|_| begun.fetch_add(1, Ordering::SeqCst)).is_err());
    assert_eq!(begun.load(Ordering::SeqCst), 0, "work under a lost lock is not begun");
    assert_eq!(guard.renew().unwrap_err().kind(), ErrorKind::Lost);
}

#[test]
fn an_attempt_with_a_limit_gives_none_and_reads_need_no_lock() {
    let store = MemoryStore::new();
    let (ours, theirs) = (open(&store), open(&store));
    ours.ping().unwrap();
    let (mutex, gpu, page) = (theirs.mutex("a"), theirs.semaphore("gpu", 4), theirs.rw_lock("page"));
    assert!(mutex.holder().unwrap().is_none() && gpu.available().unwrap() == 4);
    let held =
        ours.acquire_all([Request::mutex("a"), Request::permits("gpu", 4, 4), Request::read("page")], None);
    let held = held.unwrap();
    assert_eq!(mutex.holder().unwrap().unwrap().token, Some(held.token("a").unwrap()));
    assert!(held.token("b").is_err() && held.renew().is_ok());
    assert_eq!(
        (gpu.available().unwrap(), gpu.holders().unwrap().len(), page.holders().unwrap().len()),
        (0, 1, 1)
    );
    assert!(mutex.try_acquire_within(MS).unwrap().is_none());
    assert!(gpu.try_acquire_many_within(1, MS).unwrap().is_none());
    assert!(page.try_write_within(MS).unwrap().is_none());
    assert!(page.try_read_within(1000 * MS).unwrap().is_some());
    assert!(theirs.try_acquire_all(["a", "b"], Some(MS)).unwrap().is_none());
    assert!(theirs.try_acquire_all(["b"], None).unwrap().is_some());
}

#[test]
fn locks_that_connect_at_their_first_use_work_without_a_runtime_too() {
    let store = MemoryStore::new();
    let shared = store.clone();
    let lazy = Lazy::new("memory:***", Options::new(), move || {
        let store = shared.clone();
        Box::pin(async move { Ok(Backend::lease(store)) })
    });
    let locks = blocking::Locks::open(std::future::ready(Ok(lazy))).unwrap();
    assert_eq!(store.stats().requests(), 0);
    locks.mutex("a").acquire().unwrap().release().unwrap();
}

#[test]
fn every_primitive_has_a_blocking_version() {
    let store = MemoryStore::new();
    let (ours, theirs) = (open(&store), open(&store));
    let read = ours.rw_lock("r").read().unwrap();
    drop(theirs.rw_lock("r").try_read().unwrap().unwrap());
    assert!(theirs.rw_lock("r").try_write().unwrap().is_none());
    assert_eq!(theirs.rw_lock("r").write_within(20 * MS).unwrap_err().kind(), ErrorKind::Timeout);
    read.release().unwrap();
    let permits = ours.semaphore("s", 3).acquire_many(2).unwrap();
    assert!(theirs.semaphore("s", 3).try_acquire_many(2).unwrap().is_none());
    let begun = Instant::now();
    let error = theirs.semaphore("s", 3).acquire_many_within(2, 30 * MS).unwrap_err();
    assert!(error.kind() == ErrorKind::Timeout && begun.elapsed() >= 30 * MS);
    permits.release().unwrap();
    let fair = ours.mutex("f").fair().acquire().unwrap();
    assert!(theirs.mutex("f").try_acquire().unwrap().is_none());
    assert_eq!(theirs.inspect(&Query::named("f")).unwrap().len(), 1);
    theirs.break_lock(Kind::Mutex, "f").unwrap();
    assert_eq!(fair.wait_lost(Duration::from_secs(5)).unwrap(), Some(LossReason::NotYours));
    let all =
        ours.acquire_all([Request::mutex("x"), Request::read("y")], Some(Duration::from_secs(1))).unwrap();
    assert!(all.guards().len() == 2 && !all.is_lost());
    all.release().unwrap();
    ours.shutdown().unwrap();
    assert_eq!(ours.mutex("a").acquire().unwrap_err().kind(), ErrorKind::ShutDown);
}

#[test]
fn inside_an_async_runtime_a_call_is_refused_and_does_not_panic() {
    let store = MemoryStore::new();
    let locks = open(&store);
    let guard = locks.mutex("held").acquire().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        assert_eq!(locks.mutex("a").acquire().unwrap_err().kind(), ErrorKind::InvalidInput);
        drop(guard);
        drop(locks);
    });
    let again = open(&store);
    assert!(again.mutex("held").acquire_within(Duration::from_secs(5)).is_ok());
}
