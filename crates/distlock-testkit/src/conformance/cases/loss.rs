//! Whoever loses a lock is told, in time and in every way there is to be told.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use distlock_core::{ErrorKind, Guard, LossReason, ReleaseError};

use crate::actors::Terms;
use crate::conformance::ways::Way;
use crate::conformance::{Fixture, Stage};
use crate::history::{Outcome, Want};

/// Asserts that breaking a lock is refused, that the refusal names who holds it, and that nothing happened.
async fn breaking_is_refused<F: Fixture>(stage: &Stage<F>, want: &Want) {
    let (holder, operator) = (stage.locks().await, stage.locks().await);
    let recorder = stage.recorder("holder");
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
    let mut wants = Want::every_exclusive(holder.capabilities(), "taken away");
    wants.extend([Want::read("taken from a reader"), Want::permits("taken from many", 3, 2)]);
    wants.retain(|want| want.is_offered(holder.capabilities()));
    let recorder = stage.recorder("holder");
    for want in wants {
        if !operator.capabilities().forced_release {
            breaking_is_refused(&stage, &want).await;
            continue;
        }
        let held = stage.take(&recorder, &holder, &want).await;
        let broken = stage.break_lock(&operator, &want).await;
        assert_eq!(broken.len(), 1, "{want:?} had one holder, and {broken:?} were named");
        assert_eq!(broken[0].lock_id, *held.lock_id());
        stage.within(format!("the loss of {want:?}"), held.wait_for_loss()).await;
        assert!(held.is_lost() && held.loss().is_some());
        assert_eq!(held.time_left(), Some(Duration::ZERO));
        assert!(matches!(held.release().await, Err(ReleaseError::Lost { .. })));
        stage.take(&recorder, &operator, &want).await.release().await.unwrap();
        assert!(stage.break_lock(&operator, &want).await.is_empty(), "nobody held {want:?}");
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
    let recorder = stage.recorder("worker");
    for way in Way::all(&stage).await {
        let holder = stage.locks_on(way.terms(&stage)).await;
        let want = Want::mutex(format!("worked under, {way:?}"));
        let held = stage.take(&recorder, &holder, &want).await;
        let before = held.cancellation_token();
        let dropped = Arc::new(AtomicBool::new(false));
        let told = OnDrop(Arc::clone(&dropped));
        let work = async move {
            let _told = told;
            std::future::pending::<()>().await;
        };
        way.begin(&stage, &operator, &want).await;
        let error = stage.within("an end of the work", held.run(work)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        assert!(dropped.load(Ordering::SeqCst), "the work goes on under a lock that is lost");
        stage.within("a cancelled token", before.cancelled()).await;
        assert!(held.cancellation_token().is_cancelled(), "a token made after the loss is not cancelled");
        assert!(held.run(async {}).await.is_err(), "work was begun under a lost lock");
        assert!(!held.look());
    }
    let held = stage.take(&recorder, &operator, &Want::mutex("worked under")).await;
    assert_eq!(held.run(async { 7 }).await.unwrap(), 7);
    assert!(!held.cancellation_token().is_cancelled());
    held.release().await.unwrap();
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
    let capabilities = stage.locks().await.capabilities().clone();
    let play = |stage: Stage<F>, want: Want| async move {
        let holder = stage.locks_on(Terms { auto_extend: false, ..stage.expiring() }).await;
        let other = stage.locks().await;
        let recorder = stage.recorder("both");
        let held = stage.take(&recorder, &holder, &want).await;
        if !stage.has_leases().await {
            // Nothing expires here: automatic extension is not what keeps it.
            tokio::time::sleep(2 * stage.pace().expiry).await;
            assert!(held.look(), "a session's hold ended at an expiry it does not have");
            assert!(recorder.try_take(&other, &want).await.unwrap().is_none());
            return held.release().await.unwrap();
        }
        let next = stage.take(&recorder, &other, &want).await;
        let reason = lost_at_once(&held);
        let known = matches!(reason, Some(LossReason::Expired { .. } | LossReason::NotYours));
        assert!(known, "somebody else has {want:?}, and its guard says of its loss: {reason:?}");
        assert!(!held.look());
        next.release().await.unwrap();
    };
    stage.for_each(Want::every_exclusive(&capabilities, "quietly lost"), play).await;
}

/// A holder that stands still for longer than its expiry: somebody else gets the lock, and the first thing the holder
/// hears when it goes on is that it is lost. Where nothing expires, it still holds.
pub async fn a_paused_holder_knows_at_once_that_it_lost<F: Fixture>(stage: Stage<F>) {
    let capabilities = stage.locks().await.capabilities().clone();
    let play = |stage: Stage<F>, want: Want| async move {
        let other = stage.locks().await;
        let recorder = stage.recorder("other");
        let mut holder = stage.actor("sleeper", stage.expiring());
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
    };
    stage.for_each(Want::every_exclusive(&capabilities, "slept over"), play).await;
}
