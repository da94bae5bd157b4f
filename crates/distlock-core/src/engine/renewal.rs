//! Renewing holds: in batches, retried until the local deadline. A failed renewal never releases anything.

use std::sync::Arc;
use std::time::Duration;

use futures_core::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tracing::Instrument;

use super::command_channel::Command;
use super::held::Held;
use super::schedule::{OffSchedule, renewal_due};
use super::store_call::contained_renewal;
use super::{LeaseSide, Shared, release, telemetry};
use crate::clock::{Moment, sleep_until};
use crate::error::{Error, ErrorKind};
use crate::store::support::errors::too_few_answers;
use crate::store::{Batch, Lease, LossReason, Renewal};

/// How many renewal batches are in flight at once.
pub(super) const MAX_IN_FLIGHT: usize = 4;

/// Takes the due holds from the schedule. Those past their deadline are lost, the others are renewed.
pub(super) fn begin_due(
    shared: &Arc<Shared>,
    now: Moment,
    work: &mut FuturesUnordered<BoxFuture<'static, ()>>,
) {
    let due = shared.schedule.take_due(now);
    let most = shared.capabilities.max_batch.clamp(1, due.len().max(1));
    let mut due = due.into_iter().filter(|held| is_to_be_renewed(shared, now, held));
    while let Some(first) = due.next() {
        let mut chunk = Vec::with_capacity(most);
        chunk.push(first);
        chunk.extend(due.by_ref().take(most - 1));
        let span = telemetry::renew_span(chunk.len(), &shared.store_name);
        let chunk = OffSchedule::new(shared, chunk);
        work.push(Box::pin(renew_chunk(Arc::clone(shared), chunk).instrument(span)));
    }
}

/// Renews a hold at once, after a wake-up that announced a forced release. If a renewal is already in flight, its answer
/// checks for the announcement.
pub(super) fn begin_now(
    shared: &Arc<Shared>,
    held: &Arc<Held>,
    work: &mut FuturesUnordered<BoxFuture<'static, ()>>,
) {
    if shared.schedule.remove(held) && is_to_be_renewed(shared, shared.clock.now(), held) {
        let span = telemetry::renew_span(1, &shared.store_name);
        let chunk = OffSchedule::new(shared, vec![Arc::clone(held)]);
        work.push(Box::pin(renew_chunk(Arc::clone(shared), chunk).instrument(span)));
    }
}

/// Whether a due hold is renewed. If not, it has ended or is back on the schedule.
fn is_to_be_renewed(shared: &Shared, now: Moment, held: &Arc<Held>) -> bool {
    if !held.is_held() || held.loss_at(now).is_some() {
        // A session would keep the lock for as long as the process lives.
        if shared.lease.is_none() && held.loss_at(now) == Some(&LossReason::MaxHold) {
            shared.forget_later(held.lease());
        }
        return false;
    }
    let renewed = shared.lease.is_some() && held.cadence().is_some() && now < held.renewed_until();
    if !renewed {
        // A lease without renewal, or a session, whose heartbeat belongs to the store: only the deadline matters.
        shared.watch(held.deadline(), held);
    }
    renewed
}

fn begin_call(side: &LeaseSide, chunk: &[Arc<Held>]) -> BoxFuture<'static, Batch<Renewal>> {
    let store = Arc::clone(&side.store);
    let leases: Vec<Lease> = chunk
        .iter()
        .map(|held| {
            // Cleared before the request is sent, so that a later announcement causes another renewal.
            held.take_announced_break();
            held.lease()
        })
        .collect();
    Box::pin(async move { contained_renewal(&*store, &leases).await })
}

/// The pause before a failed renewal is retried: short enough for several attempts before the deadline.
fn retry_after(held: &Held, now: Moment) -> Duration {
    let pause = (held.expiry() / 20).clamp(Duration::from_millis(20), Duration::from_secs(1));
    pause.min((held.deadline().since(now) / 4).max(Duration::from_millis(2)))
}

/// The time-out of one attempt: a third of the time left, so that two more fit if it hangs, but at least a tenth of the
/// expiry, or a slow store would get more and more requests. A later answer still counts.
fn attempt_limit(left: Duration, expiry: Duration) -> Duration {
    (left / 3).max(expiry / 10)
}

