//! The end of an engine.

use std::future::IntoFuture;

use distlock_core::{ErrorKind, LossReason};

use crate::conformance::stalls::undisturbed;
use crate::conformance::{Fixture, Stage};
use crate::history::Want;

/// `shutdown` gives everything back, ends all waiting, turns what is held lost and refuses what comes later.
pub async fn shutdown_gives_everything_back_and_ends_all_waiting<F: Fixture>(stage: Stage<F>) {
    let (leaving, other) = (stage.locks().await, stage.locks().await);
    let recorder = stage.recorder("takers");
    let blocked = Want::mutex("held by another");
    let theirs = stage.take(&recorder, &other, &blocked).await;
    let wants = Want::every_exclusive(leaving.capabilities(), "held at the end");
    let mut held = Vec::new();
    for want in &wants {
        held.push(stage.take(&recorder, &leaving, want).await);
    }
    drop(stage.take(&recorder, &leaving, &Want::mutex("just dropped")).await);
    let waiting = tokio::spawn(blocked.acquire(&leaving).into_future());
    stage.until_waiting(&other, &blocked, 1).await;

    stage.within("a shutdown", leaving.shutdown()).await.unwrap();
    let error = stage.within("an end of the wait", waiting).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ShutDown, "{error}");
    for taken in &held {
        assert_eq!(taken.loss(), Some(LossReason::ShutDown));
        assert!(!taken.look());
    }
    for want in wants.iter().chain([&Want::mutex("just dropped")]) {
        // Not merely soon: the store has been told of everything when `shutdown` returns.
        let now = recorder.try_take(&other, want).await.unwrap();
        now.unwrap_or_else(|| panic!("{want:?} is still held after the shutdown")).release().await.unwrap();
    }
    theirs.release().await.unwrap();
    let error = blocked.acquire(&leaving).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ShutDown, "{error}");
    stage.take(&recorder, &other, &blocked).await.release().await.unwrap();
    stage.until_nothing_is_left(&other, &blocked).await;
}

/// A guard keeps what it needs: dropping every `Locks` first takes nothing from it.
pub async fn a_guard_outlives_the_locks_it_came_from<F: Fixture>(stage: Stage<F>) {
    let other = stage.locks().await;
    let want = Want::mutex("outlives");
    undisturbed(&stage, stage.pace().expiry / 3, async |attempt| {
        let recorder = stage.recorder(&format!("attempt-{attempt}"));
        let leaving = stage.locks_on(stage.expiring()).await;
        let held = stage.take(&recorder, &leaving, &want).await;
        drop(leaving);
        let refused = recorder.take_within(&other, &want, 2 * stage.pace().expiry).await;
        if !held.look() {
            return Err(format!("it was lost when its `Locks` were dropped: {:?}", held.loss()));
        }
        let refused = refused.err().map(|error| error.kind());
        assert_eq!(refused, Some(ErrorKind::Timeout), "it was given to somebody else while it was held");
        drop(held);
        stage.take(&recorder, &other, &want).await.release().await.unwrap();
        Ok(())
    })
    .await;
}
