//! Whoever loses a lock is told, in time and in every way there is to be told.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use distlock_core::store::Backend;
use distlock_core::{ErrorKind, Guard, Locks, LossReason, ReleaseError};

use crate::actors::Terms;
use crate::conformance::{Fixture, Stage};
use crate::history::{Outcome, Taken, Want};

/// Everything that can be held.
fn everything(locks: &Locks) -> Vec<Want> {
    let mut wants = Want::every_exclusive(locks.capabilities(), "taken away");
    wants.push(Want::read("taken away from a reader"));
    wants.push(Want::permits("taken away from many", 3, 2));
    wants.retain(|want| want.is_offered(locks.capabilities()));
    wants
}

/// Asserts that breaking a lock is refused, that the refusal names who holds it, and that nothing happened.
async fn breaking_is_refused<F: Fixture>(stage: &Stage<F>, want: &Want) {
    let (holder, operator) = (stage.locks().await, stage.locks().await);
    let recorder = stage.recorder("unbreakable");
    let held = stage.take(&recorder, &holder, want).await;
    let error = operator.break_lock(want.kind(), want.name()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let label = held.lock_id().label();
    assert!(error.to_string().contains(label), "the refusal does not name the holder {label}: {error}");
    assert!(held.look(), "a refused break took the lock");
    held.release().await.unwrap();
}

/// Forced release of every kind: the store names who held it, the guard is lost, and says so in every way.
pub async fn a_broken_lock_turns_its_guard_lost<F: Fixture>(stage: Stage<F>) {
    let (holder, operator) = (stage.locks_on(stage.attentive()).await, stage.locks().await);
    if !operator.capabilities().forced_release {
        return breaking_is_refused(&stage, &Want::mutex("unbreakable")).await;
    }
    let recorder = stage.recorder("holder");
    for want in everything(&holder) {
        let held = stage.take(&recorder, &holder, &want).await;
        let broken = stage.break_lock(&operator, &want).await;
        assert_eq!(broken.len(), 1, "{want:?} had one holder, and {broken:?} were named");
        assert_eq!(broken[0].lock_id, *held.lock_id());
        stage.within(format!("the loss of {want:?}"), held.wait_for_loss()).await;
        assert!(held.is_lost() && held.loss().is_some());
        assert_eq!(held.time_left(), Some(Duration::ZERO));
        assert!(matches!(held.release().await, Err(ReleaseError::Lost { .. })));
        stage.take(&recorder, &operator, &want).await.release().await.unwrap();
    }
    assert!(stage.break_lock(&operator, &Want::mutex("never held")).await.is_empty());
}

/// Takes a lock away from its holder by whatever means the store has. False: it has none.
async fn take_away<F: Fixture>(stage: &Stage<F>, operator: &Locks, want: &Want, held: &Taken) -> bool {
    let is_lease = matches!(stage.fixture().connect().await, Backend::Lease(_));
    if operator.capabilities().forced_release {
        stage.break_lock(operator, want).await;
    } else if !is_lease {
        // A session store without forced release: only the end of its session takes a lock away.
        assert!(held.look());
        return false;
    }
    true
}

/// The terms on which a lock can be taken away, one way or the other.
fn losable<F: Fixture>(stage: &Stage<F>, operator: &Locks) -> Terms {
    if operator.capabilities().forced_release {
        stage.attentive()
    } else {
        Terms { auto_extend: false, ..stage.expiring() }
    }
}

/// Tells when it is dropped.
struct OnDrop(Arc<AtomicBool>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// `run` drops the work and says why; tokens that were handed out before and after the loss are cancelled.
pub async fn the_work_under_a_lost_lock_is_cancelled<F: Fixture>(stage: Stage<F>) {
    let operator = stage.locks().await;
    let holder = stage.locks_on(losable(&stage, &operator)).await;
    let recorder = stage.recorder("worker");
    let want = Want::mutex("worked under");
    let held = stage.take(&recorder, &holder, &want).await;
    let before = held.cancellation_token();
    let dropped = Arc::new(AtomicBool::new(false));
    let work = {
        let told = OnDrop(Arc::clone(&dropped));
        async move {
            let _told = told;
            std::future::pending::<()>().await;
        }
    };
    if !take_away(&stage, &operator, &want, &held).await {
        drop(work);
        assert_eq!(held.run(async { 7 }).await.unwrap(), 7);
        return held.release().await.unwrap();
    }
    let error = stage.within("an end of the work", held.run(work)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(dropped.load(Ordering::SeqCst), "the work goes on under a lock that is lost");
    stage.within("a cancelled token", before.cancelled()).await;
    assert!(held.cancellation_token().is_cancelled(), "a token made after the loss is not cancelled");
    assert!(held.run(async {}).await.is_err(), "work was begun under a lost lock");
    held.look();
}

fn lost_at_once(guard: &Guard) -> Option<LossReason> {
    let lost = pin!(guard.lost());
    match lost.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(reason) => Some(reason),
        Poll::Pending => None,
    }
}

/// Nobody looks at the guard until somebody else has the lock. Then its very first word is that it is lost.
pub async fn a_guard_that_was_lost_before_anybody_asked_says_so_at_once<F: Fixture>(stage: Stage<F>) {
    let holder = stage.locks_on(Terms { auto_extend: false, ..stage.expiring() }).await;
    let other = stage.locks().await;
    let recorder = stage.recorder("both");
    for want in Want::every_exclusive(holder.capabilities(), "quietly lost") {
        let held = stage.take(&recorder, &holder, &want).await;
        if matches!(stage.fixture().connect().await, Backend::Session(_)) {
            // Nothing expires here: automatic extension is not what keeps it.
            tokio::time::sleep(2 * stage.pace().expiry).await;
            assert!(held.look(), "a session's hold ended at an expiry it does not have");
            assert!(recorder.try_take(&other, &want).await.unwrap().is_none());
            held.release().await.unwrap();
            continue;
        }
        let next = stage.take(&recorder, &other, &want).await;
        let reason = lost_at_once(&held);
        assert!(matches!(reason, Some(LossReason::Expired { .. } | LossReason::NotYours)), "{reason:?}");
        assert!(!held.look());
        next.release().await.unwrap();
    }
}

/// Giving back what is lost says so, and leaves the successor alone: whoever it is, and also one of the same engine.
pub async fn a_stale_guard_leaves_its_successor_alone<F: Fixture>(stage: Stage<F>) {
    let (lasting, observer) = (stage.locks().await, stage.locks().await);
    for (n, successor_is_of_the_same_engine) in [false, true].into_iter().enumerate() {
        let first = stage.locks_on(losable(&stage, &observer)).await;
        let recorder = stage.recorder(&format!("takers-{n}"));
        for want in Want::every_exclusive(first.capabilities(), "handed over") {
            let stale = stage.take(&recorder, &first, &want).await;
            if !take_away(&stage, &observer, &want, &stale).await {
                stale.release().await.unwrap();
                continue;
            }
            stage.within("the loss", stale.wait_for_loss()).await;
            let engine = if successor_is_of_the_same_engine {
                first.with_options(stage.lasting().options())
            } else {
                lasting.clone()
            };
            let successor = stage.take(&recorder, &engine, &want).await;
            assert!(matches!(stale.release().await, Err(ReleaseError::Lost { .. })));
            assert!(
                recorder.try_take(&observer, &want).await.unwrap().is_none(),
                "the release of a lost {want:?} took it from its next holder"
            );
            let record = stage.record(&observer, &want).await.expect("a holder");
            assert_eq!(record.holders[0].lock_id, *successor.lock_id());
            assert!(successor.look());
            successor.release().await.unwrap();
        }
        // Drained, so that what was left to the background has happened before the next look.
        first.shutdown().await.unwrap();
    }
}

/// The same for one that is dropped: its background release must not hit the successor either.
pub async fn a_dropped_stale_guard_leaves_its_successor_alone<F: Fixture>(stage: Stage<F>) {
    let (lasting, observer) = (stage.locks().await, stage.locks().await);
    let recorder = stage.recorder("takers");
    for want in Want::every_exclusive(lasting.capabilities(), "handed over") {
        let first = stage.locks_on(losable(&stage, &observer)).await;
        let stale = stage.take(&recorder, &first, &want).await;
        if take_away(&stage, &observer, &want, &stale).await {
            stage.within("the loss", stale.wait_for_loss()).await;
            let successor = stage.take(&recorder, &lasting, &want).await;
            drop(stale);
            first.shutdown().await.unwrap();
            assert!(
                recorder.try_take(&observer, &want).await.unwrap().is_none(),
                "{want:?} was freed by a stale guard"
            );
            assert!(successor.look());
        }
    }
}

/// A holder that stands still for longer than its expiry: somebody else gets the lock, and the first thing the holder
/// hears when it goes on is that it is lost. Where nothing expires, it still holds.
pub async fn a_paused_holder_knows_at_once_that_it_lost<F: Fixture>(stage: Stage<F>) {
    let other = stage.locks().await;
    let recorder = stage.recorder("other");
    for (n, want) in Want::every_exclusive(other.capabilities(), "slept over").into_iter().enumerate() {
        let mut holder = stage.actor(&format!("sleeper-{n}"), stage.expiring());
        stage.within("a grant", holder.take_watched(1, &want)).await;
        let expires = stage.within("an answer", holder.time_left(1)).await.is_some();
        holder.pause().await;
        if expires {
            let next = stage.take(&recorder, &other, &want).await;
            holder.resume();
            assert!(stage.within("an answer", holder.is_lost(1)).await, "{want:?} has two holders");
            assert_eq!(stage.within("a release", holder.give_back(1)).await, Outcome::Lost);
            assert!(next.look(), "a holder that was paused took {want:?} from the next one");
            next.release().await.unwrap();
        } else {
            let limit = 2 * stage.pace().expiry;
            let refused = recorder.take_within(&other, &want, limit).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Timeout, "{refused}");
            holder.resume();
            assert!(!stage.within("an answer", holder.is_lost(1)).await, "a pause ended a session");
            assert_eq!(stage.within("a release", holder.give_back(1)).await, Outcome::Clean);
        }
        holder.leave().await;
    }
}
