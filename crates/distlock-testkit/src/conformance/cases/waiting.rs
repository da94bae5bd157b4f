//! No wait, a time limit, or for ever; and in which order.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use distlock_core::ErrorKind;

use crate::conformance::{Fixture, Harness};
use crate::history::LockSpec;

/// A time limit of zero is one attempt: granted if it is free, `Timeout` or `None` at once if not, and no trace of it.
pub async fn a_time_limit_of_zero_is_one_attempt<F: Fixture>(harness: Harness<F>) {
    let (holder, other) = (harness.locks().await, harness.locks().await);
    let recorder = harness.recorder("holder");
    for spec in LockSpec::every_exclusive(holder.capabilities(), "asked for once") {
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

/// A time limit is kept: not before, and not much after. What waited leaves nothing.
pub async fn a_time_limit_ends_the_wait_in_time<F: Fixture>(harness: Harness<F>) {
    let capabilities = harness.locks().await.capabilities().clone();
    harness.for_each(LockSpec::every_exclusive(&capabilities, "never free"), time_out).await;
}

async fn time_out<F: Fixture>(harness: Harness<F>, spec: LockSpec) {
    let (holder, other) = (harness.locks().await, harness.locks().await);
    let recorder = harness.recorder("holder");
    let limit = Duration::from_millis(150);
    let late = limit + harness.timing().wait_limit / 4;
    let held = harness.acquire(&recorder, &holder, &spec).await;
    for locks in [&other, &holder] {
        let begun = Instant::now();
        let error = spec.acquire(locks).timeout(limit).await.unwrap_err();
        assert!((limit..late).contains(&begun.elapsed()), "{limit:?} took {:?}", begun.elapsed());
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        assert_eq!(error.store(), Some(locks.store()));
        assert_eq!(error.resource().map(|resource| resource.name()), Some(spec.name()));
        let begun = Instant::now();
        assert!(spec.try_acquire(locks).timeout(limit).await.unwrap().is_none());
        assert!((limit..late).contains(&begun.elapsed()), "{limit:?} took {:?}", begun.elapsed());
    }
    harness.wait_for_no_waiters(&other, &spec).await;
    assert!(held.check_held());
    held.release().await.unwrap();
    harness.acquire(&recorder, &other, &spec).await.release().await.unwrap();
}

/// A waiter whose time limit lies ahead gets the lock when it becomes free.
pub async fn a_waiter_with_time_left_gets_the_lock<F: Fixture>(harness: Harness<F>) {
    let (holder, other) = (harness.locks().await, harness.locks().await);
    let recorder = harness.recorder("holder");
    for spec in LockSpec::every_exclusive(holder.capabilities(), "free in time") {
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

/// Where a store can wake waiters it does: the lock changes hands at once, not when a waiter asks again. A waiter
/// that has just asked would not do that for most of a second. On other stores the hand-over is bounded all the same.
pub async fn a_release_wakes_the_waiter<F: Fixture>(harness: Harness<F>) {
    let engines = [harness.locks().await, harness.locks().await];
    let recorder = harness.recorder("both");
    let pushes = engines[0].capabilities().push;
    for spec in LockSpec::every_exclusive(engines[0].capabilities(), "handed over") {
        let mut quickest = Duration::MAX;
        let mut held = harness.acquire(&recorder, &engines[0], &spec).await;
        for round in 1..=4 {
            let waiting = {
                let (harness, recorder, spec) = (harness.clone(), Arc::clone(&recorder), spec.clone());
                let locks = engines[round % 2].clone();
                tokio::spawn(async move {
                    let taken = harness.acquire(&recorder, &locks, &spec).await;
                    (taken, Instant::now())
                })
            };
            harness.wait_for_waiters(&engines[0], &spec, 1).await;
            let released = Instant::now();
            held.release().await.unwrap();
            let (taken, granted) = waiting.await.unwrap();
            quickest = quickest.min(granted.saturating_duration_since(released));
            held = taken;
        }
        held.release().await.unwrap();
        let bound = if pushes { Duration::from_millis(400) } else { harness.timing().wait_limit / 4 };
        assert!(quickest < bound, "the quickest of four hand-overs of {spec:?} took {quickest:?}");
    }
}

/// Waiters of one process are served first come, first served. The line for a mutex is the engine's own; the others
/// stand in the store's queue, and a store that does not keep writers from being overtaken has none.
pub async fn waiters_of_one_process_are_served_in_order<F: Fixture>(harness: Harness<F>) {
    let locks = harness.locks().await;
    let recorder = harness.recorder("holder");
    for spec in LockSpec::every_exclusive(locks.capabilities(), "lined up for") {
        let held = harness.acquire(&recorder, &locks, &spec).await;
        let served = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..4 {
            let mut asking: Pin<Box<_>> = Box::pin({
                let (harness, recorder, locks, spec) =
                    (harness.clone(), Arc::clone(&recorder), locks.clone(), spec.clone());
                let served = Arc::clone(&served);
                async move {
                    let taken = harness.acquire(&recorder, &locks, &spec).await;
                    served.lock().unwrap().push(n);
                    taken.release().await.unwrap();
                }
            });
            // The first poll joins the line of a mutex; for the others the store has the line.
            let polled = asking.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(polled, Poll::Pending));
            tasks.spawn(asking);
            if !matches!(spec, LockSpec::Mutex(_)) {
                harness.wait_for_waiters(&locks, &spec, n + 1).await;
            }
        }
        held.release().await.unwrap();
        harness.within("an end of the line", tasks.join_all()).await;
        let mut served = served.lock().unwrap().clone();
        if !matches!(spec, LockSpec::Mutex(_)) && !locks.capabilities().writer_not_starved {
            println!("{spec:?} has no queue here: all of its waiters are served, in whatever order");
            served.sort_unstable();
        }
        assert_eq!(served, [0, 1, 2, 3], "the order in which {spec:?} was served");
    }
}
