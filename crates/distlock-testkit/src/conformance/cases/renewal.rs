//! How long a lock lasts: as long as its guard is renewed, and at least as long as requested.

use std::time::{Duration, Instant};

use distlock_core::{ErrorKind, Kind, Options};

use crate::actors::TestOptions;
use crate::conformance::stalls::retry_if_stalled;
use crate::conformance::{Fixture, Harness};
use crate::history::LockSpec;

/// A renewed lock is held for several expiries, and no other client acquires it.
pub async fn a_held_lock_outlives_many_expiries<F: Fixture>(harness: Harness<F>) {
    let options = TestOptions { cadence: Some(harness.timing().expiry / 8), ..harness.short_lease() };
    let (holder, other) = (harness.locks_with(options).await, harness.locks().await);
    let specs = LockSpec::every_exclusive(holder.capabilities(), "renewed");
    retry_if_stalled(&harness, harness.timing().expiry / 3, async |attempt| {
        let recorder = harness.recorder(&format!("attempt-{attempt}"));
        let mut held = Vec::new();
        for spec in &specs {
            held.push((spec, harness.acquire(&recorder, &holder, spec).await));
        }
        let begun = Instant::now();
        while begun.elapsed() < 3 * harness.timing().expiry {
            for (spec, guard) in &held {
                let other = recorder.try_acquire(&other, spec).await.unwrap();
                if !guard.check_held() {
                    return Err(format!("{spec:?} was lost while it was held: {:?}", guard.loss()));
                }
                assert!(other.is_none(), "{spec:?} was granted to another client while it was held");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for (spec, guard) in held {
            guard.release().await.map_err(|error| format!("{spec:?}: {error}"))?;
        }
        Ok(())
    })
    .await;
}

/// Without renewal a lease ends at its expiry, neither sooner nor later. A session does not expire.
pub async fn a_lease_without_renewal_lasts_its_whole_expiry<F: Fixture>(harness: Harness<F>) {
    let capabilities = harness.locks().await.capabilities().clone();
    harness.for_each(LockSpec::every_exclusive(&capabilities, "not renewed"), expire).await;
}

async fn expire<F: Fixture>(harness: Harness<F>, spec: LockSpec) {
    let options = TestOptions { auto_extend: false, ..harness.short_lease() };
    let expiry = harness.timing().expiry;
    let (holder, other) = (harness.locks_with(options).await, harness.locks().await);
    let recorder = harness.recorder("both");
    let requested = Instant::now();
    let held = harness.acquire(&recorder, &holder, &spec).await;
    if !harness.has_leases().await {
        tokio::time::sleep(2 * expiry).await;
        assert!(held.check_held(), "a session's lock ended at an expiry that it does not have");
        return held.release().await.unwrap();
    }
    assert!(held.time_left().is_some_and(|left| left <= expiry));
    let next = harness.spawn_acquire(&recorder, &other, &spec);
    // Checked until the end, so that the history shows whether the next holder was granted too early.
    while held.check_held() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let lasted = requested.elapsed();
    // The holder's safety margin: one per cent for clock drift and a few milliseconds.
    let least = expiry - expiry / 50 - Duration::from_millis(5);
    assert!(lasted >= least, "a lease of {expiry:?} on {spec:?} ended after {lasted:?}");
    let next = harness.within(format!("the end of a lease on {spec:?}"), next).await.unwrap();
    assert!(requested.elapsed() >= least);
    next.release().await.unwrap();
}

/// A lock with `hold_at_least` stays held for that time although it is released or dropped at once.
pub async fn hold_at_least_keeps_a_lock_released_early<F: Fixture>(harness: Harness<F>) {
    let capabilities = harness.locks().await.capabilities().clone();
    let specs = LockSpec::every_exclusive(&capabilities, "held at least");
    if capabilities.minimum_hold {
        harness.for_each(specs, release_early).await;
    } else {
        harness.for_each(specs, refuse_minimum_hold).await;
    }
}

/// A store whose locks end with the session says so before anything is sent.
async fn refuse_minimum_hold<F: Fixture>(harness: Harness<F>, spec: LockSpec) {
    let options = TestOptions { hold_at_least: Duration::from_millis(400), ..harness.long_lease() };
    let locks = harness.locks_with(options).await;
    let error = spec.acquire(&locks).timeout(harness.timing().wait_limit).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{spec:?}: {error}");
}

async fn release_early<F: Fixture>(harness: Harness<F>, spec: LockSpec) {
    let least = Duration::from_millis(400);
    let options = TestOptions { hold_at_least: least, ..harness.long_lease() };
    let (holder, other) = (harness.locks_with(options).await, harness.locks().await);
    let recorder = harness.recorder("next");
    for released in [true, false] {
        let requested = Instant::now();
        let guard = spec.acquire(&holder).timeout(harness.timing().wait_limit).await.expect("a grant");
        let release = released.then(|| tokio::spawn(guard.release()));
        let next = harness.acquire(&recorder, &other, &spec).await;
        assert!(requested.elapsed() >= least, "{spec:?} was free after {:?}", requested.elapsed());
        if let Some(release) = release {
            release.await.unwrap().expect("a clean release");
        }
        next.release().await.unwrap();
    }
}

/// A renewal that the user asks for, with and without automatic renewal, on every kind of lock.
pub async fn a_renewal_on_request_is_answered<F: Fixture>(harness: Harness<F>) {
    let (one, other) = (harness.locks().await, harness.locks().await);
    for automatic in [true, false] {
        let locks = one.with_options(Options::new().auto_extend(automatic));
        let mut guards = vec![locks.mutex("asked").acquire().await.unwrap()];
        if harness.supports(&one, &LockSpec::permits("asked", 2, 1)).await {
            guards.push(locks.semaphore("asked", 2).acquire().await.unwrap());
        }
        for guard in guards {
            for _ in 0..3 {
                guard.renew().await.unwrap();
            }
            assert!(!guard.is_lost());
            assert!(
                other.mutex("asked").try_acquire().await.unwrap().is_none()
                    || guard.resource().kind() != Kind::Mutex
            );
            guard.release().await.unwrap();
        }
    }
}
