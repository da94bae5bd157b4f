//! What a lost guard does late must not affect the next holder.

use distlock_core::ReleaseError;

use crate::conformance::loss_cause::LossCause;
use crate::conformance::{Fixture, Harness};
use crate::history::{LockSpec, RecordedGuard};

/// Which engine the next holder belongs to.
#[derive(Clone, Copy, Debug)]
enum NextHolder {
    OtherEngine,
    SameEngine,
}

/// Loses a lock, lets the next holder acquire it, runs `act` on the stale guard, and checks that the next holder still holds.
async fn act_on_stale_guard<F, P>(harness: &Harness<F>, next: NextHolder, act: fn(RecordedGuard) -> P)
where
    F: Fixture,
    P: Future<Output = ()> + Send + 'static,
{
    let capabilities = harness.locks().await.capabilities().clone();
    for cause in LossCause::all(harness).await {
        let name = format!("stale, {cause:?}");
        let case = move |harness: Harness<F>, spec: LockSpec| async move {
            let (first, other) = (harness.locks_with(cause.options(&harness)).await, harness.locks().await);
            let recorder = harness.recorder("holders");
            let stale = harness.acquire(&recorder, &first, &spec).await;
            cause.trigger_and_wait(&harness, &other, &spec, &stale).await;
            let next_locks = match next {
                NextHolder::SameEngine => first.with_options(harness.long_lease().to_options()),
                NextHolder::OtherEngine => harness.locks().await,
            };
            let next_guard = harness.acquire(&recorder, &next_locks, &spec).await;
            act(stale).await;
            if matches!(next, NextHolder::OtherEngine) {
                // After the shutdown, all background releases have been sent.
                first.shutdown().await.unwrap();
            }
            // Inspect first: a stolen fair mutex would still refuse others through its fair queue.
            let record = harness.record(&other, &spec).await;
            let holder = record.as_ref().and_then(|record| record.holders.first());
            assert!(
                holder.is_some_and(|holder| holder.lock_id == *next_guard.lock_id()),
                "a stale guard released {spec:?} of its next holder: {record:?}"
            );
            let other = recorder.try_acquire(&other, &spec).await.unwrap();
            assert!(other.is_none(), "{spec:?} was granted while it was held");
            assert!(next_guard.check_held());
            next_guard.release().await.unwrap();
        };
        harness.for_each(LockSpec::every_exclusive(&capabilities, &name), case).await;
    }
}

async fn release(stale: RecordedGuard) {
    assert!(matches!(stale.release().await, Err(ReleaseError::Lost { .. })));
}

async fn drop_guard(stale: RecordedGuard) {
    drop(stale);
}

/// Releasing a lost guard returns `Lost` and does nothing else.
pub async fn releasing_a_lost_guard_reports_loss_and_spares_the_next_holder<F: Fixture>(harness: Harness<F>) {
    act_on_stale_guard(&harness, NextHolder::OtherEngine, release).await;
}

/// The background release of a dropped guard does not affect the next holder either.
pub async fn dropping_a_lost_guard_spares_the_next_holder<F: Fixture>(harness: Harness<F>) {
    act_on_stale_guard(&harness, NextHolder::OtherEngine, drop_guard).await;
}

/// A next holder of the same engine has another lock id, so the stale guard does not release it.
pub async fn a_lost_guard_spares_the_next_holder_of_the_same_engine<F: Fixture>(harness: Harness<F>) {
    act_on_stale_guard(&harness, NextHolder::SameEngine, release).await;
}
