//! Renewing holds: in batches, retried until the local deadline. A failed renewal never releases anything.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use futures_core::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tracing::Instrument;

use super::command_channel::Command;
use super::held::{Held, local_deadline};
use super::schedule::{Due, OffSchedule, renewal_due};
use super::store_call::contained_renewal;
use super::{LeaseSide, Shared, release, telemetry};
use crate::clock::{Moment, sleep_until};
use crate::error::{Error, ErrorKind};
use crate::options::Options;
use crate::store::support::errors::too_few_answers;
use crate::store::{Batch, Lease, LossReason, Renewal};

/// How many renewal batches are in flight at once.
pub(super) const MAX_IN_FLIGHT: usize = 4;

/// How many holds are looked at together: they fit into the processor's first cache, where each step finds what the step before left.
const BLOCK: usize = 64;

/// Takes the due holds from the schedule. Those past their deadline are lost, the others are renewed.
pub(super) fn begin_due(
    shared: &Arc<Shared>,
    now: Moment,
    work: &mut FuturesUnordered<BoxFuture<'static, ()>>,
) {
    let Due { mut holds, deadline, expiry } = shared.schedule.take_due(now);
    // Otherwise each batch looks at its holds when it is sent: to look at all of them here, and to look again then, would read each
    // twice from memory.
    if shared.lease.is_none() || deadline <= now {
        holds.retain(|held| is_to_be_renewed(shared, now, held));
    }
    let most = shared.capabilities.max_batch.max(1);
    let bounds = Due { holds: Vec::new(), deadline, expiry };
    while holds.len() > most {
        let rest = holds.split_off(most);
        begin(shared, Due { holds, ..bounds }, work);
        holds = rest;
    }
    if !holds.is_empty() {
        begin(shared, Due { holds, ..bounds }, work);
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
        begin(shared, Due::of(Arc::clone(held)), work);
    }
}

fn begin(shared: &Arc<Shared>, chunk: Due, work: &mut FuturesUnordered<BoxFuture<'static, ()>>) {
    let span = telemetry::renew_span(chunk.holds.len(), &shared.store_name);
    let (deadline, expiry) = (chunk.deadline, chunk.expiry);
    let chunk = OffSchedule::new(shared, chunk.holds);
    work.push(Box::pin(renew_chunk(Arc::clone(shared), chunk, deadline, expiry).instrument(span)));
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

/// What follows from the options of a hold. The locks of a process mostly share their options, so it is kept for the next one.
struct PerOptions<T>(Option<(Arc<Options>, T)>);

impl<T: Copy> PerOptions<T> {
    fn get(&mut self, held: &Held, make: impl FnOnce(&Options) -> T) -> T {
        match &self.0 {
            Some((options, made)) if Arc::ptr_eq(options, &held.options) => *made,
            _ => {
                let made = make(&held.options);
                self.0 = Some((Arc::clone(&held.options), made));
                made
            }
        }
    }
}

/// The time limits of a request that renews several leases.
struct Limits {
    /// The first of their deadlines. They are off the schedule while the request is in flight, so it must end at that moment.
    deadline: Moment,
    shortest_expiry: Duration,
    longest_expiry: Duration,
    request_timeout: Duration,
}

/// Keeps the holds that are renewed now. The others have ended or are back on the schedule. `None`: it keeps none.
fn select(shared: &Shared, now: Moment, chunk: &mut OffSchedule) -> Option<Limits> {
    #[derive(Clone, Copy)]
    struct Terms {
        is_renewed: bool,
        expiry: Duration,
        request_timeout: Duration,
    }
    let mut terms = PerOptions(None);
    let mut limits = Limits {
        deadline: Moment::NEVER,
        shortest_expiry: Duration::MAX,
        longest_expiry: Duration::ZERO,
        request_timeout: Duration::MAX,
    };
    chunk.retain(|held| {
        let terms = terms.get(held, |options| Terms {
            // Those with a longest hold are looked at one by one.
            is_renewed: options.extends() && options.get_max_hold().is_none(),
            expiry: options.get_expiry(),
            request_timeout: options.get_request_timeout(),
        });
        let deadline = held.lease_deadline();
        let is_live = terms.is_renewed && now < deadline && held.is_held();
        if !is_live && !is_to_be_renewed(shared, now, held) {
            return false;
        }
        limits.deadline = limits.deadline.min(deadline);
        limits.shortest_expiry = limits.shortest_expiry.min(terms.expiry);
        limits.longest_expiry = limits.longest_expiry.max(terms.expiry);
        limits.request_timeout = limits.request_timeout.min(terms.request_timeout);
        true
    });
    (!chunk.is_empty()).then_some(limits)
}

fn begin_call(shared: &Shared, side: &LeaseSide, chunk: &[Arc<Held>]) -> BoxFuture<'static, Batch<Renewal>> {
    let store = Arc::clone(&side.store);
    let mut expiry = PerOptions(None);
    let mut leases: Vec<Lease> = Vec::with_capacity(chunk.len());
    let mut numbers = Vec::with_capacity(BLOCK);
    for block in chunk.chunks(BLOCK) {
        numbers.clear();
        numbers.extend(block.iter().map(|held| held.number().map_or(0, NonZeroU64::get)));
        for (held, lock_id) in block.iter().zip(shared.ids.with_numbers(&numbers)) {
            // Cleared before the request is sent, so that a later announcement causes another renewal.
            held.take_announced_break();
            let lock_id = if held.number().is_some() { lock_id } else { held.lock_id() };
            leases.push(held.lease_under(lock_id, expiry.get(held, Options::get_expiry)));
        }
    }
    Box::pin(async move { contained_renewal(&*store, &leases).await })
}

