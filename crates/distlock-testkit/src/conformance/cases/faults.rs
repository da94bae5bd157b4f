//! Failures of the store itself, where its fixture implements them. Each is enabled in the call of
//! [`conformance!`](crate::conformance!).

use distlock_core::store::Backend;
use distlock_core::{ErrorKind, Locks};

use crate::conformance::{Fixture, Harness};
use crate::history::{LockSpec, RecordedGuard, Recorder};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Writes the test of one fault.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_fault {
    ($fault:ident, $fixture:ty) => {
        #[test]
        fn $fault() {
            $crate::conformance::run::<$fixture, _, _>(
                super::ACTOR_ENTRY,
                $crate::conformance::cases::faults::$fault,
            );
        }
    };
}

/// Acquires a lock on a store that may still be recovering: retries while it is unavailable, fails on any other error.
async fn acquire_after_fault<F: Fixture>(
    harness: &Harness<F>,
    recorder: &Arc<Recorder>,
    locks: &Locks,
    spec: &LockSpec,
) -> RecordedGuard {
    acquire_when_over(harness, recorder, locks, spec, &OnceLock::from(Instant::now())).await
}

/// The same while the fault occurs, which may take long on a busy machine: the time limit counts from the moment when it is
/// over.
async fn acquire_when_over<F: Fixture>(
    harness: &Harness<F>,
    recorder: &Arc<Recorder>,
    locks: &Locks,
    spec: &LockSpec,
    over: &OnceLock<Instant>,
) -> RecordedGuard {
    loop {
        match recorder.acquire_within(locks, spec, harness.timing().wait_limit).await {
            Ok(guard) => return guard,
            // While the fault lasts, a waiter's own time limit may pass, too.
            Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout) => {
                let waited = over.get().map(Instant::elapsed).unwrap_or_default();
                assert!(
                    waited < harness.timing().wait_limit,
                    "the store did not recover within {waited:?}: {error}"
                );
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(error) => panic!("{spec:?} should have been granted: {error}"),
        }
    }
}

/// Whether a lock must survive the fault: a lease is a record, a session may end with its connection.
async fn is_lease<F: Fixture>(harness: &Harness<F>) -> bool {
    matches!(harness.fixture().connect().await, Backend::Lease(_))
}

/// A fault occurs with one holder and one waiter. Afterwards the holder still holds if it must, the waiter is granted the
/// lock, and tokens increase.
async fn survive<F: Fixture>(harness: &Harness<F>, must_hold: bool, fault: impl AsyncFn()) {
    let (holder, waiter, other) = (harness.locks().await, harness.locks().await, harness.locks().await);
    let is_lease = is_lease(harness).await;
    let recorder = harness.recorder("holder");
    for (n, spec) in
        LockSpec::every_exclusive(holder.capabilities(), "held during the fault").into_iter().enumerate()
    {
        let held = acquire_after_fault(harness, &recorder, &holder, &spec).await;
        let over = Arc::new(OnceLock::new());
        let waiting = tokio::spawn({
            let (harness, waiter, spec, over) =
                (harness.clone(), waiter.clone(), spec.clone(), Arc::clone(&over));
            let recorder = harness.recorder(&format!("waiter-{n}"));
            async move { acquire_when_over(&harness, &recorder, &waiter, &spec, &over).await }
        });
        harness.wait_for_waiters(&other, &spec, 1).await;
        fault().await;
        let _ = over.set(Instant::now());
        let token = held.token();
        if must_hold && is_lease {
            assert!(held.check_held(), "the fault cost the holder {spec:?}: {:?}", held.loss());
            assert!(!waiting.is_finished(), "two holders of {spec:?}");
        }
        drop(held);
        let next = harness.within(format!("the grant of {spec:?} to the waiter"), waiting).await.unwrap();
        assert!(next.token() > token, "the token of {spec:?} fell from {token} to {}", next.token());
        next.release().await.ok();
        let again = acquire_after_fault(harness, &recorder, &other, &spec).await;
        again.release().await.ok();
    }
}

/// Every connection closes at once. Leases are records, so held locks stay held.
pub async fn cut_connections<F: Fixture>(harness: Harness<F>) {
    survive(&harness, true, async || harness.fixture().cut_connections().await).await;
}

/// The store is killed and restarted with its durable data.
pub async fn restart<F: Fixture>(harness: Harness<F>) {
    let durable = harness.locks().await.capabilities().durable;
    survive(&harness, durable, async || harness.fixture().restart().await).await;
}

/// Another node takes over with all confirmed writes.
pub async fn fail_over<F: Fixture>(harness: Harness<F>) {
    let durable = harness.locks().await.capabilities().durable;
    survive(&harness, durable, async || harness.fixture().fail_over().await).await;
}

/// The store's clock is set back and forward. Tokens still increase, and a free lock can be acquired.
pub async fn move_clock<F: Fixture>(harness: Harness<F>) {
    const HOUR: i64 = 3600;
    let (one, other) = (harness.locks().await, harness.locks().await);
    let recorder = harness.recorder("both");
    for spec in LockSpec::every_exclusive(one.capabilities(), "moved clock") {
        let mut last = 0;
        for offset in [0, -HOUR, HOUR, 0, -2 * HOUR] {
            harness.fixture().move_clock(offset).await;
            for locks in [&one, &other] {
                let guard = acquire_after_fault(&harness, &recorder, locks, &spec).await;
                let token = guard.token().get();
                assert!(
                    token > last,
                    "with its clock off by {offset} s the store granted token {token} after {last}"
                );
                last = token;
                guard.release().await.unwrap();
            }
        }
        // The clock is set back while the lock is held: the lease lasts longer, and excludes others.
        harness.fixture().move_clock(0).await;
        let held = acquire_after_fault(&harness, &recorder, &one, &spec).await;
        harness.fixture().move_clock(-HOUR).await;
        assert!(recorder.try_acquire(&other, &spec).await.unwrap().is_none());
        assert!(held.check_held());
        held.release().await.unwrap();
        harness.fixture().move_clock(0).await;
    }
}