async fn renew_chunk(shared: Arc<Shared>, chunk: OffSchedule) {
    let Some(side) = &shared.lease else { return };
    // These holds are off the schedule while the request is in flight, so it must end at the first of their deadlines.
    let deadline = chunk.iter().map(|held| held.deadline()).fold(Moment::NEVER, Moment::min);
    // Requests for all holds at once would take more memory than the holds themselves, so a permit limits them. If the
    // store is slow, the batch is sent without a permit: waiting for the batches before it could cost the locks.
    let now = shared.clock.now();
    let wait = chunk.iter().map(|held| retry_after(held, now)).fold(Duration::MAX, Duration::min);
    let permit = tokio::time::timeout(wait, side.renewing.acquire()).await;
    let sent = shared.clock.now();
    let mut call = begin_call(side, &chunk);
    let request_timeout =
        chunk.iter().map(|held| held.options.get_request_timeout()).fold(Duration::MAX, Duration::min);
    let expiries = || chunk.iter().map(|held| held.expiry());
    let attempt = attempt_limit(deadline.since(sent), expiries().fold(Duration::MAX, Duration::min));
    let limit = sent.after(request_timeout.min(attempt)).min(deadline);
    // An answer after this renews nothing.
    let useful = sent.after(expiries().fold(Duration::ZERO, Duration::max));
    tokio::select! {
        biased;
        answers = &mut call => {
            drop(permit);
            apply(&shared, sent, chunk.take(), answers);
        }
        () = sleep_until(&*shared.clock, limit) => {
            let error = Error::new(ErrorKind::Unavailable, format!("no answer within {:?}", limit.since(sent)))
                .doing("renew")
                .on(Arc::clone(&shared.store_name))
                .with_unknown_outcome()
                .with_request_in_flight();
            let chunk = chunk.take();
            apply(&shared, sent, chunk.clone(), Err(error));
            // A late answer still counts for holds that are not lost by then.
            let late = Arc::clone(&shared);
            shared.commands.send(Command::Background(Box::pin(async move {
                tokio::select! {
                    biased;
                    answers = call => apply_late(&late, sent, &chunk, answers),
                    () = sleep_until(&*late.clock, useful) => {}
                }
            })));
        }
    }
}

/// Applies the answer to an attempt that had timed out. Its holds are already back on the schedule.
fn apply_late(shared: &Shared, sent: Moment, chunk: &[Arc<Held>], answers: Batch<Renewal>) {
    let now = shared.clock.now();
    for (held, answer) in chunk.iter().zip(answers.unwrap_or_default()) {
        match answer {
            Ok(Renewal::Renewed) => held.renewed(sent, now),
            Ok(Renewal::NotYours) => held.lose(LossReason::NotYours),
            Err(_) => {}
        }
    }
}

fn apply(shared: &Arc<Shared>, sent: Moment, chunk: Vec<Arc<Held>>, answers: Batch<Renewal>) {
    let now = shared.clock.now();
    let mut answers = match answers {
        Ok(answers) => {
            telemetry::renewed(chunk.len(), now.since(sent), &shared.store_name);
            answers.into_iter()
        }
        Err(error) => {
            telemetry::failed("renew", &error, &shared.store_name);
            vec![Err(error); chunk.len()].into_iter()
        }
    };
    for held in chunk {
        let answer = answers.next().unwrap_or_else(|| Err(too_few_answers()));
        if !held.is_held() {
            continue;
        }
        if shared.closing.is_cancelled() {
            if let Some(work) = release::shut_down(shared, held) {
                shared.commands.send(Command::Work(work));
            }
            continue;
        }
        let due = match answer {
            Ok(Renewal::Renewed) => {
                held.renewed(sent, now);
                if held.take_announced_break() {
                    shared.watch(now, &held);
                    continue;
                }
                // Counted from `sent`, like the deadline: a slow answer leaves less time.
                held.cadence().map_or(Moment::NEVER, |cadence| renewal_due(sent, cadence).max(now))
            }
            Ok(Renewal::NotYours) => {
                held.lose(LossReason::NotYours);
                continue;
            }
            Err(error) => {
                held.note_error(&error);
                // A request that hung has used up its pause.
                if error.is_request_in_flight() { now } else { now.after(retry_after(&held, now)) }
            }
        };
        if held.loss_at(now).is_none() && held.is_held() {
            shared.watch(due.min(held.deadline()), &held);
        }
    }
}
