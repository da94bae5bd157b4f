//! Shutdown of an engine, and guards that outlive their `Locks`.

use std::future::IntoFuture;

use distlock_core::{ErrorKind, LossReason};

use crate::conformance::stalls::retry_if_stalled;
use crate::conformance::{Fixture, Harness};
use crate::history::LockSpec;

/// `shutdown` releases all locks, ends all waits, turns held guards lost and refuses later requests.
pub async fn shutdown_releases_everything_and_ends_all_waits<F: Fixture>(harness: Harness<F>) {
    let (ending, other) = (harness.locks().await, harness.locks().await);
    let recorder = harness.recorder("both");
    let blocked = LockSpec::mutex("held by another");
    let theirs = harness.acquire(&recorder, &other, &blocked).await;
    let specs = LockSpec::every_exclusive(ending.capabilities(), "held at the end");
    let mut held = Vec::new();
    for spec in &specs {
        held.push(harness.acquire(&recorder, &ending, spec).await);
    }
    drop(harness.acquire(&recorder, &ending, &LockSpec::mutex("just dropped")).await);
    let waiting = tokio::spawn(blocked.acquire(&ending).into_future());
    harness.wait_for_waiters(&other, &blocked, 1).await;

    harness.within("a shutdown", ending.shutdown()).await.unwrap();
    let error = harness.within("the end of the wait", waiting).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ShutDown, "{error}");
    for guard in &held {
        assert_eq!(guard.loss(), Some(LossReason::ShutDown));
        assert!(!guard.check_held());
    }
    for spec in specs.iter().chain([&LockSpec::mutex("just dropped")]) {
        // Free at once, not just soon: all releases are confirmed when `shutdown` returns.
        let free = recorder.try_acquire(&other, spec).await.unwrap();
        free.unwrap_or_else(|| panic!("{spec:?} is still held after the shutdown")).release().await.unwrap();
    }
    theirs.release().await.unwrap();
    let error = blocked.acquire(&ending).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ShutDown, "{error}");
    harness.acquire(&recorder, &other, &blocked).await.release().await.unwrap();
    harness.wait_until_unused(&other, &blocked).await;
}

/// A guard stays held and renewed after every `Locks` of its engine was dropped.
pub async fn a_guard_outlives_its_locks<F: Fixture>(harness: Harness<F>) {
    let other = harness.locks().await;
    let spec = LockSpec::mutex("outlives");
    retry_if_stalled(&harness, harness.timing().expiry / 3, async |attempt| {
        let recorder = harness.recorder(&format!("attempt-{attempt}"));
        let dropped = harness.locks_with(harness.short_lease()).await;
        let held = harness.acquire(&recorder, &dropped, &spec).await;
        drop(dropped);
        let refused = recorder.acquire_within(&other, &spec, 2 * harness.timing().expiry).await;
        if !held.check_held() {
            return Err(format!("it was lost when its `Locks` were dropped: {:?}", held.loss()));
        }
        let refused = refused.err().map(|error| error.kind());
        // On a busy machine the store may not answer within the limit.
        let was_refused = matches!(refused, Some(ErrorKind::Timeout | ErrorKind::Unavailable));
        assert!(was_refused, "it was granted to another client while it was held: {refused:?}");
        drop(held);
        harness.acquire(&recorder, &other, &spec).await.release().await.unwrap();
        Ok(())
    })
    .await;
}
