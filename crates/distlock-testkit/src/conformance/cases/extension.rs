//! How long a lock is held: as long as its guard lives, and at least as long as was asked for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::actors::Terms;
use crate::conformance::stalls::undisturbed;
use crate::conformance::{Fixture, Stage};
use crate::history::Want;

/// A guard that lives is held, for several expiries, and nobody else gets in.
pub async fn a_held_lock_outlives_many_expiries<F: Fixture>(stage: Stage<F>) {
    let terms = Terms { cadence: Some(stage.pace().expiry / 8), ..stage.expiring() };
    let (holder, other) = (stage.locks_on(terms).await, stage.locks().await);
    let wants = Want::every_exclusive(holder.capabilities(), "kept");
    undisturbed(&stage, stage.pace().expiry / 3, async |attempt| {
        let recorder = stage.recorder(&format!("attempt-{attempt}"));
        let mut held = Vec::new();
        for want in &wants {
            held.push((want, stage.take(&recorder, &holder, want).await));
        }
        let begun = Instant::now();
        while begun.elapsed() < 3 * stage.pace().expiry {
            for (want, taken) in &held {
                let other = recorder.try_take(&other, want).await.unwrap();
                if !taken.look() {
                    return Err(format!("{want:?} was lost while it was held: {:?}", taken.loss()));
                }
                assert!(other.is_none(), "{want:?} was given to somebody else while it was held");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for (want, taken) in held {
            taken.release().await.map_err(|error| format!("{want:?}: {error}"))?;
        }
        Ok(())
    })
    .await;
}

/// A lease that is not extended ends at its expiry: not sooner, and for the store not later either. A session does
/// not care.
pub async fn a_lease_without_extension_lasts_its_whole_expiry<F: Fixture>(stage: Stage<F>) {
    let capabilities = stage.locks().await.capabilities().clone();
    stage.for_each(Want::every_exclusive(&capabilities, "plain lease"), last).await;
}

async fn last<F: Fixture>(stage: Stage<F>, want: Want) {
    let terms = Terms { auto_extend: false, ..stage.expiring() };
    let expiry = stage.pace().expiry;
    let (holder, other) = (stage.locks_on(terms).await, stage.locks().await);
    let recorder = stage.recorder("both");
    let asked = Instant::now();
    let held = stage.take(&recorder, &holder, &want).await;
    if !stage.has_leases().await {
        tokio::time::sleep(2 * expiry).await;
        assert!(held.look(), "a session's hold ended at an expiry that it does not have");
        return held.release().await.unwrap();
    }
    assert!(held.time_left().is_some_and(|left| left <= expiry));
    let next = tokio::spawn({
        let (stage, recorder) = (stage.clone(), Arc::clone(&recorder));
        let want = want.clone();
        async move { stage.take(&recorder, &other, &want).await }
    });
    // Looks until the end: with the history this shows that nobody was let in before.
    while held.look() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let lasted = asked.elapsed();
    // One per cent for clocks of different speed and a few milliseconds are the holder's margin.
    let least = expiry - expiry / 50 - Duration::from_millis(5);
    assert!(lasted >= least, "a lease of {expiry:?} on {want:?} was over after {lasted:?}");
    let next = stage.within(format!("the end of a lease on {want:?}"), next).await.unwrap();
    assert!(asked.elapsed() >= least);
    next.release().await.unwrap();
}

/// A lock that is to be kept at least so long is, although it is released or dropped at once.
pub async fn hold_at_least_keeps_a_lock_that_is_given_back_early<F: Fixture>(stage: Stage<F>) {
    let capabilities = stage.locks().await.capabilities().clone();
    stage.for_each(Want::every_exclusive(&capabilities, "kept a while"), keep_a_while).await;
}

async fn keep_a_while<F: Fixture>(stage: Stage<F>, want: Want) {
    let least = Duration::from_millis(400);
    let terms = Terms { hold_at_least: least, ..stage.lasting() };
    let (holder, other) = (stage.locks_on(terms).await, stage.locks().await);
    let recorder = stage.recorder("next");
    for released in [true, false] {
        let asked = Instant::now();
        let guard = want.acquire(&holder).timeout(stage.pace().patience).await.expect("a grant");
        let release = released.then(|| tokio::spawn(guard.release()));
        let next = stage.take(&recorder, &other, &want).await;
        assert!(asked.elapsed() >= least, "{want:?} was free after {:?}", asked.elapsed());
        if let Some(release) = release {
            release.await.unwrap().expect("a clean release");
        }
        next.release().await.unwrap();
    }
}
