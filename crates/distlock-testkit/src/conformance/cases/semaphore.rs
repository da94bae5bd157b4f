//! Semaphores: weights, capacities and order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use distlock_core::{ErrorKind, Locks};

use crate::conformance::{Fixture, Harness};
use crate::history::LockSpec;

/// Permits are counted by weight, across engines.
pub async fn weights_are_counted_across_engines<F: Fixture>(harness: Harness<F>) {
    let (one, other) = (harness.locks().await, harness.locks().await);
    let spec = |wanted| LockSpec::permits("gpu", 4, wanted);
    if !harness.supports(&one, &spec(1)).await {
        return;
    }
    let recorder = harness.recorder("both");
    let three = harness.acquire(&recorder, &one, &spec(3)).await;
    assert!(recorder.try_acquire(&other, &spec(2)).await.unwrap().is_none());
    let last = recorder.try_acquire(&other, &spec(1)).await.unwrap().expect("one permit is left");
    assert!(recorder.try_acquire(&one, &spec(1)).await.unwrap().is_none());
    three.release().await.unwrap();
    let three = recorder.try_acquire(&other, &spec(3)).await.unwrap().expect("three came back");
    last.release().await.unwrap();
    three.release().await.unwrap();
    recorder.try_acquire(&one, &spec(4)).await.unwrap().expect("all came back").release().await.unwrap();
}

/// Invalid weights and capacities are refused before a request is sent.
pub async fn impossible_weights_are_refused<F: Fixture>(harness: Harness<F>) {
    let locks = harness.locks().await;
    if !harness.supports(&locks, &LockSpec::permits("invalid", 4, 1)).await {
        return;
    }
    for (permits, wanted) in [(4, 0), (4, 5), (0, 1), (0, 0), (u32::MAX, 1)] {
        let spec = LockSpec::permits("invalid", permits, wanted);
        let error = spec.acquire(&locks).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{wanted} of {permits}: {error}");
    }
}

/// A request with another capacity than the holders' is an error: two capacities would admit more than the smaller one allows.
/// An unused semaphore may get another capacity.
pub async fn another_capacity_is_a_mismatch<F: Fixture>(harness: Harness<F>) {
    let (one, other) = (harness.locks().await, harness.locks().await);
    let spec = |permits| LockSpec::permits("resized", permits, 1);
    if !harness.supports(&one, &spec(3)).await {
        return;
    }
    let recorder = harness.recorder("both");
    let held = harness.acquire(&recorder, &one, &spec(3)).await;
    for permits in [1, 2, 4, 300] {
        for locks in [&other, &one] {
            let error = spec(permits).try_acquire(locks).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{permits} instead of 3: {error}");
            let error = spec(permits).acquire(locks).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{permits} instead of 3: {error}");
        }
    }
    assert!(held.check_held(), "a mismatch cost the holder its permit");
    harness.acquire(&recorder, &other, &spec(3)).await.release().await.unwrap();
    held.release().await.unwrap();
    harness.wait_until_unused(&other, &spec(3)).await;
    harness.acquire(&recorder, &other, &spec(5)).await.release().await.unwrap();
    harness.acquire(&recorder, &one, &spec(2)).await.release().await.unwrap();
}

/// A semaphore that is never unused gets another number of permits: a larger one counts at once, under a smaller one nothing is
/// granted until it fits.
pub async fn a_resizable_semaphore_in_use_grows_and_shrinks<F: Fixture>(harness: Harness<F>) {
    let (one, other) = (harness.locks().await, harness.locks().await);
    if !harness.supports(&one, &LockSpec::permits("resized in use", 2, 1)).await {
        return;
    }
    let semaphore = |locks: &Locks, permits| locks.semaphore("resized in use", permits).resizable();
    let (small, large) = (semaphore(&one, 2), semaphore(&other, 4));
    let held = small.acquire_many(2).await.unwrap();
    for locks in [&one, &other] {
        assert!(semaphore(locks, 2).try_acquire().await.unwrap().is_none(), "both permits are in use");
    }
    let two = harness.within("two more permits", large.acquire_many(2).into_future()).await.unwrap();
    for semaphore in [&small, &large] {
        assert!(semaphore.try_acquire().await.unwrap().is_none(), "all four permits are in use");
    }
    let plain = other.semaphore("resized in use", 5).try_acquire().await.unwrap_err();
    assert_eq!(plain.kind(), ErrorKind::Mismatch, "a client that is not resizable is told: {plain}");
    // Three of four are in use: one is free by the larger number, and too many are in use by the smaller one.
    let third = {
        two.release().await.unwrap();
        harness.within("one more permit", large.acquire().into_future()).await.unwrap()
    };
    assert!(small.try_acquire().await.unwrap().is_none(), "three are in use, and there are two");
    let waiting = tokio::spawn(small.acquire().into_future());
    harness.wait_for_waiters(&one, &LockSpec::permits("resized in use", 2, 1), 1).await;
    third.release().await.unwrap();
    assert!(small.try_acquire().await.unwrap().is_none(), "two are in use, and there are two");
    held.release().await.unwrap();
    let last = harness.within("the waiter's permit", waiting).await.unwrap().unwrap();
    let next = harness.within("the other of two", small.acquire().into_future()).await.unwrap();
    assert!(small.try_acquire().await.unwrap().is_none(), "two are in use, and there are two");
    last.release().await.unwrap();
    next.release().await.unwrap();
}

