//! The end of an engine.

use std::future::IntoFuture;

use distlock_core::{ErrorKind, LossReason};

use crate::conformance::stalls::undisturbed;
use crate::conformance::{Fixture, Harness};
use crate::history::LockSpec;

/// `shutdown` gives everything back, ends all waiting, turns what is held lost and refuses what comes later.
pub async fn shutdown_gives_everything_back_and_ends_all_waiting<F: Fixture>(harness: Harness<F>) {
    let (leaving, other) = (harness.locks().await, harness.locks().await);
    let recorder = harness.recorder("takers");
    let blocked = LockSpec::mutex("held by another");
    let theirs = harness.take(&recorder, &other, &blocked).await;
    let specs = LockSpec::every_exclusive(leaving.capabilities(), "held at the end");
    let mut held = Vec::new();
    for spec in &specs {
        held.push(harness.take(&recorder, &leaving, spec).await);
    }
    drop(harness.take(&recorder, &leaving, &LockSpec::mutex("just dropped")).await);
    let waiting = tokio::spawn(blocked.acquire(&leaving).into_future());
    harness.until_waiting(&other, &blocked, 1).await;

    harness.within("a shutdown", leaving.shutdown()).await.unwrap();
    let error = harness.within("an end of the wait", waiting).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ShutDown, "{error}");
    for taken in &held {
        assert_eq!(taken.loss(), Some(LossReason::ShutDown));
        assert!(!taken.look());
    }
    for spec in specs.iter().chain([&LockSpec::mutex("just dropped")]) {
        // Not merely soon: the store has been told of everything when `shutdown` returns.
        let now = recorder.try_take(&other, spec).await.unwrap();
        now.unwrap_or_else(|| panic!("{spec:?} is still held after the shutdown")).release().await.unwrap();
    }
    theirs.release().await.unwrap();
    let error = blocked.acquire(&leaving).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ShutDown, "{error}");
    harness.take(&recorder, &other, &blocked).await.release().await.unwrap();
    harness.until_nothing_is_left(&other, &blocked).await;
}

/// A guard keeps what it needs: dropping every `Locks` first takes nothing from it.
pub async fn a_guard_outlives_the_locks_it_came_from<F: Fixture>(harness: Harness<F>) {
    let other = harness.locks().await;
    let spec = LockSpec::mutex("outlives");
    undisturbed(&harness, harness.pace().expiry / 3, async |attempt| {
        let recorder = harness.recorder(&format!("attempt-{attempt}"));
        let leaving = harness.locks_on(harness.expiring()).await;
        let held = harness.take(&recorder, &leaving, &spec).await;
        drop(leaving);
        let refused = recorder.take_within(&other, &spec, 2 * harness.pace().expiry).await;
        if !held.look() {
            return Err(format!("it was lost when its `Locks` were dropped: {:?}", held.loss()));
        }
        let refused = refused.err().map(|error| error.kind());
        assert_eq!(refused, Some(ErrorKind::Timeout), "it was given to somebody else while it was held");
        drop(held);
        harness.take(&recorder, &other, &spec).await.release().await.unwrap();
        Ok(())
    })
    .await;
}
