//! Harm done to the store itself, where its fixture can do it. These are asked for one by one: see
//! [`conformance!`](crate::conformance!).

use distlock_core::store::Backend;
use distlock_core::{ErrorKind, Locks};

use crate::conformance::{Fixture, Stage};
use crate::history::{Recorder, Taken, Want};
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
    stage: &Stage<F>,
    recorder: &Arc<Recorder>,
    locks: &Locks,
    want: &Want,
) -> Taken {
    let begun = std::time::Instant::now();
    loop {
        match recorder.take_within(locks, want, stage.pace().patience).await {
            Ok(taken) => return taken,
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                let waited = begun.elapsed();
                assert!(waited < stage.pace().patience, "the store did not come back in {waited:?}: {error}");
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
            Err(error) => panic!("{want:?} should have been granted: {error}"),
        }
    }
}

/// Whether what was held through the harm must still be held: a lease is a record, a session may end with its
/// connection.
async fn is_lease<F: Fixture>(stage: &Stage<F>) -> bool {
    matches!(stage.fixture().connect().await, Backend::Lease(_))
}

/// A holder and a waiter, harm, and then everything goes on: what must be kept is, the waiter gets its turn, and
/// tokens rise.
async fn live_through<F: Fixture>(stage: &Stage<F>, kept: bool, harm: impl AsyncFn()) {
    let (holder, waiter, other) = (stage.locks().await, stage.locks().await, stage.locks().await);
    let is_lease = is_lease(stage).await;
    let recorder = stage.recorder("holder");
    for (n, want) in Want::every_exclusive(holder.capabilities(), "through it").into_iter().enumerate() {
        let held = take_after(stage, &recorder, &holder, &want).await;
        let waiting = tokio::spawn({
            let (stage, waiter, want) = (stage.clone(), waiter.clone(), want.clone());
            let recorder = stage.recorder(&format!("waiter-{n}"));
            async move { take_after(&stage, &recorder, &waiter, &want).await }
        });
        stage.until_waiting(&other, &want, 1).await;
        harm().await;
        let token = held.token();
        if kept && is_lease {
            assert!(held.look(), "the harm cost the holder {want:?}: {:?}", held.loss());
            assert!(!waiting.is_finished(), "two holders of {want:?}");
        }
        drop(held);
        let next = stage.within(format!("the waiter's turn at {want:?}"), waiting).await.unwrap();
        assert!(next.token() > token, "the token of {want:?} fell from {token} to {}", next.token());
        next.release().await.ok();
        let again = take_after(stage, &recorder, &other, &want).await;
        again.release().await.ok();
    }
}

/// Every connection ends at once. Records are not connections: what is held stays held.
pub async fn cut_connections<F: Fixture>(stage: Stage<F>) {
    live_through(&stage, true, async || stage.fixture().cut_connections().await).await;
}

/// The store is killed and comes back with what it kept.
pub async fn restart<F: Fixture>(stage: Stage<F>) {
    let durable = stage.locks().await.capabilities().durable;
    live_through(&stage, durable, async || stage.fixture().restart().await).await;
}

/// Another node takes over, with everything that was confirmed.
pub async fn fail_over<F: Fixture>(stage: Stage<F>) {
    let durable = stage.locks().await.capabilities().durable;
    live_through(&stage, durable, async || stage.fixture().fail_over().await).await;
}

/// Somebody sets the store's clock back and forward. Tokens rise all the same, and a free lock can be had.
pub async fn move_clock<F: Fixture>(stage: Stage<F>) {
    const HOUR: i64 = 3600;
    let (one, other) = (stage.locks().await, stage.locks().await);
    let recorder = stage.recorder("both");
    for want in Want::every_exclusive(one.capabilities(), "out of time") {
        let mut last = 0;
        for offset in [0, -HOUR, HOUR, 0, -2 * HOUR] {
            stage.fixture().move_clock(offset).await;
            for locks in [&one, &other] {
                let taken = take_after(&stage, &recorder, locks, &want).await;
                let token = taken.token().get();
                assert!(token > last, "with its clock off by {offset} s the store gave {token} after {last}");
                last = token;
                taken.release().await.unwrap();
            }
        }
        // Back again while it is held: it lasts longer then, and is still one holder's.
        stage.fixture().move_clock(0).await;
        let held = take_after(&stage, &recorder, &one, &want).await;
        stage.fixture().move_clock(-HOUR).await;
        assert!(recorder.try_take(&other, &want).await.unwrap().is_none());
        assert!(held.look());
        held.release().await.unwrap();
        stage.fixture().move_clock(0).await;
    }
}
