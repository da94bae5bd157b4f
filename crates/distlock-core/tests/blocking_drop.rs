//! Blocking guards and handles that are dropped where no runtime can be entered.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::cell::RefCell;
use std::time::{Duration, Instant};

use distlock_core::memory::MemoryStore;
use distlock_core::store::{Backend, Query, Store};
use distlock_core::{Options, blocking};

const MS: Duration = Duration::from_millis(1);

fn open(store: &MemoryStore) -> blocking::Locks {
    let store = store.clone();
    blocking::Locks::open_with(
        async { Ok(Backend::lease(store)) },
        Options::new().expiry(Duration::from_secs(600)).unwrap(),
    )
    .unwrap()
}

fn is_free(store: &MemoryStore, name: &str) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime
        .block_on(store.inspect(&Query::named(name)))
        .unwrap()
        .iter()
        .all(|record| record.holders.is_empty())
}

/// What a thread keeps until it ends.
#[derive(Default)]
struct Kept {
    guards: Vec<blocking::Guard>,
    set: Option<blocking::GuardSet>,
    locks: Option<blocking::Locks>,
    /// Runs last.
    at_the_end: Option<Box<dyn FnOnce()>>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.guards.clear();
        self.set = None;
        self.locks = None;
        if let Some(call) = self.at_the_end.take() {
            call();
        }
    }
}

thread_local! {
    static KEPT: RefCell<Kept> = RefCell::default();
}

/// Runs on a thread of its own. With `first`, the thread-local that keeps the guards exists before those of the runtime,
/// so that it is dropped after them. Returns when the thread has dropped all of them.
fn on_a_thread(first: bool, work: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            if first {
                KEPT.with(|kept| assert!(kept.borrow().guards.is_empty()));
            }
            work();
        });
        thread.join().unwrap();
    });
}

#[test]
fn a_guard_that_a_thread_local_drops_is_released_before_the_thread_has_ended() {
    for first in [true, false] {
        let store = MemoryStore::new();
        let locks = open(&store);
        on_a_thread(first, || {
            let guards = vec![
                locks.mutex("a").acquire().unwrap(),
                locks.mutex("b").fair().acquire().unwrap(),
                locks.rw_lock("c").read().unwrap(),
            ];
            let set = locks.acquire_all(["d", "e"], None).unwrap();
            KEPT.with(|kept| {
                kept.borrow_mut().guards = guards;
                kept.borrow_mut().set = Some(set);
            });
        });
        for name in ["a", "b", "c", "d", "e"] {
            assert!(is_free(&store, name), "{name} is held, first: {first}");
        }
        drop(locks.mutex("b").fair().try_acquire().unwrap().expect("the fair queue is free too"));
    }
}

#[test]
fn the_last_handle_may_be_dropped_by_a_thread_local() {
    for first in [true, false] {
        let store = MemoryStore::new();
        on_a_thread(first, || {
            let locks = open(&store);
            let guard = locks.mutex("a").acquire().unwrap();
            KEPT.with(|kept| {
                kept.borrow_mut().guards.push(guard);
                kept.borrow_mut().locks = Some(locks);
            });
        });
        assert!(is_free(&store, "a"), "first: {first}");
    }
}

#[test]
fn a_call_from_a_dropping_thread_local_is_refused_or_completed_and_never_panics() {
    for first in [true, false] {
        let store = MemoryStore::new();
        let locks = open(&store);
        on_a_thread(first, || {
            let guard = locks.mutex("a").acquire().unwrap();
            let locks = locks.clone();
            let at_the_end = move || {
                let _ = guard.release();
                drop(locks.mutex("b").try_acquire());
            };
            KEPT.with(|kept| kept.borrow_mut().at_the_end = Some(Box::new(at_the_end)));
        });
        let begun = Instant::now();
        while !(is_free(&store, "a") && is_free(&store, "b")) {
            assert!(begun.elapsed() < Duration::from_secs(20), "first: {first}");
            std::thread::sleep(MS);
        }
    }
}

#[test]
fn a_guard_dropped_while_its_thread_panics_is_released() {
    let store = MemoryStore::new();
    let locks = open(&store);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let _guard = locks.mutex("a").acquire().unwrap();
            std::panic::resume_unwind(Box::new("a planned panic"));
        });
        assert!(thread.join().is_err());
    });
    assert!(is_free(&store, "a"));
}

/// Dropping an async guard needs no runtime, wherever it happens.
#[test]
fn an_async_guard_that_a_thread_local_drops_is_released() {
    thread_local! {
        static GUARDS: RefCell<Vec<distlock_core::Guard>> = RefCell::default();
    }
    for first in [true, false] {
        let store = MemoryStore::new();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let locks =
            runtime.block_on(async { distlock_core::Locks::new(Backend::lease(store.clone())).unwrap() });
        std::thread::scope(|scope| {
            scope.spawn(|| {
                if first {
                    GUARDS.with(|guards| assert!(guards.borrow().is_empty()));
                }
                let guards = runtime.block_on(async {
                    let plain = locks.mutex("a").acquire().await.unwrap();
                    vec![plain, locks.mutex("b").fair().acquire().await.unwrap()]
                });
                GUARDS.with(|kept| *kept.borrow_mut() = guards);
            });
        });
        let begun = Instant::now();
        while !(is_free(&store, "a") && is_free(&store, "b")) {
            assert!(begun.elapsed() < Duration::from_secs(20), "first: {first}");
            std::thread::sleep(MS);
        }
    }
}
