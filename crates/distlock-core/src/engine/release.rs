//! Releasing: by the user, by a dropped guard, or because no caller wants what the store may have granted.

use std::sync::Arc;
use std::time::Duration;

use futures_core::future::BoxFuture;
use futures_util::FutureExt;
use tokio::sync::oneshot;

use super::command_channel::Command;
use super::held::Held;
use super::pending_releases::PendingRelease;
use super::session_batches::SessionReleaseOperation;
use super::store_call::{ReleaseOperation, contained, no_answer};
use super::{Shared, telemetry};
use crate::clock::{Moment, sleep_until};
use crate::error::{Error, ErrorKind, Result};
use crate::resource::FencingToken;
use crate::store::{Backend, Claim, Lease, LossReason, Released};

/// Why a release failed.
#[derive(Clone, Debug)]
pub(crate) enum ReleaseFailure {
    Lost(LossReason),
    Unknown { until: Duration, error: Error },
}

/// Releases for a user that waits for the answer.
pub(super) async fn release(shared: &Arc<Shared>, held: &Arc<Held>) -> Result<(), ReleaseFailure> {
    wait_minimum_hold(shared, held).await;
    if shared.closing.is_cancelled() && is_left_to_expire(shared, held) {
        held.lose(LossReason::ShutDown);
        shared.schedule.remove(held);
        leave(shared, held).await;
        return Err(ReleaseFailure::Lost(LossReason::ShutDown));
    }
    if let Some(reason) = held.loss(&*shared.clock) {
        let reason = reason.clone();
        forget_lost(shared, held);
        return Err(ReleaseFailure::Lost(reason));
    }
    if !held.begin_release() {
        // Lost since the check above.
        forget_lost(shared, held);
        let reason = held.loss(&*shared.clock).cloned().unwrap_or(LossReason::NotYours);
        return Err(ReleaseFailure::Lost(reason));
    }
    shared.schedule.remove(held);
    let answer = send_release(shared, held.lease(), held.options.get_request_timeout()).await;
    conclude(shared, held, answer)
}

fn conclude(shared: &Arc<Shared>, held: &Arc<Held>, answer: Result<Released>) -> Result<(), ReleaseFailure> {
    let now = shared.clock.now();
    let woke = matches!(answer, Ok(Released::Done { woke: true }));
    if held.finish_release(woke) {
        telemetry::released(held, now.since(held.granted_at), &shared.store_name);
    }
    if let Some(side) = shared.lease.as_ref().filter(|_| !shared.capabilities.push) {
        side.local_wakeups.wake_first(&held.resource);
    }
    match answer {
        Ok(Released::Done { .. }) => Ok(()),
        Ok(Released::NotYours) => Err(ReleaseFailure::Lost(LossReason::NotYours)),
        Err(error) => {
            let error = shared.explain(error, "release", &held.resource);
            telemetry::failed("release", &error, &shared.store_name);
            if error.can_retry() || error.is_outcome_unknown() {
                shared.forget_later(held.stored_lease());
            }
            // By the store's clock it expires at the latest one expiry after the last renewal that may have been applied.
            Err(ReleaseFailure::Unknown { until: held.stored_expiry(), error })
        }
    }
}

/// Waits until the minimum hold time has passed. The lock is still renewed meanwhile.
async fn wait_minimum_hold(shared: &Shared, held: &Held) {
    let until = held.held_at_least_until();
    while shared.clock.now() < until && held.loss(&*shared.clock).is_none() {
        tokio::select! {
            biased;
            () = held.signal().cancelled() => {}
            () = shared.closing.cancelled() => return,
            () = sleep_until(&*shared.clock, until) => {}
        }
    }
}

async fn send_release(shared: &Shared, lease: Lease, timeout: Duration) -> Result<Released> {
    match (&shared.lease, &shared.backend) {
        (Some(side), _) => tokio::time::timeout(timeout, side.release.submit(lease))
            .await
            .unwrap_or_else(|_| Err(no_answer::<ReleaseOperation>(timeout))),
        (None, Backend::Session(store)) => {
            if let Some(side) = shared.session.as_ref().filter(|_| store.batches_release(&lease)) {
                return tokio::time::timeout(timeout, side.release.submit(lease))
                    .await
                    .unwrap_or_else(|_| Err(no_answer::<SessionReleaseOperation>(timeout)))
                    .map(|()| Released::Done { woke: false });
            }
            // The background task drives the call to completion, even if the user is cancelled. A session store that
            // cannot send the release ends the session, which frees the lock too.
            let store = Arc::clone(store);
            let in_callers_task = store.runs_in_callers_task(&lease.resource);
            let mut call = Box::pin(async move {
                contained(&*store, "release", async { store.release(&lease).await }).await
            });
            if in_callers_task && let Some(answer) = (&mut call).now_or_never() {
                return answer.map(|()| Released::Done { woke: false });
            }
            let (reply, answer) = oneshot::channel();
            shared.commands.send(Command::Work(Box::pin(async move {
                let _ = reply.send(call.await);
            })));
            match tokio::time::timeout(timeout, answer).await {
                Ok(Ok(answer)) => answer.map(|()| Released::Done { woke: false }),
                Ok(Err(_)) => Err(shared.stopped()),
                Err(_) => Err(no_answer::<ReleaseOperation>(timeout)),
            }
        }
        (None, Backend::Lease(_)) => {
            Err(Error::new(ErrorKind::Internal, "a lease store without its batchers"))
        }
    }
}

