//! The end of an engine.

use std::future::IntoFuture;

use distlock_core::{ErrorKind, LossReason};

use crate::conformance::stalls::retry_if_stalled;
use crate::conformance::{Fixture, Harness};
use crate::history::LockSpec;

/// `shutdown` gives everything back, ends all waiting, turns what is held lost and refuses what comes later.
pub async fn shutdown_releases_everything_and_ends_all_waits<F: Fixture>(harness: Harness<F>) {
    let (leaving, other) = (harness.locks().await, harness.locks().await);
    let recorder = harness.recorder("takers");
    let blocked = LockSpec::mutex("held by another");
    let theirs = harness.acquire(&recorder, &other, &blocked).await;
    let specs = LockSpec::every_exclusive(leaving.capabilities(), "held at the end");
    let mut held = Vec::new();
    for spec in &specs {
        held.push(harness.acquire(&recorder, &leaving, spec).await);
    }
    drop(harness.acquire(&recorder, &leaving, &LockSpec::mutex("just dropped")).await);
    let waiting = tokio::spawn(blocked.acquire(&leaving).into_future());
    harness.wait_for_waiters(&other, &blocked, 1).await;

    harness.within("a shutdown", leaving.shutdown()).await.unwrap();
    let error = harness.within("an end of the wait", waiting).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ShutDown, "{error}");
    for taken in &held {
        assert_eq!(taken.loss(), Some(LossReason::ShutDown));
        assert!(!taken.check_held());
    }
    for spec in specs.iter().chain([&LockSpec::mutex("just dropped")]) {
        // Not merely soon: the store has been told of everything when `shutdown` returns.
        let now = recorder.try_acquire(&other, spec).await.unwrap();
        now.unwrap_or_else(|| panic!("{spec:?} is still held after the shutdown")).release().await.unwrap();
    }
    theirs.release().await.unwrap();
    let error = blocked.acquire(&leaving).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ShutDown, "{error}");
    harness.acquire(&recorder, &other, &blocked).await.release().await.unwrap();
    harness.wait_until_unused(&other, &blocked).await;
}

/// A guard keeps what it needs: dropping every `Locks` first takes nothing from it.
pub async fn a_guard_outlives_its_locks<F: Fixture>(harness: Harness<F>) {
    let other = harness.locks().await;
    let spec = LockSpec::mutex("outlives");
    retry_if_stalled(&harness, harness.timing().expiry / 3, async |attempt| {
        let recorder = harness.recorder(&format!("attempt-{attempt}"));
        let leaving = harness.locks_with(harness.short_lease()).await;
        let held = harness.acquire(&recorder, &leaving, &spec).await;
        drop(leaving);
        let refused = recorder.acquire_within(&other, &spec, 2 * harness.timing().expiry).await;
        if !held.check_held() {
            return Err(format!("it was lost when its `Locks` were dropped: {:?}", held.loss()));
        }
        let refused = refused.err().map(|error| error.kind());
        assert_eq!(refused, Some(ErrorKind::Timeout), "it was given to somebody else while it was held");
        drop(held);
        harness.acquire(&recorder, &other, &spec).await.release().await.unwrap();
        Ok(())
    })
    .await;
}
