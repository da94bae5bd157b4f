//! Failed requests and lost replies: the engine undoes, recognises or retries them.

use std::future::IntoFuture;
use std::time::Duration;

use distlock_core::faults::{Fault, Verb};
use distlock_core::{ErrorKind, ReleaseError, Result};

use crate::actors::TestOptions;
use crate::conformance::stalls::retry_if_stalled;
use crate::conformance::{Fixture, Harness};
use crate::history::LockSpec;

fn only_for_leases() {
    println!("not applicable: a session store, whose requests are internal");
}

/// The store granted the lock and the reply was lost. It recognises the lock id of the retry: one holder, one release.
pub async fn a_grant_whose_reply_was_lost_is_recognised<F: Fixture>(harness: Harness<F>) {
    let Some((locks, faults)) = harness.faulty_locks_with(harness.long_lease()).await else {
        return only_for_leases();
    };
    let other = harness.locks().await;
    let recorder = harness.recorder("both");
    for spec in LockSpec::every_exclusive(locks.capabilities(), "lost reply") {
        faults.next(Verb::Acquire, 1, Fault::lost_reply());
        let held = harness.acquire(&recorder, &locks, &spec).await;
        let record = harness.record(&other, &spec).await.expect("a holder");
        assert_eq!(record.holders.len(), 1, "{record:?}");
        assert_eq!(record.holders[0].lock_id, *held.lock_id());
        held.release().await.unwrap();
        harness.wait_until_unused(&other, &spec).await;
        harness.acquire(&recorder, &other, &spec).await.release().await.unwrap();
    }
}

/// The store granted the lock and all replies were lost. The user gets an error, and the grant is released long before its
/// expiry.
pub async fn a_grant_whose_replies_were_all_lost_is_released<F: Fixture>(harness: Harness<F>) {
    let Some((locks, faults)) = harness.faulty_locks_with(harness.long_lease()).await else {
        return only_for_leases();
    };
    let other = harness.locks().await;
    let recorder = harness.recorder("both");
    for spec in LockSpec::every_exclusive(locks.capabilities(), "all replies lost") {
        faults.always(Verb::Acquire, Fault::lost_reply());
        let error = recorder.acquire_within(&locks, &spec, Duration::from_millis(300)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "an outage must not look like contention: {error}");
        assert!(error.is_outcome_unknown() && error.store().is_some(), "{error}");
        faults.heal();
        harness.acquire(&recorder, &other, &spec).await.release().await.unwrap();
        harness.wait_until_unused(&other, &spec).await;
    }
}

/// The request hangs, was applied, and its user cancelled it. It is undone when its reply arrives.
pub async fn a_late_grant_of_a_cancelled_request_is_undone<F: Fixture>(harness: Harness<F>) {
    let Some((locks, faults)) = harness.faulty_locks_with(harness.long_lease()).await else {
        return only_for_leases();
    };
    let other = harness.locks().await;
    let recorder = harness.recorder("other");
    for spec in LockSpec::every_exclusive(locks.capabilities(), "cancelled") {
        for delayed in [Fault::delay_after, Fault::delay_before] {
            let (mut late, limit) = (Duration::from_millis(100), Duration::from_millis(20));
            faults.next(Verb::Acquire, 1, delayed(Fault::none(), late));
            // If the machine stalls, even a late reply can be in time.
            while let Ok(granted) = tokio::time::timeout(limit, spec.acquire(&locks).into_future()).await {
                granted.unwrap().release().await.unwrap();
                late *= 2;
                assert!(late < harness.timing().wait_limit, "the reply was never late");
                faults.next(Verb::Acquire, 1, delayed(Fault::none(), late));
            }
            faults.heal();
            // The late request may be granted before this one: it must be released again.
            harness.acquire(&recorder, &other, &spec).await.release().await.unwrap();
            harness.wait_until_unused(&other, &spec).await;
        }
    }
}

/// The reply to the first request arrives only after the retry was granted. The late reply must not release the lock of the
/// retry.
pub async fn a_late_reply_after_a_retry_releases_nothing<F: Fixture>(harness: Harness<F>) {
    let capabilities = harness.locks().await.capabilities().clone();
    harness.for_each(LockSpec::every_exclusive(&capabilities, "retried"), retry_before_reply).await;
}

async fn retry_before_reply<F: Fixture>(harness: Harness<F>, spec: LockSpec) {
    // A short delay makes the case fast, but a busy server may need longer for an undelayed reply.
    let mut late = Duration::from_millis(400);
    while let Err(error) = delay_first_reply(&harness, &spec, late).await {
        late *= 4;
        assert!(late < harness.timing().wait_limit, "{spec:?} should have been granted: {error}");
    }
}

