//! Waits without, with a zero and with a finite time limit; wake-ups; order.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use distlock_core::ErrorKind;

use crate::conformance::{Fixture, Harness};
use crate::history::LockSpec;

/// A time limit of zero is one attempt: granted if the lock is free, otherwise `Timeout` or `None` at once, without a trace.
pub async fn a_time_limit_of_zero_is_one_attempt<F: Fixture>(harness: Harness<F>) {
    let (holder, other) = (harness.locks().await, harness.locks().await);
    let recorder = harness.recorder("holder");
    for spec in LockSpec::every_exclusive(holder.capabilities(), "one attempt") {
        let free = spec.acquire(&other).timeout(Duration::ZERO).await.expect("it was free");
        free.release().await.unwrap();
        let held = harness.acquire(&recorder, &holder, &spec).await;
        for locks in [&other, &holder] {
            let begun = Instant::now();
            let error = spec.acquire(locks).timeout(Duration::ZERO).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            assert!(spec.try_acquire(locks).await.unwrap().is_none());
            assert!(
                begun.elapsed() < harness.timing().wait_limit / 4,
                "one attempt took {:?}",
                begun.elapsed()
            );
        }
        let record = harness.record(&other, &spec).await.expect("a holder");
        assert!(record.waiters.is_empty(), "one attempt left a waiter: {record:?}");
        held.release().await.unwrap();
        harness.wait_until_unused(&other, &spec).await;
    }
}

/// A wait ends at its time limit, not before and not much later, and leaves no waiter.
pub async fn a_time_limit_ends_the_wait_in_time<F: Fixture>(harness: Harness<F>) {
    let capabilities = harness.locks().await.capabilities().clone();
    harness.for_each(LockSpec::every_exclusive(&capabilities, "time limit"), time_out).await;
}

async fn time_out<F: Fixture>(harness: Harness<F>, spec: LockSpec) {
    let (holder, other) = (harness.locks().await, harness.locks().await);
    let recorder = harness.recorder("holder");
    let limit = Duration::from_millis(150);
    let latest = limit + harness.timing().wait_limit / 4;
    let held = harness.acquire(&recorder, &holder, &spec).await;
    for locks in [&other, &holder] {
        let begun = Instant::now();
        let mut error = spec.acquire(locks).timeout(limit).await.unwrap_err();
        assert!((limit..latest).contains(&begun.elapsed()), "{limit:?} took {:?}", begun.elapsed());
        // A store that does not answer for a moment is unavailable, and a busy machine can look like that.
        for _ in 0..5 {
            if error.kind() == ErrorKind::Unavailable {
                error = spec.acquire(locks).timeout(limit).await.unwrap_err();
            }
        }
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        assert_eq!(error.store(), Some(locks.store()));
        assert_eq!(error.resource().map(|resource| resource.name()), Some(spec.name()));
        let begun = Instant::now();
        match spec.try_acquire(locks).timeout(limit).await {
            Ok(granted) => assert!(granted.is_none(), "{spec:?} was granted twice"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
        }
        assert!((limit..latest).contains(&begun.elapsed()), "{limit:?} took {:?}", begun.elapsed());
    }
    harness.wait_for_no_waiters(&other, &spec).await;
    assert!(held.check_held());
    held.release().await.unwrap();
    harness.acquire(&recorder, &other, &spec).await.release().await.unwrap();
}

/// A waiter within its time limit is granted the lock when it becomes free.
pub async fn a_waiter_with_time_left_gets_the_lock<F: Fixture>(harness: Harness<F>) {
    let (holder, other) = (harness.locks().await, harness.locks().await);
    let recorder = harness.recorder("holder");
    for spec in LockSpec::every_exclusive(holder.capabilities(), "released in time") {
        let held = harness.acquire(&recorder, &holder, &spec).await;
        let waiting = {
            let (recorder, other, spec) = (Arc::clone(&recorder), other.clone(), spec.clone());
            let wait_limit = harness.timing().wait_limit;
            tokio::spawn(async move { recorder.acquire_within(&other, &spec, wait_limit).await })
        };
        harness.wait_for_waiters(&holder, &spec, 1).await;
        held.release().await.unwrap();
        waiting.await.unwrap().expect("a grant").release().await.unwrap();
    }
}

/// On a store with wake-ups the handoff is immediate: a waiter that has just retried would not retry for most of a second.
/// On other stores the handoff is bounded by polling.
pub async fn a_release_wakes_the_waiter<F: Fixture>(harness: Harness<F>) {
    let engines = [harness.locks().await, harness.locks().await];
    let recorder = harness.recorder("both");
    let pushes = engines[0].capabilities().push;
    for spec in LockSpec::every_exclusive(engines[0].capabilities(), "handoff") {
        let mut fastest = Duration::MAX;
        let mut held = harness.acquire(&recorder, &engines[0], &spec).await;
        for round in 1..=4 {
            let waiting = {
                let (harness, recorder, spec) = (harness.clone(), Arc::clone(&recorder), spec.clone());
                let locks = engines[round % 2].clone();
                tokio::spawn(async move {
                    let guard = harness.acquire(&recorder, &locks, &spec).await;
                    (guard, Instant::now())
                })
            };
            harness.wait_for_waiters(&engines[0], &spec, 1).await;
            let released = Instant::now();
            held.release().await.unwrap();
            let (guard, granted) = waiting.await.unwrap();
            fastest = fastest.min(granted.saturating_duration_since(released));
            held = guard;
        }
        held.release().await.unwrap();
        let bound = if pushes { Duration::from_millis(400) } else { harness.timing().wait_limit / 4 };
        assert!(fastest < bound, "the fastest of four handoffs of {spec:?} took {fastest:?}");
    }
}

/// Waiters of one process are served in order of arrival. The wait queue of a mutex is the engine's; that of other locks is the
/// store's, and a store without `writer_not_starved` has none.
pub async fn waiters_of_one_process_are_served_in_order<F: Fixture>(harness: Harness<F>) {
    let locks = harness.locks().await;
    let recorder = harness.recorder("holder");
    for spec in LockSpec::every_exclusive(locks.capabilities(), "in order") {
        let held = harness.acquire(&recorder, &locks, &spec).await;
        let served = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..4 {
            let mut waiting: Pin<Box<_>> = Box::pin({
                let (harness, recorder, locks, spec) =
                    (harness.clone(), Arc::clone(&recorder), locks.clone(), spec.clone());
                let served = Arc::clone(&served);
                async move {
                    let guard = harness.acquire(&recorder, &locks, &spec).await;
                    served.lock().unwrap().push(n);
                    guard.release().await.unwrap();
                }
            });
            // The first poll enters the engine's wait queue of a mutex; the others enter the store's.
            let polled = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(polled, Poll::Pending));
            tasks.spawn(waiting);
            if !matches!(spec, LockSpec::Mutex(_)) {
                harness.wait_for_waiters(&locks, &spec, n + 1).await;
            }
        }
        held.release().await.unwrap();
        harness.within("the end of the wait queue", tasks.join_all()).await;
        let mut served = served.lock().unwrap().clone();
        if !matches!(spec, LockSpec::Mutex(_)) && !locks.capabilities().writer_not_starved {
            println!(
                "not applicable: {spec:?} has no wait queue here, so its waiters are served in any order"
            );
            served.sort_unstable();
        }
        assert_eq!(served, [0, 1, 2, 3], "the order in which {spec:?} was served");
    }
}