/// Releases a lost hold that the store may still have: a renewal may have been applied although its reply was lost, and
/// a quorum may still have votes for it. Either would keep waiters waiting until the expiry.
fn forget_lost(shared: &Shared, held: &Arc<Held>) {
    shared.schedule.remove(held);
    shared.forget_later(held.stored_lease());
}

/// Lets the background task release a hold that was never given to a user: its minimum hold time does not apply.
pub(super) fn undo(shared: &Shared, held: Arc<Held>) {
    if held.begin_release() {
        shared.schedule.remove(&held);
    }
    let pending = shared.releases.begin(&held.resource);
    shared.commands.send(Command::Release(held, Some(pending)));
}

/// Lets the background task release a hold whose guard was dropped. While its minimum hold time lasts, it is still held.
pub(super) fn later(shared: &Shared, held: Arc<Held>) {
    let now = shared.clock.now();
    let pending = (held.is_releasing() || now >= held.held_at_least_until())
        .then(|| shared.releases.begin(&held.resource));
    if pending.is_some() && held.loss_at(now).is_none() && held.begin_release() {
        shared.schedule.remove(&held);
    }
    shared.commands.send(Command::Release(held, pending));
}

/// Lets the background task withdraw a claim that the store may have granted or queued.
pub(super) fn withdraw_later(shared: &Shared, claim: Claim) {
    let pending = shared.releases.begin(&claim.resource);
    shared.commands.send(Command::Withdraw(claim, Some(pending)));
}

/// Releases a guard that was dropped, or whose release was cancelled.
pub(super) async fn dropped(shared: Arc<Shared>, held: Arc<Held>, _pending: Option<PendingRelease>) {
    if !held.is_releasing() {
        wait_minimum_hold(&shared, &held).await;
        if shared.closing.is_cancelled() && is_left_to_expire(&shared, &held) {
            held.lose(LossReason::ShutDown);
            shared.schedule.remove(&held);
            return leave(&shared, &held).await;
        }
        if held.loss(&*shared.clock).is_some() {
            return forget_lost(&shared, &held);
        }
        if !held.begin_release() {
            return;
        }
        shared.schedule.remove(&held);
    }
    let answer = send_release(&shared, held.lease(), held.options.get_request_timeout()).await;
    let _ = conclude(&shared, &held, answer);
}

/// Removes what the store has under the lock id of a lease. Retries until the store confirms or the lease has expired.
pub(super) async fn forget(shared: Arc<Shared>, lease: Lease, pending: Option<PendingRelease>) {
    let lasts = lease.expiry;
    forget_within(shared, lease, lasts).await;
    drop(pending);
}

/// The same for a claim, whose entry in a wait queue may live longer than a lease.
pub(super) async fn withdraw(shared: Arc<Shared>, claim: Claim, pending: Option<PendingRelease>) {
    forget_within(shared, Lease::of(&claim, FencingToken::new(0)), claim.lasts()).await;
    drop(pending);
}

async fn forget_within(shared: Arc<Shared>, lease: Lease, lasts: Duration) {
    const FIRST_PAUSE: Duration = Duration::from_millis(50);
    const LAST_PAUSE: Duration = Duration::from_secs(1);
    const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);
    let ends: Moment = shared.clock.now().after(lasts);
    let mut pause = FIRST_PAUSE;
    loop {
        match send_release(&shared, lease.clone(), ATTEMPT_TIMEOUT).await {
            Ok(_) => return,
            Err(error) if !error.can_retry() && !error.is_outcome_unknown() => {
                return telemetry::failed("withdraw", &error, &shared.store_name);
            }
            Err(error) => telemetry::failed("withdraw", &error, &shared.store_name),
        }
        if shared.clock.now().after(pause) >= ends {
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// Marks a hold as lost by `shutdown`, and returns the work that releases it. A lease whose minimum hold time has not passed is
/// left in the store.
pub(super) fn shut_down(shared: &Arc<Shared>, held: Arc<Held>) -> Option<BoxFuture<'static, ()>> {
    held.lose(LossReason::ShutDown);
    if is_left_to_expire(shared, &held) {
        let shared = Arc::clone(shared);
        return Some(Box::pin(async move { leave(&shared, &held).await }));
    }
    Some(Box::pin(forget(Arc::clone(shared), held.stored_lease(), None)))
}

/// Leaves a hold in the store for the rest of its minimum hold time. A lease is simply not renewed; a session store keeps a
/// record.
async fn leave(shared: &Shared, held: &Held) {
    let Backend::Session(store) = &shared.backend else { return };
    let lease = held.lease();
    if let Err(error) = contained(&**store, "release", async { store.leave(&lease).await }).await {
        telemetry::failed("release", &error, &shared.store_name);
    }
}

/// Whether a hold that ends now stays in the store, because its minimum hold time has not passed. The first lease of a lease
/// store lasts at least that long.
fn is_left_to_expire(shared: &Shared, held: &Held) -> bool {
    shared.capabilities.minimum_hold && shared.clock.now() < held.held_at_least_until()
}
