//! Requests that fail on their way there or back: undone, recognised, or tried again.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::faults::{Fault, Verb};
use distlock_core::{ErrorKind, ReleaseError, Result};

use crate::actors::Terms;
use crate::conformance::stalls::undisturbed;
use crate::conformance::{Fixture, Harness};
use crate::history::LockSpec;

fn only_for_leases() {
    println!("this store has sessions, not leases: its requests are its own business");
}

/// The store granted and the answer was lost: asked again, it recognises the lock id. One holder, one release.
pub async fn a_grant_whose_reply_was_lost_is_recognised<F: Fixture>(harness: Harness<F>) {
    let Some((locks, faults)) = harness.faulty_locks_on(harness.lasting()).await else {
        return only_for_leases();
    };
    let other = harness.locks().await;
    let recorder = harness.recorder("both");
    for spec in LockSpec::every_exclusive(locks.capabilities(), "answered late") {
        faults.next(Verb::Acquire, 1, Fault::lost_reply());
        let held = harness.take(&recorder, &locks, &spec).await;
        let record = harness.record(&other, &spec).await.expect("a holder");
        assert_eq!(record.holders.len(), 1, "{record:?}");
        assert_eq!(record.holders[0].lock_id, *held.lock_id());
        held.release().await.unwrap();
        harness.until_nothing_is_left(&other, &spec).await;
        harness.take(&recorder, &other, &spec).await.release().await.unwrap();
    }
}

/// The store granted, and all that is heard of it are errors: the user is told, and the grant is taken back long
/// before its expiry.
pub async fn a_grant_that_nobody_heard_of_is_taken_back<F: Fixture>(harness: Harness<F>) {
    let Some((locks, faults)) = harness.faulty_locks_on(harness.lasting()).await else {
        return only_for_leases();
    };
    let other = harness.locks().await;
    let recorder = harness.recorder("both");
    for spec in LockSpec::every_exclusive(locks.capabilities(), "never answered") {
        faults.always(Verb::Acquire, Fault::lost_reply());
        let error = recorder.take_within(&locks, &spec, Duration::from_millis(300)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "an outage must not look like contention: {error}");
        assert!(error.is_outcome_unknown() && error.store().is_some(), "{error}");
        faults.heal();
        harness.take(&recorder, &other, &spec).await.release().await.unwrap();
        harness.until_nothing_is_left(&other, &spec).await;
    }
}

/// The request hangs, was carried out all the same, and its user gave up: it is undone when it comes back.
pub async fn a_request_that_comes_back_late_is_undone<F: Fixture>(harness: Harness<F>) {
    let Some((locks, faults)) = harness.faulty_locks_on(harness.lasting()).await else {
        return only_for_leases();
    };
    let other = harness.locks().await;
    let recorder = harness.recorder("other");
    for spec in LockSpec::every_exclusive(locks.capabilities(), "given up on") {
        for delayed in [Fault::delay_after, Fault::delay_before] {
            let (mut late, limit) = (Duration::from_millis(100), Duration::from_millis(20));
            faults.next(Verb::Acquire, 1, delayed(Fault::none(), late));
            // A machine that stands still can let even a late answer be in time.
            while let Ok(granted) = tokio::time::timeout(limit, spec.acquire(&locks).into_future()).await {
                granted.unwrap().release().await.unwrap();
                late *= 2;
                assert!(late < harness.pace().patience, "the request was to be late");
                faults.next(Verb::Acquire, 1, delayed(Fault::none(), late));
            }
            faults.heal();
            // The late request may be granted after we asked: it must go again, for us.
            harness.take(&recorder, &other, &spec).await.release().await.unwrap();
            harness.until_nothing_is_left(&other, &spec).await;
        }
    }
}

/// The first request was carried out and is answered only after its user asked again and was granted: that late answer
/// must not take back what the user has by now.
pub async fn an_answer_that_comes_after_its_retry_takes_nothing_back<F: Fixture>(harness: Harness<F>) {
    let capabilities = harness.locks().await.capabilities().clone();
    harness.for_each(LockSpec::every_exclusive(&capabilities, "asked twice"), ask_twice).await;
}

async fn ask_twice<F: Fixture>(harness: Harness<F>, spec: LockSpec) {
    // The shorter, the sooner done; but a busy server may need longer for an answer that nobody delays.
    let mut late = Duration::from_millis(400);
    while let Err(error) = answer_late(&harness, &spec, late).await {
        late *= 4;
        assert!(late < harness.pace().patience, "{spec:?} should have been granted: {error}");
    }
}

