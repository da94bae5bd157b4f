//! A guard that was lost and lives on: what it does late must not hit its successor.

use distlock_core::ReleaseError;

use crate::conformance::loss_cause::LossCause;
use crate::conformance::{Fixture, Harness};
use crate::history::{LockSpec, RecordedGuard};

/// Whose lock the successor's is.
#[derive(Clone, Copy, Debug)]
enum Heir {
    OtherEngine,
    SameEngine,
}

/// Loses a lock, gives it to a successor, lets the stale guard do something, and looks whether that did any harm.
async fn outlive<F, P>(harness: &Harness<F>, heir: Heir, act: fn(RecordedGuard) -> P)
where
    F: Fixture,
    P: Future<Output = ()> + Send + 'static,
{
    let capabilities = harness.locks().await.capabilities().clone();
    for way in LossCause::all(harness).await {
        let name = format!("handed over, {way:?}");
        let play = move |harness: Harness<F>, spec: LockSpec| async move {
            let (first, other) = (harness.locks_on(way.terms(&harness)).await, harness.locks().await);
            let recorder = harness.recorder("takers");
            let stale = harness.take(&recorder, &first, &spec).await;
            way.lose(&harness, &other, &spec, &stale).await;
            let successors = match heir {
                Heir::SameEngine => first.with_options(harness.lasting().options()),
                Heir::OtherEngine => harness.locks().await,
            };
            let successor = harness.take(&recorder, &successors, &spec).await;
            act(stale).await;
            if matches!(heir, Heir::OtherEngine) {
                // Drained: what was left to the background has happened when we look.
                first.shutdown().await.unwrap();
            }
            // Asked of the record first: a fair lock that was taken away is still refused to others, by its turn.
            let record = harness.record(&other, &spec).await;
            let holder = record.as_ref().and_then(|record| record.holders.first());
            assert!(
                holder.is_some_and(|holder| holder.lock_id == *successor.lock_id()),
                "a stale guard took {spec:?} from its next holder: {record:?}"
            );
            let taken = recorder.try_take(&other, &spec).await.unwrap();
            assert!(taken.is_none(), "{spec:?} was given out beside its holder");
            assert!(successor.look());
            successor.release().await.unwrap();
        };
        harness.for_each(LockSpec::every_exclusive(&capabilities, &name), play).await;
    }
}

async fn release(stale: RecordedGuard) {
    assert!(matches!(stale.release().await, Err(ReleaseError::Lost { .. })));
}

async fn let_go(stale: RecordedGuard) {
    drop(stale);
}

/// Releasing what is lost says so and does nothing else.
pub async fn releasing_a_lost_guard_says_so_and_leaves_its_successor_alone<F: Fixture>(harness: Harness<F>) {
    outlive(&harness, Heir::OtherEngine, release).await;
}

/// Its background release must not hit the successor either.
pub async fn dropping_a_lost_guard_leaves_its_successor_alone<F: Fixture>(harness: Harness<F>) {
    outlive(&harness, Heir::OtherEngine, let_go).await;
}

/// A successor of the same engine: it has another lock id, or it would be freed here.
pub async fn a_successor_of_the_same_engine_is_left_alone_too<F: Fixture>(harness: Harness<F>) {
    outlive(&harness, Heir::SameEngine, release).await;
}
