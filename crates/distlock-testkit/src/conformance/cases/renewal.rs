//! How long a lock is held: as long as its guard lives, and at least as long as was asked for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::actors::TestOptions;
use crate::conformance::stalls::retry_if_stalled;
use crate::conformance::{Fixture, Harness};
use crate::history::LockSpec;

/// A guard that lives is held, for several expiries, and nobody else gets in.
pub async fn a_held_lock_outlives_many_expiries<F: Fixture>(harness: Harness<F>) {
    let options = TestOptions { cadence: Some(harness.timing().expiry / 8), ..harness.short_lease() };
    let (holder, other) = (harness.locks_with(options).await, harness.locks().await);
    let specs = LockSpec::every_exclusive(holder.capabilities(), "kept");
    retry_if_stalled(&harness, harness.timing().expiry / 3, async |attempt| {
        let recorder = harness.recorder(&format!("attempt-{attempt}"));
        let mut held = Vec::new();
        for spec in &specs {
            held.push((spec, harness.acquire(&recorder, &holder, spec).await));
        }
        let begun = Instant::now();
        while begun.elapsed() < 3 * harness.timing().expiry {
            for (spec, taken) in &held {
                let other = recorder.try_acquire(&other, spec).await.unwrap();
                if !taken.check_held() {
                    return Err(format!("{spec:?} was lost while it was held: {:?}", taken.loss()));
                }
                assert!(other.is_none(), "{spec:?} was given to somebody else while it was held");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for (spec, taken) in held {
            taken.release().await.map_err(|error| format!("{spec:?}: {error}"))?;
        }
        Ok(())
    })
    .await;
}

/// A lease that is not extended ends at its expiry: not sooner, and for the store not later either. A session does
/// not care.
pub async fn a_lease_without_renewal_lasts_its_whole_expiry<F: Fixture>(harness: Harness<F>) {
    let capabilities = harness.locks().await.capabilities().clone();
    harness.for_each(LockSpec::every_exclusive(&capabilities, "plain lease"), last).await;
}

async fn last<F: Fixture>(harness: Harness<F>, spec: LockSpec) {
    let options = TestOptions { auto_extend: false, ..harness.short_lease() };
    let expiry = harness.timing().expiry;
    let (holder, other) = (harness.locks_with(options).await, harness.locks().await);
    let recorder = harness.recorder("both");
    let asked = Instant::now();
    let held = harness.acquire(&recorder, &holder, &spec).await;
    if !harness.has_leases().await {
        tokio::time::sleep(2 * expiry).await;
        assert!(held.check_held(), "a session's hold ended at an expiry that it does not have");
        return held.release().await.unwrap();
    }
    assert!(held.time_left().is_some_and(|left| left <= expiry));
    let next = tokio::spawn({
        let (harness, recorder) = (harness.clone(), Arc::clone(&recorder));
        let spec = spec.clone();
        async move { harness.acquire(&recorder, &other, &spec).await }
    });
    // Looks until the end: with the history this shows that nobody was let in before.
    while held.check_held() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let lasted = asked.elapsed();
    // One per cent for clocks of different speed and a few milliseconds are the holder's margin.
    let least = expiry - expiry / 50 - Duration::from_millis(5);
    assert!(lasted >= least, "a lease of {expiry:?} on {spec:?} was over after {lasted:?}");
    let next = harness.within(format!("the end of a lease on {spec:?}"), next).await.unwrap();
    assert!(asked.elapsed() >= least);
    next.release().await.unwrap();
}

/// A lock that is to be kept at least so long is, although it is released or dropped at once.
pub async fn hold_at_least_keeps_a_lock_released_early<F: Fixture>(harness: Harness<F>) {
    let capabilities = harness.locks().await.capabilities().clone();
    harness.for_each(LockSpec::every_exclusive(&capabilities, "kept a while"), keep_a_while).await;
}

async fn keep_a_while<F: Fixture>(harness: Harness<F>, spec: LockSpec) {
    let least = Duration::from_millis(400);
    let options = TestOptions { hold_at_least: least, ..harness.long_lease() };
    let (holder, other) = (harness.locks_with(options).await, harness.locks().await);
    let recorder = harness.recorder("next");
    for released in [true, false] {
        let asked = Instant::now();
        let guard = spec.acquire(&holder).timeout(harness.timing().wait_limit).await.expect("a grant");
        let release = released.then(|| tokio::spawn(guard.release()));
        let next = harness.acquire(&recorder, &other, &spec).await;
        assert!(asked.elapsed() >= least, "{spec:?} was free after {:?}", asked.elapsed());
        if let Some(release) = release {
            release.await.unwrap().expect("a clean release");
        }
        next.release().await.unwrap();
    }
}
