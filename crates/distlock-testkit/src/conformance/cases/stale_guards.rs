//! A guard that was lost and lives on: what it does late must not hit its successor.

use distlock_core::ReleaseError;

use crate::conformance::loss_cause::LossCause;
use crate::conformance::{Fixture, Harness};
use crate::history::{LockSpec, RecordedGuard};

/// Whose lock the successor's is.
#[derive(Clone, Copy, Debug)]
enum NextHolder {
    OtherEngine,
    SameEngine,
}

/// Loses a lock, gives it to a successor, lets the stale guard do something, and looks whether that did any harm.
async fn outlive<F, P>(harness: &Harness<F>, heir: NextHolder, act: fn(RecordedGuard) -> P)
where
    F: Fixture,
    P: Future<Output = ()> + Send + 'static,
{
    let capabilities = harness.locks().await.capabilities().clone();
    for cause in LossCause::all(harness).await {
        let name = format!("handed over, {cause:?}");
        let case = move |harness: Harness<F>, spec: LockSpec| async move {
            let (first, other) = (harness.locks_with(cause.options(&harness)).await, harness.locks().await);
            let recorder = harness.recorder("takers");
            let stale = harness.acquire(&recorder, &first, &spec).await;
            cause.trigger_and_wait(&harness, &other, &spec, &stale).await;
            let successors = match heir {
                NextHolder::SameEngine => first.with_options(harness.long_lease().to_options()),
                NextHolder::OtherEngine => harness.locks().await,
            };
            let successor = harness.acquire(&recorder, &successors, &spec).await;
            act(stale).await;
            if matches!(heir, NextHolder::OtherEngine) {
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
            let taken = recorder.try_acquire(&other, &spec).await.unwrap();
            assert!(taken.is_none(), "{spec:?} was given out beside its holder");
            assert!(successor.check_held());
            successor.release().await.unwrap();
        };
        harness.for_each(LockSpec::every_exclusive(&capabilities, &name), case).await;
    }
}

async fn release(stale: RecordedGuard) {
    assert!(matches!(stale.release().await, Err(ReleaseError::Lost { .. })));
}

async fn let_go(stale: RecordedGuard) {
    drop(stale);
}

/// Releasing what is lost says so and does nothing else.
pub async fn releasing_a_lost_guard_reports_loss_and_spares_the_next_holder<F: Fixture>(harness: Harness<F>) {
    outlive(&harness, NextHolder::OtherEngine, release).await;
}

/// Its background release must not hit the successor either.
pub async fn dropping_a_lost_guard_spares_the_next_holder<F: Fixture>(harness: Harness<F>) {
    outlive(&harness, NextHolder::OtherEngine, let_go).await;
}

/// A successor of the same engine: it has another lock id, or it would be freed here.
pub async fn a_lost_guard_spares_the_next_holder_of_the_same_engine<F: Fixture>(harness: Harness<F>) {
    outlive(&harness, NextHolder::SameEngine, release).await;
}
