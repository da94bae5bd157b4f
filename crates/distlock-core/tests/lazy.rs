//! Locks that connect at their first use: one attempt at a time, retried at the next use, within every time limit.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use distlock_core::memory::MemoryStore;
use distlock_core::store::{Backend, Fairness, Lazy};
use distlock_core::{Error, ErrorKind, Locks, Options, VirtualClock};
use tokio::sync::Semaphore;

/// A store that is reached when `open` has a permit. The attempts with these numbers fail.
struct Door {
    attempts: AtomicUsize,
    open: Semaphore,
    failing: &'static [usize],
    store: MemoryStore,
}

fn door(failing: &'static [usize], permits: usize) -> Arc<Door> {
    let store = MemoryStore::new();
    Arc::new(Door { attempts: AtomicUsize::new(0), open: Semaphore::new(permits), failing, store })
}

fn lazy(door: &Arc<Door>) -> Locks {
    let door = Arc::clone(door);
    let store = Lazy::new("door://***", Options::new(), move || {
        let door = Arc::clone(&door);
        Box::pin(async move {
            let attempt = door.attempts.fetch_add(1, Ordering::SeqCst);
            door.open.acquire().await.unwrap().forget();
            if door.failing.contains(&attempt) {
                return Err(Error::new(ErrorKind::Unavailable, "connection refused"));
            }
            Ok(Backend::lease(door.store.clone()))
        })
    });
    Locks::builder(store).clock(Arc::new(VirtualClock::new())).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn many_first_uses_make_one_connection() {
    let door = door(&[], 0);
    let locks = lazy(&door);
    assert_eq!((door.attempts.load(Ordering::SeqCst), locks.store()), (0, "door://***"));
    let tasks: Vec<_> =
        (0..20).map(|n| tokio::spawn(locks.mutex(format!("m{n}")).acquire().into_future())).collect();
    while door.attempts.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    door.open.add_permits(10);
    for task in tasks {
        drop(task.await.unwrap().unwrap());
    }
    assert_eq!((door.attempts.load(Ordering::SeqCst), locks.store()), (1, "memory"));
}

#[tokio::test(start_paused = true)]
async fn a_failed_connection_is_an_error_that_names_the_store_and_the_next_use_tries_again() {
    let door = door(&[0, 1], 10);
    let locks = lazy(&door);
    for _ in 0..2 {
        let error = locks.mutex("a").acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(error.to_string(), "cannot connect to door://***: connection refused");
    }
    locks.ping().await.unwrap();
    drop(locks.mutex("a").acquire().await.unwrap());
    assert_eq!(door.attempts.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_all_callers_left_is_not_repeated_and_its_failure_is_not_told_later() {
    let door = door(&[0], 0);
    let locks = lazy(&door);
    let limit = Duration::from_millis(50);
    for _ in 0..3 {
        let error = locks.mutex("a").acquire().timeout(limit).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(locks.mutex("a").try_acquire().timeout(limit).await.is_err());
    }
    assert_eq!(door.attempts.load(Ordering::SeqCst), 1, "one attempt goes on, whatever its callers do");
    door.open.add_permits(10);
    while door.open.available_permits() == 10 {
        tokio::task::yield_now().await;
    }
    tokio::task::yield_now().await;
    // The first attempt has failed meanwhile, and no caller saw it.
    drop(locks.mutex("a").acquire().await.unwrap());
    assert_eq!(door.attempts.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn a_ping_of_a_store_that_does_not_answer_ends_at_the_request_time_out() {
    let door = door(&[], 0);
    let locks = lazy(&door).with_options(Options::new().request_timeout(Duration::from_millis(300)).unwrap());
    let begun = tokio::time::Instant::now();
    let error = locks.ping().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("door://***") && error.advice().is_some(), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_bad_name_is_refused_before_anything_is_connected() {
    let door = door(&[], 10);
    let locks = lazy(&door);
    for error in [
        locks.mutex("").acquire().await.unwrap_err(),
        locks.semaphore("s", 0).try_acquire().await.unwrap_err(),
        locks.acquire_all(["a", "a"]).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
    assert_eq!(door.attempts.load(Ordering::SeqCst), 0);
    assert_eq!((locks.capabilities().fairness, locks.capabilities().semaphore), (Fairness::None, false));
    locks.shutdown().await.unwrap();
    drop(locks.acquire_all(["a", "b"]).await.unwrap());
    assert!(locks.capabilities().semaphore);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_panics_is_an_error_and_the_next_use_tries_again() {
    let attempts = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&attempts);
    let locks = Locks::new(Lazy::new("door://***", Options::new(), move || {
        let first = counted.fetch_add(1, Ordering::SeqCst) == 0;
        Box::pin(async move {
            assert!(!first, "the driver's defect");
            Ok(Backend::lease(MemoryStore::new()))
        })
    }))
    .unwrap();
    assert_eq!(locks.ping().await.unwrap_err().kind(), ErrorKind::Unavailable);
    locks.ping().await.unwrap();
}

#[test]
fn the_runtime_of_the_first_use_may_end_while_it_connects() {
    let door = door(&[], 0);
    let locks = lazy(&door);
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    first.block_on(async {
        assert!(locks.mutex("a").try_acquire().timeout(Duration::from_millis(1)).await.is_err());
    });
    drop(first);
    door.open.add_permits(10);
    // The attempt ended with its runtime.
    runtime().block_on(async { drop(locks.mutex("a").acquire().await.unwrap()) });
    assert_eq!(door.attempts.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn a_ping_after_shutdown_says_so() {
    let locks = Locks::new(Backend::lease(MemoryStore::new())).unwrap();
    locks.ping().await.unwrap();
    locks.shutdown().await.unwrap();
    assert_eq!(locks.ping().await.unwrap_err().kind(), ErrorKind::ShutDown);
}

#[tokio::test(start_paused = true)]
async fn options_of_one_lock_change_only_what_they_name() {
    let locks = Locks::builder(Backend::lease(MemoryStore::new()))
        .clock(Arc::new(VirtualClock::new()))
        .options(Options::new().expiry(Duration::from_secs(9)).unwrap().auto_extend(false))
        .build()
        .unwrap();
    let options = Options::new().request_timeout(Duration::from_secs(1)).unwrap();
    let guard = locks.mutex("a").options(options).acquire().await.unwrap();
    assert!(guard.time_left().unwrap() <= Duration::from_secs(9));
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(guard.is_lost(), "the lock named nothing about renewal: it stays off");
}