/// # Errors
/// If the lock was not granted.
async fn answer_late<F: Fixture>(harness: &Harness<F>, spec: &LockSpec, late: Duration) -> Result<()> {
    let terms = Terms { request_timeout: late / 2, ..harness.lasting() };
    let Some((locks, faults)) = harness.faulty_locks_on(terms).await else {
        only_for_leases();
        return Ok(());
    };
    let other = harness.locks().await;
    let recorder = harness.recorder("both");
    for fault in [Fault::none().delay_after(late), Fault::none().delay_before(late)] {
        faults.next(Verb::Acquire, 1, fault);
        let held = match recorder.take_within(&locks, spec, harness.pace().patience).await {
            Ok(held) => held,
            Err(error) => {
                // What is still under way must be undone before the next one tries.
                locks.shutdown().await.ok();
                harness.until_nothing_is_left(&other, spec).await;
                return Err(error);
            }
        };
        let begun = std::time::Instant::now();
        while begun.elapsed() < 2 * late {
            let taken = recorder.try_take(&other, spec).await.unwrap();
            assert!(taken.is_none(), "a late answer freed {spec:?} under its holder");
            assert!(held.look());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let released = held.release().await;
        assert!(matches!(released, Ok(()) | Err(ReleaseError::Unknown { .. })), "{released:?}");
        harness.until_nothing_is_left(&other, spec).await;
    }
    Ok(())
}

/// A release whose answer was lost is told as such, and the lock is free, or soon is, long before its expiry.
pub async fn a_release_whose_reply_was_lost_is_finished<F: Fixture>(harness: Harness<F>) {
    let Some((locks, faults)) = harness.faulty_locks_on(harness.lasting()).await else {
        return only_for_leases();
    };
    let other = harness.locks().await;
    let recorder = harness.recorder("both");
    for spec in LockSpec::every_exclusive(locks.capabilities(), "given back") {
        for fault in [Fault::lost_reply(), Fault::fail()] {
            let held = harness.take(&recorder, &locks, &spec).await;
            faults.next(Verb::Release, 1, fault);
            let released = held.release().await;
            assert!(matches!(released, Ok(()) | Err(ReleaseError::Unknown { .. })), "{released:?}");
            harness.take(&recorder, &other, &spec).await.release().await.unwrap();
        }
    }
}

/// A renewal that fails is tried again until the deadline: it takes nothing from its holder.
pub async fn a_failed_renewal_changes_nothing<F: Fixture>(harness: Harness<F>) {
    let terms = Terms { cadence: Some(harness.pace().expiry / 8), ..harness.expiring() };
    let other = harness.locks().await;
    let spec = LockSpec::mutex("extended with trouble");
    for (n, fault) in [Fault::fail(), Fault::lost_reply()].into_iter().enumerate() {
        undisturbed(&harness, harness.pace().expiry / 4, async |attempt| {
            let Some((locks, faults)) = harness.faulty_locks_on(terms).await else {
                only_for_leases();
                return Ok(());
            };
            let recorder = harness.recorder(&format!("holder-{n}-{attempt}"));
            let held = harness.take(&recorder, &locks, &spec).await;
            let begun = std::time::Instant::now();
            faults.next(Verb::Renew, 2, fault);
            while begun.elapsed() < 2 * harness.pace().expiry {
                let other = recorder.try_take(&other, &spec).await.unwrap();
                if !held.look() {
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

/// Renewals that all fail: the guard is lost before the store may give the lock away, and the history shows it.
pub async fn a_holder_cut_off_from_its_store_is_lost_in_time<F: Fixture>(harness: Harness<F>) {
    let capabilities = harness.locks().await.capabilities().clone();
    harness.for_each(LockSpec::every_exclusive(&capabilities, "cut off"), cut_off).await;
}

async fn cut_off<F: Fixture>(harness: Harness<F>, spec: LockSpec) {
    let Some((locks, faults)) = harness.faulty_locks_on(harness.expiring()).await else {
        return only_for_leases();
    };
    let other = harness.locks().await;
    let recorder = harness.recorder("both");
    let held = harness.take(&recorder, &locks, &spec).await;
    faults.always_all(Fault::fail());
    let next = tokio::spawn({
        let (harness, recorder) = (harness.clone(), Arc::clone(&recorder));
        let spec = spec.clone();
        async move { harness.take(&recorder, &other, &spec).await }
    });
    while held.look() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let next = harness.within(format!("the next holder of {spec:?}"), next).await.unwrap();
    let error = recorder.take_within(&locks, &spec, Duration::from_millis(500)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "an outage must not look like contention: {error}");
    faults.heal();
    next.release().await.unwrap();
}