/// Old and new instances of a service run together, and name four and eight permits. What is in use never exceeds eight,
/// and every request is served.
pub async fn a_rolling_change_of_the_capacity_never_admits_more_than_the_larger_one<F: Fixture>(
    harness: Harness<F>,
) {
    const OLD: u32 = 4;
    const NEW: u32 = 8;
    let engines = [harness.locks().await, harness.locks().await];
    if !harness.supports(&engines[0], &LockSpec::permits("rolling", OLD, 1)).await {
        return;
    }
    let in_use = Arc::new(AtomicU32::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..12_u32 {
        let (old, new) = (engines[0].clone(), engines[1].clone());
        let in_use = Arc::clone(&in_use);
        tasks.spawn(async move {
            for round in 0..6 {
                // The roll-out: one instance after the other names the new number.
                let rolled_out = n < 2 * (round + 1);
                let semaphore = match rolled_out {
                    true => new.semaphore("rolling", NEW).resizable(),
                    false => old.semaphore("rolling", OLD).resizable(),
                };
                let wanted = 1 + (n + round) % 3;
                let guard = semaphore.acquire_many(wanted).await.unwrap();
                let now = in_use.fetch_add(wanted, Ordering::SeqCst) + wanted;
                assert!(now <= NEW, "{now} permits in use");
                tokio::task::yield_now().await;
                in_use.fetch_sub(wanted, Ordering::SeqCst);
                guard.release().await.unwrap();
            }
        });
    }
    while let Some(ended) = harness.within("every request is served", tasks.join_next()).await {
        ended.unwrap();
    }
    harness.wait_until_unused(&engines[0], &LockSpec::permits("rolling", NEW, 1)).await;
    let all = harness.within(
        "all of the new number",
        engines[1].semaphore("rolling", NEW).acquire_many(NEW).into_future(),
    );
    all.await.unwrap().release().await.unwrap();
}

/// Many requests drain a large semaphore and refill it without losing a permit.
pub async fn ten_thousand_permits_are_drained_and_refilled<F: Fixture>(harness: Harness<F>) {
    const ALL: u32 = 10_000;
    let engines = [harness.locks().await, harness.locks().await];
    let spec = |wanted| LockSpec::permits("large", ALL, wanted);
    if !harness.supports(&engines[0], &spec(1)).await {
        return;
    }
    let recorder = harness.recorder("both");
    for _ in 0..2 {
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..40_usize {
            let (harness, recorder, locks) = (harness.clone(), Arc::clone(&recorder), engines[n % 2].clone());
            // 20 × 1 and 20 × 499 are all of them.
            let spec = spec(if n < 20 { 1 } else { 499 });
            tasks.spawn(async move { harness.acquire(&recorder, &locks, &spec).await });
        }
        let held = tasks.join_all().await;
        assert!(
            recorder.try_acquire(&engines[1], &spec(1)).await.unwrap().is_none(),
            "more permits than the capacity"
        );
        let mut tasks = tokio::task::JoinSet::new();
        for guard in held {
            tasks.spawn(guard.release());
        }
        for released in tasks.join_all().await {
            released.unwrap();
        }
        let all = recorder.try_acquire(&engines[0], &spec(ALL)).await.unwrap();
        all.expect("all came back").release().await.unwrap();
    }
}

/// Later small requests do not overtake a waiting large one.
pub async fn a_large_request_is_not_starved_by_small_ones<F: Fixture>(harness: Harness<F>) {
    let (one, other) = (harness.locks().await, harness.locks().await);
    let spec = |wanted| LockSpec::permits("overtaking", 4, wanted);
    if !harness.supports(&one, &spec(1)).await {
        return;
    }
    let recorder = harness.recorder("small");
    let mut small = Vec::new();
    for _ in 0..3 {
        small.push(harness.acquire(&recorder, &one, &spec(1)).await);
    }
    let large = harness.spawn_acquire(&harness.recorder("large"), &other, &spec(4));
    harness.wait_for_waiters(&one, &spec(4), 1).await;
    for locks in [&one, &other] {
        let passed = recorder.try_acquire(locks, &spec(1)).await.unwrap();
        assert!(passed.is_none(), "a small request overtook the waiting large one");
    }
    // Another small request, which waits behind the large one.
    let next = harness.spawn_acquire(&harness.recorder("next"), &one, &spec(1));
    harness.wait_for_waiters(&one, &spec(4), 2).await;
    for guard in small {
        guard.release().await.unwrap();
    }
    let large = harness.within("the grant of the large request", large).await.unwrap();
    let token = large.token();
    large.release().await.unwrap();
    let next = harness.within("the grant of the small request", next).await.unwrap();
    assert!(next.token() > token, "a small request was granted before the large one that arrived first");
    next.release().await.unwrap();
}
