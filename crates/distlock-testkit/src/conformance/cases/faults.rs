//! Harm done to the store itself, where its fixture can do it. These are asked for one by one: see
//! [`conformance!`](crate::conformance!).

use distlock_core::store::Backend;
use distlock_core::{ErrorKind, Locks};

use crate::conformance::{Fixture, Harness};
use crate::history::{LockSpec, RecordedGuard, Recorder};
use std::sync::Arc;

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

/// Takes a lock from a store that may still be on its way back: errors that say so are borne, anything else is not.
async fn take_after<F: Fixture>(
    harness: &Harness<F>,
    recorder: &Arc<Recorder>,
    locks: &Locks,
    spec: &LockSpec,
) -> RecordedGuard {
    let begun = std::time::Instant::now();
    loop {
        match recorder.acquire_within(locks, spec, harness.timing().wait_limit).await {
            Ok(taken) => return taken,
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                let waited = begun.elapsed();
                assert!(
                    waited < harness.timing().wait_limit,
                    "the store did not come back in {waited:?}: {error}"
                );
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
            Err(error) => panic!("{spec:?} should have been granted: {error}"),
        }
    }
}

/// Whether what was held through the harm must still be held: a lease is a record, a session may end with its
/// connection.
async fn is_lease<F: Fixture>(harness: &Harness<F>) -> bool {
    matches!(harness.fixture().connect().await, Backend::Lease(_))
}

/// A holder and a waiter, harm, and then everything goes on: what must be kept is, the waiter gets its turn, and
/// tokens rise.
async fn live_through<F: Fixture>(harness: &Harness<F>, kept: bool, harm: impl AsyncFn()) {
    let (holder, waiter, other) = (harness.locks().await, harness.locks().await, harness.locks().await);
    let is_lease = is_lease(harness).await;
    let recorder = harness.recorder("holder");
    for (n, spec) in LockSpec::every_exclusive(holder.capabilities(), "through it").into_iter().enumerate() {
        let held = take_after(harness, &recorder, &holder, &spec).await;
        let waiting = tokio::spawn({
            let (harness, waiter, spec) = (harness.clone(), waiter.clone(), spec.clone());
            let recorder = harness.recorder(&format!("waiter-{n}"));
            async move { take_after(&harness, &recorder, &waiter, &spec).await }
        });
        harness.wait_for_waiters(&other, &spec, 1).await;
        harm().await;
        let token = held.token();
        if kept && is_lease {
            assert!(held.check_held(), "the harm cost the holder {spec:?}: {:?}", held.loss());
            assert!(!waiting.is_finished(), "two holders of {spec:?}");
        }
        drop(held);
        let next = harness.within(format!("the waiter's turn at {spec:?}"), waiting).await.unwrap();
        assert!(next.token() > token, "the token of {spec:?} fell from {token} to {}", next.token());
        next.release().await.ok();
        let again = take_after(harness, &recorder, &other, &spec).await;
        again.release().await.ok();
    }
}

/// Every connection ends at once. Records are not connections: what is held stays held.
pub async fn cut_connections<F: Fixture>(harness: Harness<F>) {
    live_through(&harness, true, async || harness.fixture().cut_connections().await).await;
}

/// The store is killed and comes back with what it kept.
pub async fn restart<F: Fixture>(harness: Harness<F>) {
    let durable = harness.locks().await.capabilities().durable;
    live_through(&harness, durable, async || harness.fixture().restart().await).await;
}

/// Another node takes over, with everything that was confirmed.
pub async fn fail_over<F: Fixture>(harness: Harness<F>) {
    let durable = harness.locks().await.capabilities().durable;
    live_through(&harness, durable, async || harness.fixture().fail_over().await).await;
}

/// Somebody sets the store's clock back and forward. Tokens rise all the same, and a free lock can be had.
pub async fn move_clock<F: Fixture>(harness: Harness<F>) {
    const HOUR: i64 = 3600;
    let (one, other) = (harness.locks().await, harness.locks().await);
    let recorder = harness.recorder("both");
    for spec in LockSpec::every_exclusive(one.capabilities(), "out of time") {
        let mut last = 0;
        for offset in [0, -HOUR, HOUR, 0, -2 * HOUR] {
            harness.fixture().move_clock(offset).await;
            for locks in [&one, &other] {
                let taken = take_after(&harness, &recorder, locks, &spec).await;
                let token = taken.token().get();
                assert!(token > last, "with its clock off by {offset} s the store gave {token} after {last}");
                last = token;
                taken.release().await.unwrap();
            }
        }
        // Back again while it is held: it lasts longer then, and is still one holder's.
        harness.fixture().move_clock(0).await;
        let held = take_after(&harness, &recorder, &one, &spec).await;
        harness.fixture().move_clock(-HOUR).await;
        assert!(recorder.try_acquire(&other, &spec).await.unwrap().is_none());
        assert!(held.check_held());
        held.release().await.unwrap();
        harness.fixture().move_clock(0).await;
    }
}
