//! Giving back: by the user, by a dropped guard, or because nobody wants what the store may have granted.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::contain::contained;
use super::desk::Mail;
use super::held::Held;
use super::lane::{ReleaseVerb, silent};
use super::{Shared, telemetry};
use crate::clock::{Moment, sleep_until};
use crate::error::{Error, ErrorKind, Result};
use crate::resource::FencingToken;
use crate::store::{Backend, Claim, Lease, LossReason, Released};

/// Why a release did not end with the lock given back by us.
#[derive(Clone, Debug)]
pub(crate) enum ReleaseFailure {
    Lost(LossReason),
    Unknown { until: Duration, error: Error },
}

/// The user's own release: waits for the answer.
pub(super) async fn release(shared: &Arc<Shared>, held: &Arc<Held>) -> Result<(), ReleaseFailure> {
    wait_out_hold(shared, held).await;
    if let Some(reason) = held.loss(&*shared.clock) {
        let reason = reason.clone();
        give_up_lost(shared, held);
        return Err(ReleaseFailure::Lost(reason));
    }
    if !held.begin_release() {
        // Lost between the two looks.
        give_up_lost(shared, held);
        let reason = held.loss(&*shared.clock).cloned().unwrap_or(LossReason::NotYours);
        return Err(ReleaseFailure::Lost(reason));
    }
    shared.schedule.remove(held);
    let finish = FinishLater { shared: Arc::clone(shared), held: Some(Arc::clone(held)) };
    let answer = ask_to_release(shared, &held.lease, held.options.get_request_timeout()).await;
    finish.disarm();
    conclude(shared, held, answer)
}

fn conclude(shared: &Arc<Shared>, held: &Arc<Held>, answer: Result<Released>) -> Result<(), ReleaseFailure> {
    let now = shared.clock.now();
    let woke = matches!(answer, Ok(Released::Done { woke: true }));
    if held.finish_release(woke) {
        telemetry::released(&held.lease, now.since(held.granted_at));
    }
    if let Some(side) = shared.lease.as_ref().filter(|_| !shared.capabilities.push) {
        side.neighbours.ring(&held.lease.resource);
    }
    match answer {
        Ok(Released::Done { .. }) => Ok(()),
        Ok(Released::NotYours) => Err(ReleaseFailure::Lost(LossReason::NotYours)),
        Err(error) => {
            let error = shared.explain(error, "release", &held.lease.resource);
            telemetry::failed("release", &error);
            if error.can_retry() || error.is_outcome_unknown() {
                shared.desk.post(Mail::Forget(held.lease.clone()));
            }
            // The store's own clock ends it at the latest one expiry after the last renewal that it may have seen.
            Err(ReleaseFailure::Unknown { until: held.lease.expiry, error })
        }
    }
}

/// Keeps the lock as long as it was asked to be kept at least; it goes on being renewed meanwhile.
async fn wait_out_hold(shared: &Shared, held: &Held) {
    let until = held.granted_at.after(held.options.get_hold_at_least());
    while shared.clock.now() < until && held.loss(&*shared.clock).is_none() {
        tokio::select! {
            () = held.signal().cancelled() => {}
            () = shared.closing.cancelled() => return,
            () = sleep_until(&*shared.clock, until) => {}
        }
    }
}

async fn ask_to_release(shared: &Shared, lease: &Lease, timeout: Duration) -> Result<Released> {
    match (&shared.lease, &shared.backend) {
        (Some(side), _) => tokio::time::timeout(timeout, side.release.submit(lease.clone()))
            .await
            .unwrap_or_else(|_| Err(silent::<ReleaseVerb>(timeout))),
        (None, Backend::Session(store)) => {
            // Driven by the engine's task to its end, so that no user drops it half-way: a session store that
            // cannot be told ends the session, which frees as well.
            let (store, lease) = (Arc::clone(store), lease.clone());
            let (reply, answer) = oneshot::channel();
            shared.desk.post(Mail::Work(Box::pin(async move {
                let answer = contained(&*store, "release", async { store.release(&lease).await }).await;
                let _ = reply.send(answer);
            })));
            match tokio::time::timeout(timeout, answer).await {
                Ok(Ok(answer)) => answer.map(|()| Released::Done { woke: false }),
                Ok(Err(_)) => Err(shared.stopped()),
                Err(_) => Err(silent::<ReleaseVerb>(timeout)),
            }
        }
        (None, Backend::Lease(_)) => Err(Error::new(ErrorKind::Internal, "a lease store without its lanes")),
    }
}

/// A lost guard is given back all the same where the store may still have it: a renewal that was carried out
/// although its answer was lost must not keep others waiting, nor the votes that a quorum still has for it.
fn give_up_lost(shared: &Shared, held: &Arc<Held>) {
    shared.schedule.remove(held);
    shared.desk.post(Mail::Forget(held.lease.clone()));
}

/// If the user drops the release half-way, the engine's task does it again: releasing is idempotent.
struct FinishLater {
    shared: Arc<Shared>,
    held: Option<Arc<Held>>,
}

impl FinishLater {
    fn disarm(mut self) {
        self.held = None;
    }
}

impl Drop for FinishLater {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.shared.desk.post(Mail::Release(held));
        }
    }
}

/// Leaves to the engine's task the release of what nobody ever had for himself: no least time is waited for.
pub(super) fn undo(shared: &Shared, held: Arc<Held>) {
    if held.begin_release() {
        shared.schedule.remove(&held);
    }
    shared.desk.post(Mail::Release(held));
}

/// The release of a guard that was dropped, or whose release was given up half-way.
pub(super) async fn dropped(shared: Arc<Shared>, held: Arc<Held>) {
    if !held.is_releasing() {
        wait_out_hold(&shared, &held).await;
        if held.loss(&*shared.clock).is_some() {
            return give_up_lost(&shared, &held);
        }
        if !held.begin_release() {
            return;
        }
        shared.schedule.remove(&held);
    }
    let answer = ask_to_release(&shared, &held.lease, held.options.get_request_timeout()).await;
    let _ = conclude(&shared, &held, answer);
}

/// Takes away what the store has under the lock id of a lease, trying until it says so or the expiry ended it.
pub(super) async fn forget(shared: Arc<Shared>, lease: Lease) {
    let lasts = lease.expiry;
    forget_within(shared, lease, lasts).await;
}

/// The same for a claim: its entry in a wait queue may live longer than the lease that it asked for.
pub(super) async fn withdraw(shared: Arc<Shared>, claim: Claim) {
    forget_within(shared, Lease::of(&claim, FencingToken::new(0)), claim.lasts()).await;
}

async fn forget_within(shared: Arc<Shared>, lease: Lease, lasts: Duration) {
    const FIRST: Duration = Duration::from_millis(50);
    const LAST: Duration = Duration::from_secs(1);
    const ONE_TRY: Duration = Duration::from_secs(5);
    let ends: Moment = shared.clock.now().after(lasts);
    let mut pause = FIRST;
    loop {
        match ask_to_release(&shared, &lease, ONE_TRY).await {
            Ok(_) => return,
            Err(error) if !error.can_retry() && !error.is_outcome_unknown() => {
                return telemetry::failed("withdraw", &error);
            }
            Err(error) => telemetry::failed("withdraw", &error),
        }
        if shared.clock.now().after(pause) >= ends {
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LAST);
    }
}

/// Gives back what was turned lost by `shutdown`.
pub(super) async fn forget_held(shared: Arc<Shared>, held: Arc<Held>) {
    forget(shared, held.lease.clone()).await;
}