/// The pause before a failed renewal is retried: short enough for several attempts before the deadline.
fn retry_after(expiry: Duration, left: Duration) -> Duration {
    let pause = (expiry / 20).clamp(Duration::from_millis(20), Duration::from_secs(1));
    pause.min((left / 4).max(Duration::from_millis(2)))
}

/// The time-out of one attempt: a third of the time left, so that two more fit if it hangs, but at least a tenth of the
/// expiry, or a slow store would get more and more requests. A later answer still counts.
fn attempt_limit(left: Duration, expiry: Duration) -> Duration {
    (left / 3).max(expiry / 10)
}

/// `deadline` and `expiry`: no lease of the chunk ends before this, and none is shorter.
async fn renew_chunk(shared: Arc<Shared>, mut chunk: OffSchedule, deadline: Moment, expiry: Duration) {
    let Some(side) = &shared.lease else { return };
    // Requests for all holds at once would take more memory than the holds themselves, so a permit limits them. If the
    // store is slow, the batch is sent without a permit: waiting for the batches before it could cost the locks.
    let wait = retry_after(expiry, deadline.since(shared.clock.now()));
    let permit = tokio::time::timeout(wait, side.renewing.acquire()).await;
    let sent = shared.clock.now();
    let Some(limits) = select(&shared, sent, &mut chunk) else { return };
    let mut call = begin_call(&shared, side, &chunk);
    let attempt = attempt_limit(limits.deadline.since(sent), limits.shortest_expiry);
    let limit = sent.after(limits.request_timeout.min(attempt)).min(limits.deadline);
    // An answer after this renews nothing.
    let useful = sent.after(limits.longest_expiry);
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
    let closing = shared.closing.is_cancelled();
    let mut terms = PerOptions(None);
    let mut rescheduled = Rescheduled { shared, due: Moment::NEVER, holds: Vec::with_capacity(BLOCK) };
    for held in chunk {
        let answer = answers.next().unwrap_or_else(|| Err(too_few_answers()));
        if !held.is_held() {
            continue;
        }
        if closing {
            if let Some(work) = release::shut_down(shared, held) {
                shared.commands.send(Command::Work(work));
            }
            continue;
        }
        match answer {
            Ok(Renewal::Renewed) => {
                let (deadline, due) = terms.get(&held, |options| {
                    // Counted from `sent`, like the deadline: a slow answer leaves less time.
                    let due = match options.extends() {
                        true => renewal_due(sent, options.get_extension_cadence()).max(now),
                        false => Moment::NEVER,
                    };
                    (local_deadline(sent, options.get_expiry()), due)
                });
                let Some(deadline) = held.renewed_to(deadline, now) else { continue };
                let due = if held.take_announced_break() { now } else { due.min(deadline) };
                rescheduled.push(due, held);
            }
            Ok(Renewal::NotYours) => held.lose(LossReason::NotYours),
            Err(error) => {
                held.note_error(&error);
                if held.loss_at(now).is_none() {
                    // A request that hung has used up its pause.
                    let pause = retry_after(held.expiry(), held.deadline().since(now));
                    let due = if error.is_request_in_flight() { now } else { now.after(pause) };
                    rescheduled.push(due.min(held.deadline()), held);
                }
            }
        }
    }
}

/// Holds that go back to the schedule, many at once.
struct Rescheduled<'a> {
    shared: &'a Shared,
    due: Moment,
    holds: Vec<Arc<Held>>,
}

impl Rescheduled<'_> {
    fn push(&mut self, due: Moment, held: Arc<Held>) {
        if self.due != due || self.holds.len() == BLOCK {
            self.flush();
            self.due = due;
        }
        self.holds.push(held);
    }

    fn flush(&mut self) {
        if !self.holds.is_empty() {
            self.shared.watch_held(self.due, &mut self.holds);
            self.holds.clear();
        }
    }
}

/// Also if a hold panics: the others are still renewed.
impl Drop for Rescheduled<'_> {
    fn drop(&mut self) {
        self.flush();
    }
}
