//! Renewing what is held: in batches, retried until the local deadline, and never releasing anything.

use std::sync::Arc;
use std::time::Duration;

use futures_core::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tracing::Instrument;

use super::contain::contained_renewal;
use super::held::Held;
use super::schedule::{OffSchedule, renewal_due};
use super::{LeaseSide, Shared, release, telemetry};
use crate::clock::{Moment, sleep_until};
use crate::error::{Error, ErrorKind};
use crate::store::{Batch, Lease, LossReason, Renewal};

/// How many batches are extended at once.
pub(super) const AT_ONCE: usize = 4;

/// Takes what is due from the schedule: what is past its deadline is lost, the rest is renewed.
pub(super) fn begin_due(
    shared: &Arc<Shared>,
    now: Moment,
    work: &mut FuturesUnordered<BoxFuture<'static, ()>>,
) {
    let due = shared.schedule.take_due(now);
    let most = shared.capabilities.max_batch.clamp(1, due.len().max(1));
    let mut due = due.into_iter().filter(|held| is_to_be_extended(shared, now, held));
    while let Some(first) = due.next() {
        let mut chunk = Vec::with_capacity(most);
        chunk.push(first);
        chunk.extend(due.by_ref().take(most - 1));
        let span = telemetry::extend_span(chunk.len(), &shared.store_name);
        let chunk = OffSchedule::new(shared, chunk);
        work.push(Box::pin(renew_chunk(Arc::clone(shared), chunk).instrument(span)));
    }
}

/// Renews a hold whose lock is said to be broken. If its renewal is in flight already, that one's answer looks for the
/// announcement.
pub(super) fn begin_now(
    shared: &Arc<Shared>,
    held: &Arc<Held>,
    work: &mut FuturesUnordered<BoxFuture<'static, ()>>,
) {
    if shared.schedule.remove(held) && is_to_be_extended(shared, shared.clock.now(), held) {
        let span = telemetry::extend_span(1, &shared.store_name);
        let chunk = OffSchedule::new(shared, vec![Arc::clone(held)]);
        work.push(Box::pin(renew_chunk(Arc::clone(shared), chunk).instrument(span)));
    }
}

/// Whether something that was due is extended. It is on the schedule again, or over, if not.
fn is_to_be_extended(shared: &Shared, now: Moment, held: &Arc<Held>) -> bool {
    if !held.is_held() || held.loss_at(now).is_some() {
        return false;
    }
    let extended = shared.lease.is_some() && held.cadence().is_some();
    if !extended {
        // A plain lease, or a session whose heartbeat is the store's: only its deadline matters.
        shared.watch(held.deadline(), held);
    }
    extended
}

fn begin_call(side: &LeaseSide, chunk: &[Arc<Held>]) -> BoxFuture<'static, Batch<Renewal>> {
    let store = Arc::clone(&side.store);
    let leases: Vec<Lease> = chunk
        .iter()
        .map(|held| {
            // Before it is sent: a break that is announced later is looked into by another renewal.
            held.take_announced_break();
            held.lease.clone()
        })
        .collect();
    Box::pin(async move { contained_renewal(&*store, &leases).await })
}

/// How soon a failed renewal is tried again: often enough for several tries before the deadline.
fn retry_after(held: &Held, now: Moment) -> Duration {
    let pause = (held.lease.expiry / 20).clamp(Duration::from_millis(20), Duration::from_secs(1));
    pause.min((held.deadline().since(now) / 4).max(Duration::from_millis(2)))
}

/// How long one try may take: a share of the time left, so that two more fit in if it hangs, but not ever less, or a slow
/// store would be sent more and more of them. Its answer counts also if it comes later than this.
fn try_limit(left: Duration, expiry: Duration) -> Duration {
    (left / 3).max(expiry / 10)
}

