//! A holder that loses its lock learns of it in time, through every method of its guard.

use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use distlock_core::{ErrorKind, Guard, Locks, LossReason, ReleaseError, Resource};

use crate::actors::TestOptions;
use crate::conformance::loss_cause::LossCause;
use crate::conformance::{Fixture, Harness};
use crate::history::{LockSpec, ReleaseOutcome};

/// Asserts that `break_lock` is refused, names the holder, and changes nothing.
async fn breaking_is_refused<F: Fixture>(harness: &Harness<F>, spec: &LockSpec) {
    let (holder, operator) = (harness.locks().await, harness.locks().await);
    let recorder = harness.recorder("holder");
    let held = harness.acquire(&recorder, &holder, spec).await;
    let error = operator.break_lock(spec.kind(), spec.name()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let label = held.lock_id().label();
    assert!(error.to_string().contains(label), "the refusal does not name the holder {label}: {error}");
    assert!(held.check_held(), "a refused `break_lock` released the lock");
    held.release().await.unwrap();
}

/// Forced release of every kind of lock: the store returns the holder, and the guard reports its loss.
pub async fn breaking_a_lock_turns_its_guard_lost<F: Fixture>(harness: Harness<F>) {
    let (holder, operator) = (harness.locks_with(harness.frequent_renewal()).await, harness.locks().await);
    let mut specs = LockSpec::every_exclusive(holder.capabilities(), "broken");
    specs.extend([LockSpec::read("broken read lock"), LockSpec::permits("broken permits", 3, 2)]);
    specs.retain(|spec| spec.is_supported(holder.capabilities()));
    let recorder = harness.recorder("holder");
    for spec in specs {
        if !operator.capabilities().forced_release {
            breaking_is_refused(&harness, &spec).await;
            continue;
        }
        let held = harness.acquire(&recorder, &holder, &spec).await;
        let broken = harness.break_lock(&operator, &spec).await;
        assert_eq!(broken.len(), 1, "{spec:?} had one holder: {broken:?}");
        assert_eq!(broken[0].lock_id, *held.lock_id());
        harness.within(format!("the loss of {spec:?}"), held.wait_for_loss()).await;
        assert!(held.is_lost() && held.loss().is_some());
        assert_eq!(held.time_left(), Some(Duration::ZERO));
        assert!(matches!(held.release().await, Err(ReleaseError::Lost { .. })));
        harness.acquire(&recorder, &operator, &spec).await.release().await.unwrap();
        assert!(harness.break_lock(&operator, &spec).await.is_empty(), "{spec:?} was free");
    }
    if operator.capabilities().forced_release {
        breaking_names_what_else_is_lost(&harness, &holder, &operator).await;
    }
}

/// Where a forced release ends the session of the holder, it names all that is lost with it.
async fn breaking_names_what_else_is_lost<F: Fixture>(
    harness: &Harness<F>,
    holder: &Locks,
    operator: &Locks,
) {
    let spec = LockSpec::mutex("broken with others");
    let held = harness.acquire(&harness.recorder("holder"), holder, &spec).await;
    let mut others = Vec::new();
    for beside in
        [LockSpec::mutex("beside it"), LockSpec::write("beside it"), LockSpec::permits("beside it", 3, 2)]
    {
        if beside.is_supported(holder.capabilities()) {
            let guard = harness.within("a grant", beside.acquire(holder).into_future()).await.unwrap();
            let resource = Resource::new(beside.kind(), beside.name()).unwrap();
            others.push((resource, guard));
        }
    }
    let broken = harness.break_lock(operator, &spec).await;
    harness.within("the loss", held.wait_for_loss()).await;
    let mut named = broken[0].also_held.clone();
    for (resource, guard) in &others {
        match named.iter().position(|other| other == resource) {
            Some(at) => {
                named.remove(at);
                harness.within(format!("the loss of {resource}"), guard.lost()).await;
            }
            None => assert!(!guard.is_lost(), "{resource} was lost too, and not named"),
        }
    }
    assert!(named.is_empty(), "lost and not held: {named:?}");
}

/// Sets a flag when it is dropped.
struct OnDrop(Arc<AtomicBool>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// `run` drops the work and returns the reason. Cancellation tokens created before and after the loss are cancelled.
pub async fn the_work_under_a_lost_lock_is_cancelled<F: Fixture>(harness: Harness<F>) {
    let operator = harness.locks().await;
    let recorder = harness.recorder("worker");
    for cause in LossCause::all(&harness).await {
        let holder = harness.locks_with(cause.options(&harness)).await;
        let spec = LockSpec::mutex(format!("worked under, {cause:?}"));
        let held = harness.acquire(&recorder, &holder, &spec).await;
        let before = held.cancellation_token();
        let dropped = Arc::new(AtomicBool::new(false));
        let on_drop = OnDrop(Arc::clone(&dropped));
        let work = async move {
            let _on_drop = on_drop;
            std::future::pending::<()>().await;
        };
        cause.trigger(&harness, &operator, &spec).await;
        let error = harness.within("the end of the work", held.run(work)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        assert!(dropped.load(Ordering::SeqCst), "the work continues under a lost lock");
        harness.within("a cancelled token", before.cancelled()).await;
        assert!(held.cancellation_token().is_cancelled(), "a token created after the loss is not cancelled");
        assert!(held.run(async {}).await.is_err(), "work was started under a lost lock");
        assert!(!held.check_held());
    }
    let held = harness.acquire(&recorder, &operator, &LockSpec::mutex("worked under")).await;
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

/// The guard is first queried after another client acquired the lock. Its first answer is that it is lost.
pub async fn an_unobserved_loss_is_reported_at_the_first_query<F: Fixture>(harness: Harness<F>) {
    let capabilities = harness.locks().await.capabilities().clone();
    let case = |harness: Harness<F>, spec: LockSpec| async move {
        let holder = harness.locks_with(TestOptions { auto_extend: false, ..harness.short_lease() }).await;
        let other = harness.locks().await;
        let recorder = harness.recorder("both");
        let held = harness.acquire(&recorder, &holder, &spec).await;
        if !harness.has_leases().await {
            // Nothing expires here, with or without renewal.
            tokio::time::sleep(2 * harness.timing().expiry).await;
            assert!(held.check_held(), "a session's lock ended at an expiry that it does not have");
            assert!(recorder.try_acquire(&other, &spec).await.unwrap().is_none());
            return held.release().await.unwrap();
        }
        let next = harness.acquire(&recorder, &other, &spec).await;
        let reason = lost_at_once(&held);
        let known = matches!(reason, Some(LossReason::Expired { .. } | LossReason::NotYours));
        assert!(known, "another client holds {spec:?}, and the first guard reports its loss as: {reason:?}");
        assert!(!held.check_held());
        next.release().await.unwrap();
    };
    harness.for_each(LockSpec::every_exclusive(&capabilities, "unobserved loss"), case).await;
}

/// A holder is paused for longer than its expiry: another client acquires the lock, and the holder reports its loss as soon as
/// it resumes. On a store where nothing expires, it still holds. On one that does not free the locks of silent sessions, the other
/// client acquires the lock after the holder has resumed.
pub async fn a_paused_holder_reports_loss_as_soon_as_it_resumes<F: Fixture>(harness: Harness<F>) {
    let capabilities = harness.locks().await.capabilities().clone();
    let case = |harness: Harness<F>, spec: LockSpec| async move {
        let other = harness.locks().await;
        let recorder = harness.recorder("other");
        let mut holder = harness.actor("holder", harness.short_lease());
        harness.within("a grant", holder.acquire_watched(1, &spec)).await;
        let time_left = harness.within("a reply", holder.time_left(1)).await;
        holder.pause().await;
        if let (Some(time_left), false) = (time_left, harness.fixture().frees_silent_holders()) {
            let waiting = harness.spawn_acquire(&recorder, &other, &spec);
            tokio::time::sleep(time_left + harness.timing().expiry).await;
            assert!(
                !waiting.is_finished(),
                "{spec:?} was granted while the session of a paused holder is open"
            );
            holder.resume();
            assert!(harness.within("a reply", holder.is_lost(1)).await, "a guard outlived its deadline");
            assert_eq!(harness.within("a release", holder.release(1)).await, ReleaseOutcome::Lost);
            waiting.await.unwrap().release().await.unwrap();
        } else if time_left.is_some() {
            let next = harness.acquire(&recorder, &other, &spec).await;
            holder.resume();
            assert!(harness.within("a reply", holder.is_lost(1)).await, "{spec:?} has two holders");
            assert_eq!(harness.within("a release", holder.release(1)).await, ReleaseOutcome::Lost);
            assert!(next.check_held(), "a paused holder released {spec:?} of the next one");
            next.release().await.unwrap();
        } else {
            let limit = 2 * harness.timing().expiry;
            let refused = recorder.acquire_within(&other, &spec, limit).await.unwrap_err();
            // On a busy machine the store may not answer within the limit.
            assert!(matches!(refused.kind(), ErrorKind::Timeout | ErrorKind::Unavailable), "{refused}");
            holder.resume();
            assert!(!harness.within("a reply", holder.is_lost(1)).await, "a pause ended a session");
            assert_eq!(harness.within("a release", holder.release(1)).await, ReleaseOutcome::Clean);
        }
        holder.shutdown().await;
    };
    harness.for_each(LockSpec::every_exclusive(&capabilities, "paused holder"), case).await;
}
