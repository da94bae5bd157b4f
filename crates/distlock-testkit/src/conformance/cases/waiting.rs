//! No wait, a time limit, or for ever; and in which order.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use distlock_core::ErrorKind;

use crate::conformance::{Fixture, Stage};
use crate::history::Want;

/// A time limit of zero is one attempt: granted if it is free, `Timeout` or `None` at once if not, and no trace of it.
pub async fn a_time_limit_of_zero_is_one_attempt<F: Fixture>(stage: Stage<F>) {
    let (holder, other) = (stage.locks().await, stage.locks().await);
    let recorder = stage.recorder("holder");
    for want in Want::every_exclusive(holder.capabilities(), "asked for once") {
        let free = want.acquire(&other).timeout(Duration::ZERO).await.expect("it was free");
        free.release().await.unwrap();
        let held = stage.take(&recorder, &holder, &want).await;
        for locks in [&other, &holder] {
            let begun = Instant::now();
            let error = want.acquire(locks).timeout(Duration::ZERO).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            assert!(want.try_acquire(locks).await.unwrap().is_none());
            assert!(begun.elapsed() < stage.pace().patience / 4, "one attempt took {:?}", begun.elapsed());
        }
        let record = stage.record(&other, &want).await.expect("a holder");
        assert!(record.waiters.is_empty(), "one attempt left a waiter: {record:?}");
        held.release().await.unwrap();
        stage.until_nothing_is_left(&other, &want).await;
    }
}

/// A time limit is kept: not before, and not much after. What waited leaves nothing.
pub async fn a_time_limit_ends_the_wait_in_time<F: Fixture>(stage: Stage<F>) {
    let capabilities = stage.locks().await.capabilities().clone();
    stage.for_each(Want::every_exclusive(&capabilities, "never free"), time_out).await;
}

async fn time_out<F: Fixture>(stage: Stage<F>, want: Want) {
    let (holder, other) = (stage.locks().await, stage.locks().await);
    let recorder = stage.recorder("holder");
    let limit = Duration::from_millis(150);
    let late = limit + stage.pace().patience / 4;
    let held = stage.take(&recorder, &holder, &want).await;
    for locks in [&other, &holder] {
        let begun = Instant::now();
        let error = want.acquire(locks).timeout(limit).await.unwrap_err();
        assert!((limit..late).contains(&begun.elapsed()), "{limit:?} took {:?}", begun.elapsed());
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        assert_eq!(error.store(), Some(locks.store()));
        assert_eq!(error.resource().map(|resource| resource.name()), Some(want.name()));
        let begun = Instant::now();
        assert!(want.try_acquire(locks).timeout(limit).await.unwrap().is_none());
        assert!((limit..late).contains(&begun.elapsed()), "{limit:?} took {:?}", begun.elapsed());
    }
    stage.until_nobody_waits(&other, &want).await;
    assert!(held.look());
    held.release().await.unwrap();
    stage.take(&recorder, &other, &want).await.release().await.unwrap();
}

/// A waiter whose time limit lies ahead gets the lock when it becomes free.
pub async fn a_waiter_with_time_left_gets_the_lock<F: Fixture>(stage: Stage<F>) {
    let (holder, other) = (stage.locks().await, stage.locks().await);
    let recorder = stage.recorder("holder");
    for want in Want::every_exclusive(holder.capabilities(), "free in time") {
        let held = stage.take(&recorder, &holder, &want).await;
        let waiting = {
            let (recorder, other, want) = (Arc::clone(&recorder), other.clone(), want.clone());
            let patience = stage.pace().patience;
            tokio::spawn(async move { recorder.take_within(&other, &want, patience).await })
        };
        stage.until_waiting(&holder, &want, 1).await;
        held.release().await.unwrap();
        waiting.await.unwrap().expect("a grant").release().await.unwrap();
    }
}

/// Where a store can wake waiters it does: the lock changes hands at once, not when a waiter asks again. A waiter
/// that has just asked would not do that for most of a second. On other stores the hand-over is bounded all the same.
pub async fn a_release_wakes_the_waiter<F: Fixture>(stage: Stage<F>) {
    let engines = [stage.locks().await, stage.locks().await];
    let recorder = stage.recorder("both");
    let pushes = engines[0].capabilities().push;
    for want in Want::every_exclusive(engines[0].capabilities(), "handed over") {
        let mut quickest = Duration::MAX;
        let mut held = stage.take(&recorder, &engines[0], &want).await;
        for round in 1..=4 {
            let waiting = {
                let (stage, recorder, want) = (stage.clone(), Arc::clone(&recorder), want.clone());
                let locks = engines[round % 2].clone();
                tokio::spawn(async move {
                    let taken = stage.take(&recorder, &locks, &want).await;
                    (taken, Instant::now())
                })
            };
            stage.until_waiting(&engines[0], &want, 1).await;
            let released = Instant::now();
            held.release().await.unwrap();
            let (taken, granted) = waiting.await.unwrap();
            quickest = quickest.min(granted.saturating_duration_since(released));
            held = taken;
        }
        held.release().await.unwrap();
        let bound = if pushes { Duration::from_millis(400) } else { stage.pace().patience / 4 };
        assert!(quickest < bound, "the quickest of four hand-overs of {want:?} took {quickest:?}");
    }
}

/// Waiters of one process are served first come, first served. The line for a mutex is the engine's own; the others
/// stand in the store's queue, and a store that does not keep writers from being overtaken has none.
pub async fn waiters_of_one_process_are_served_in_their_order<F: Fixture>(stage: Stage<F>) {
    let locks = stage.locks().await;
    let recorder = stage.recorder("holder");
    for want in Want::every_exclusive(locks.capabilities(), "lined up for") {
        let held = stage.take(&recorder, &locks, &want).await;
        let served = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..4 {
            let mut asking: Pin<Box<_>> = Box::pin({
                let (stage, recorder, locks, want) =
                    (stage.clone(), Arc::clone(&recorder), locks.clone(), want.clone());
                let served = Arc::clone(&served);
                async move {
                    let taken = stage.take(&recorder, &locks, &want).await;
                    served.lock().unwrap().push(n);
                    taken.release().await.unwrap();
                }
            });
            // The first poll joins the line of a mutex; for the others the store has the line.
            let polled = asking.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(polled, Poll::Pending));
            tasks.spawn(asking);
            if !matches!(want, Want::Mutex(_)) {
                stage.until_waiting(&locks, &want, n + 1).await;
            }
        }
        held.release().await.unwrap();
        stage.within("an end of the line", tasks.join_all()).await;
        let mut served = served.lock().unwrap().clone();
        if !matches!(want, Want::Mutex(_)) && !locks.capabilities().writer_not_starved {
            println!("{want:?} has no queue here: all of its waiters are served, in whatever order");
            served.sort_unstable();
        }
        assert_eq!(served, [0, 1, 2, 3], "the order in which {want:?} was served");
    }
}
