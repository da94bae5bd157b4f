//! A guard that was lost and lives on: what it does late must not hit its successor.

use distlock_core::ReleaseError;

use crate::conformance::ways::Way;
use crate::conformance::{Fixture, Stage};
use crate::history::{Taken, Want};

/// Whose lock the successor's is.
#[derive(Clone, Copy, Debug)]
enum Heir {
    OtherEngine,
    SameEngine,
}

/// Loses a lock, gives it to a successor, lets the stale guard do something, and looks whether that did any harm.
async fn outlive<F, P>(stage: &Stage<F>, heir: Heir, act: fn(Taken) -> P)
where
    F: Fixture,
    P: Future<Output = ()> + Send + 'static,
{
    let capabilities = stage.locks().await.capabilities().clone();
    for way in Way::all(stage).await {
        let name = format!("handed over, {way:?}");
        let play = move |stage: Stage<F>, want: Want| async move {
            let (first, other) = (stage.locks_on(way.terms(&stage)).await, stage.locks().await);
            let recorder = stage.recorder("takers");
            let stale = stage.take(&recorder, &first, &want).await;
            way.lose(&stage, &other, &want, &stale).await;
            let successors = match heir {
                Heir::SameEngine => first.with_options(stage.lasting().options()),
                Heir::OtherEngine => stage.locks().await,
            };
            let successor = stage.take(&recorder, &successors, &want).await;
            act(stale).await;
            if matches!(heir, Heir::OtherEngine) {
                // Drained: what was left to the background has happened when we look.
                first.shutdown().await.unwrap();
            }
            // Asked of the record first: a fair lock that was taken away is still refused to others, by its turn.
            let record = stage.record(&other, &want).await;
            let holder = record.as_ref().and_then(|record| record.holders.first());
            assert!(
                holder.is_some_and(|holder| holder.lock_id == *successor.lock_id()),
                "a stale guard took {want:?} from its next holder: {record:?}"
            );
            let taken = recorder.try_take(&other, &want).await.unwrap();
            assert!(taken.is_none(), "{want:?} was given out beside its holder");
            assert!(successor.look());
            successor.release().await.unwrap();
        };
        stage.for_each(Want::every_exclusive(&capabilities, &name), play).await;
    }
}

async fn release(stale: Taken) {
    assert!(matches!(stale.release().await, Err(ReleaseError::Lost { .. })));
}

async fn let_go(stale: Taken) {
    drop(stale);
}

/// Releasing what is lost says so and does nothing else.
pub async fn releasing_a_lost_guard_says_so_and_leaves_its_successor_alone<F: Fixture>(stage: Stage<F>) {
    outlive(&stage, Heir::OtherEngine, release).await;
}

/// Its background release must not hit the successor either.
pub async fn dropping_a_lost_guard_leaves_its_successor_alone<F: Fixture>(stage: Stage<F>) {
    outlive(&stage, Heir::OtherEngine, let_go).await;
}

/// A successor of the same engine: it has another lock id, or it would be freed here.
pub async fn a_successor_of_the_same_engine_is_left_alone_too<F: Fixture>(stage: Stage<F>) {
    outlive(&stage, Heir::SameEngine, release).await;
}