async fn renew_chunk(shared: Arc<Shared>, chunk: OffSchedule) {
    let Some(side) = &shared.lease else { return };
    // While the request is out these holds are not on the schedule, so it may not take longer than the first
    // of their deadlines.
    let deadline = chunk.iter().map(|held| held.deadline()).fold(Moment::NEVER, Moment::min);
    // Requests for everything that is held, all at once, would take more memory than the holds themselves. A store that
    // is slow to answer is asked all the same: what waits for it together is lost later than what waits by turns.
    let now = shared.clock.now();
    let wait = chunk.iter().map(|held| retry_after(held, now)).fold(Duration::MAX, Duration::min);
    let turn = tokio::time::timeout(wait, side.renewing.acquire()).await;
    let sent = shared.clock.now();
    let mut call = begin_call(side, &chunk);
    let patience =
        chunk.iter().map(|held| held.options.get_request_timeout()).fold(Duration::MAX, Duration::min);
    let expiries = || chunk.iter().map(|held| held.lease.expiry);
    let one_try = try_limit(deadline.since(sent), expiries().fold(Duration::MAX, Duration::min));
    let limit = sent.after(patience.min(one_try)).min(deadline);
    // After this an answer extends nothing.
    let useful = sent.after(expiries().fold(Duration::ZERO, Duration::max));
    tokio::select! {
        biased;
        answers = &mut call => {
            drop(turn);
            apply(&shared, sent, chunk.take(), answers);
        }
        () = sleep_until(&*shared.clock, limit) => {
            let error = Error::new(ErrorKind::Unavailable, format!("no answer within {:?}", limit.since(sent)))
                .doing("extend")
                .on(Arc::clone(&shared.store_name))
                .with_unknown_outcome()
                .with_request_in_flight();
            let chunk = chunk.take();
            apply(&shared, sent, chunk.clone(), Err(error));
            // A late answer still counts for what is not lost by then.
            let late = Arc::clone(&shared);
            shared.desk.post(super::Mail::Background(Box::pin(async move {
                tokio::select! {
                    biased;
                    answers = call => apply_late(&late, sent, &chunk, answers),
                    () = sleep_until(&*late.clock, useful) => {}
                }
            })));
        }
    }
}

/// The answer to a try that was given up. What is to be done next is on the schedule already.
fn apply_late(shared: &Shared, sent: Moment, chunk: &[Arc<Held>], answers: Batch<Renewal>) {
    let now = shared.clock.now();
    for (held, answer) in chunk.iter().zip(answers.unwrap_or_default()) {
        match answer {
            Ok(Renewal::Renewed) => held.extended(sent, now),
            Ok(Renewal::NotYours) if held.is_held() => held.lose(LossReason::NotYours),
            Ok(Renewal::NotYours) | Err(_) => {}
        }
    }
}

fn apply(shared: &Arc<Shared>, sent: Moment, chunk: Vec<Arc<Held>>, answers: Batch<Renewal>) {
    let now = shared.clock.now();
    let mut answers = match answers {
        Ok(answers) => {
            telemetry::extended(chunk.len(), now.since(sent));
            answers.into_iter()
        }
        Err(error) => {
            telemetry::failed("extend", &error);
            vec![Err(error); chunk.len()].into_iter()
        }
    };
    for held in chunk {
        let answer = answers.next().unwrap_or_else(|| {
            Err(Error::new(ErrorKind::Internal, "the store answered fewer renewals than it was asked"))
        });
        if !held.is_held() {
            continue;
        }
        if shared.closing.is_cancelled() {
            held.lose(LossReason::ShutDown);
            let forget = release::forget_held(Arc::clone(shared), held);
            shared.desk.post(super::Mail::Work(Box::pin(forget)));
            continue;
        }
        let due = match answer {
            Ok(Renewal::Renewed) => {
                held.extended(sent, now);
                if held.take_announced_break() {
                    shared.watch(now, &held);
                    continue;
                }
                // From the sending, as the deadline: an answer that took long leaves less time.
                held.cadence().map_or(Moment::NEVER, |cadence| renewal_due(sent, cadence).max(now))
            }
            Ok(Renewal::NotYours) => {
                held.lose(LossReason::NotYours);
                continue;
            }
            Err(error) => {
                held.note_error(&error);
                // One that hung has waited long enough.
                if error.is_request_in_flight() { now } else { now.after(retry_after(&held, now)) }
            }
        };
        if held.loss_at(now).is_none() && held.is_held() {
            shared.watch(due.min(held.deadline()), &held);
        }
    }
}