/// # Errors
/// If the lock was not granted.
async fn delay_first_reply<F: Fixture>(harness: &Harness<F>, spec: &LockSpec, late: Duration) -> Result<()> {
    let options = TestOptions { request_timeout: late / 2, ..harness.long_lease() };
    let Some((locks, faults)) = harness.faulty_locks_with(options).await else {
        only_for_leases();
        return Ok(());
    };
    let other = harness.locks().await;
    let recorder = harness.recorder("both");
    for fault in [Fault::none().delay_after(late), Fault::none().delay_before(late)] {
        faults.next(Verb::Acquire, 1, fault);
        let held = match recorder.acquire_within(&locks, spec, harness.timing().wait_limit).await {
            Ok(held) => held,
            Err(error) => {
                // Requests in flight must be undone before the next attempt.
                locks.shutdown().await.ok();
                harness.wait_until_unused(&other, spec).await;
                return Err(error);
            }
        };
        let begun = std::time::Instant::now();
        while begun.elapsed() < 2 * late {
            let other = recorder.try_acquire(&other, spec).await.unwrap();
            assert!(other.is_none(), "a late reply released {spec:?} of its holder");
            assert!(held.check_held());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let released = held.release().await;
        assert!(matches!(released, Ok(()) | Err(ReleaseError::Unknown { .. })), "{released:?}");
        harness.wait_until_unused(&other, spec).await;
    }
    Ok(())
}

/// A release whose reply was lost returns `Unknown` or succeeds, and the lock becomes free long before its expiry.
pub async fn a_release_whose_reply_was_lost_completes<F: Fixture>(harness: Harness<F>) {
    let Some((locks, faults)) = harness.faulty_locks_with(harness.long_lease()).await else {
        return only_for_leases();
    };
    let other = harness.locks().await;
    let recorder = harness.recorder("both");
    for spec in LockSpec::every_exclusive(locks.capabilities(), "released") {
        for fault in [Fault::lost_reply(), Fault::fail()] {
            let held = harness.acquire(&recorder, &locks, &spec).await;
            faults.next(Verb::Release, 1, fault);
            let released = held.release().await;
            assert!(matches!(released, Ok(()) | Err(ReleaseError::Unknown { .. })), "{released:?}");
            harness.acquire(&recorder, &other, &spec).await.release().await.unwrap();
        }
    }
}

/// A failed renewal is retried until the deadline. The holder keeps its lock.
pub async fn a_failed_renewal_changes_nothing<F: Fixture>(harness: Harness<F>) {
    let options = TestOptions { cadence: Some(harness.timing().expiry / 8), ..harness.short_lease() };
    let other = harness.locks().await;
    let spec = LockSpec::mutex("failed renewals");
    for (n, fault) in [Fault::fail(), Fault::lost_reply()].into_iter().enumerate() {
        retry_if_stalled(&harness, harness.timing().expiry / 4, async |attempt| {
            let Some((locks, faults)) = harness.faulty_locks_with(options).await else {
                only_for_leases();
                return Ok(());
            };
            let recorder = harness.recorder(&format!("holder-{n}-{attempt}"));
            let held = harness.acquire(&recorder, &locks, &spec).await;
            let begun = std::time::Instant::now();
            faults.next(Verb::Renew, 2, fault);
            while begun.elapsed() < 2 * harness.timing().expiry {
                let other = recorder.try_acquire(&other, &spec).await.unwrap();
                if !held.check_held() {
                    return Err(format!("lost after two failed renewals: {:?}", held.loss()));
                }
                assert!(other.is_none(), "a failed renewal freed the lock");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            held.release().await.map_err(|error| error.to_string())
        })
        .await;
    }
}

/// All renewals fail: the guard is lost before the store grants the lock to the next holder, as the history shows.
pub async fn a_holder_cut_off_from_its_store_reports_loss_in_time<F: Fixture>(harness: Harness<F>) {
    let capabilities = harness.locks().await.capabilities().clone();
    harness.for_each(LockSpec::every_exclusive(&capabilities, "cut off"), cut_off).await;
}

async fn cut_off<F: Fixture>(harness: Harness<F>, spec: LockSpec) {
    let Some((locks, faults)) = harness.faulty_locks_with(harness.short_lease()).await else {
        return only_for_leases();
    };
    let other = harness.locks().await;
    let recorder = harness.recorder("both");
    let held = harness.acquire(&recorder, &locks, &spec).await;
    faults.always_all(Fault::fail());
    let next = harness.spawn_acquire(&recorder, &other, &spec);
    while held.check_held() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let next = harness.within(format!("the next holder of {spec:?}"), next).await.unwrap();
    let error = recorder.acquire_within(&locks, &spec, Duration::from_millis(500)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "an outage must not look like contention: {error}");
    faults.heal();
    next.release().await.unwrap();
}
