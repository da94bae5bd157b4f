//! Semaphores: weights, capacities and who comes first.

use std::sync::Arc;

use distlock_core::ErrorKind;

use crate::conformance::{Fixture, Stage};
use crate::history::Want;

/// Permits are counted by weight, across engines.
pub async fn weights_are_counted_across_engines<F: Fixture>(stage: Stage<F>) {
    let (one, other) = (stage.locks().await, stage.locks().await);
    let want = |wanted| Want::permits("gpu", 4, wanted);
    if !stage.offers(&one, &want(1)).await {
        return;
    }
    let recorder = stage.recorder("both");
    let three = stage.take(&recorder, &one, &want(3)).await;
    assert!(recorder.try_take(&other, &want(2)).await.unwrap().is_none());
    let last = recorder.try_take(&other, &want(1)).await.unwrap().expect("one permit is left");
    assert!(recorder.try_take(&one, &want(1)).await.unwrap().is_none());
    three.release().await.unwrap();
    let three = recorder.try_take(&other, &want(3)).await.unwrap().expect("three came back");
    last.release().await.unwrap();
    three.release().await.unwrap();
    recorder.try_take(&one, &want(4)).await.unwrap().expect("all came back").release().await.unwrap();
}

/// What makes no sense is refused before anything is sent.
pub async fn impossible_weights_are_refused<F: Fixture>(stage: Stage<F>) {
    let locks = stage.locks().await;
    if !stage.offers(&locks, &Want::permits("odd", 4, 1)).await {
        return;
    }
    for (permits, wanted) in [(4, 0), (4, 5), (0, 1), (0, 0), (u32::MAX, 1)] {
        let want = Want::permits("odd", permits, wanted);
        let error = want.acquire(&locks).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{wanted} of {permits}: {error}");
    }
}

/// Two sizes of one semaphore at once would admit more than the smaller one allows: the second one is an error, not a
/// guess. When nobody uses it, another size is fine.
pub async fn another_capacity_is_a_mismatch<F: Fixture>(stage: Stage<F>) {
    let (one, other) = (stage.locks().await, stage.locks().await);
    let want = |permits| Want::permits("resized", permits, 1);
    if !stage.offers(&one, &want(3)).await {
        return;
    }
    let recorder = stage.recorder("both");
    let held = stage.take(&recorder, &one, &want(3)).await;
    for permits in [1, 2, 4, 300] {
        for locks in [&other, &one] {
            let error = want(permits).try_acquire(locks).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{permits} instead of 3: {error}");
            let error = want(permits).acquire(locks).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{permits} instead of 3: {error}");
        }
    }
    assert!(held.look(), "a mismatch cost the holder its permit");
    stage.take(&recorder, &other, &want(3)).await.release().await.unwrap();
    held.release().await.unwrap();
    stage.until_nothing_is_left(&other, &want(3)).await;
    stage.take(&recorder, &other, &want(5)).await.release().await.unwrap();
    stage.take(&recorder, &one, &want(2)).await.release().await.unwrap();
}

/// A large semaphore is drained by many requests and refilled, and nothing is lost on the way.
pub async fn ten_thousand_permits_are_drained_and_refilled<F: Fixture>(stage: Stage<F>) {
    const ALL: u32 = 10_000;
    let engines = [stage.locks().await, stage.locks().await];
    let want = |wanted| Want::permits("large", ALL, wanted);
    if !stage.offers(&engines[0], &want(1)).await {
        return;
    }
    let recorder = stage.recorder("both");
    for _ in 0..2 {
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..40_usize {
            let (stage, recorder, locks) = (stage.clone(), Arc::clone(&recorder), engines[n % 2].clone());
            // 20 × 1 and 20 × 499 are all of them.
            let want = want(if n < 20 { 1 } else { 499 });
            tasks.spawn(async move { stage.take(&recorder, &locks, &want).await });
        }
        let held = tasks.join_all().await;
        assert!(recorder.try_take(&engines[1], &want(1)).await.unwrap().is_none(), "more than there are");
        let mut tasks = tokio::task::JoinSet::new();
        for taken in held {
            tasks.spawn(taken.release());
        }
        for released in tasks.join_all().await {
            released.unwrap();
        }
        let all = recorder.try_take(&engines[0], &want(ALL)).await.unwrap();
        all.expect("all came back").release().await.unwrap();
    }
}

/// Small requests that come later do not pass a big one that waits.
pub async fn a_big_request_is_not_starved_by_small_ones<F: Fixture>(stage: Stage<F>) {
    let (one, other) = (stage.locks().await, stage.locks().await);
    let want = |wanted| Want::permits("crowded", 4, wanted);
    if !stage.offers(&one, &want(1)).await {
        return;
    }
    let recorder = stage.recorder("small");
    let mut small = Vec::new();
    for _ in 0..3 {
        small.push(stage.take(&recorder, &one, &want(1)).await);
    }
    let big = tokio::spawn({
        let (stage, other) = (stage.clone(), other.clone());
        let recorder = stage.recorder("big");
        async move { stage.take(&recorder, &other, &want(4)).await }
    });
    stage.until_waiting(&one, &want(4), 1).await;
    for locks in [&one, &other] {
        let passed = recorder.try_take(locks, &want(1)).await.unwrap();
        assert!(passed.is_none(), "a small request passed the big one that waits");
    }
    // A stream of small requests, one of which waits at any time.
    let next = tokio::spawn({
        let (stage, one) = (stage.clone(), one.clone());
        let recorder = stage.recorder("next");
        async move { stage.take(&recorder, &one, &want(1)).await }
    });
    stage.until_waiting(&one, &want(4), 2).await;
    for taken in small {
        taken.release().await.unwrap();
    }
    let big = stage.within("the big request's turn", big).await.unwrap();
    let token = big.token();
    big.release().await.unwrap();
    let next = stage.within("the next one's turn", next).await.unwrap();
    assert!(next.token() > token, "a small request was served before the big one that had come first");
    next.release().await.unwrap();
}
