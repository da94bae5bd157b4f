//! Acquiring on a session store, whose server does the waiting.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use futures_core::future::BoxFuture;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::command_channel::Command;
use super::held::{Grant, Held};
use super::local_wait::{LocalOutcome, WaitSite, wait_for_head};
use super::pending_releases::PendingRelease;
use super::store_call::{AcquireOperation, contained, no_answer};
use super::telemetry::WaitGauge;
use super::{Shared, Wait, own_holds, session_batches, telemetry};
use crate::clock::{Moment, sleep_until};
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::resource::{FencingToken, RecordKind};
use crate::store::{Backend, Claim, Fairness, Lease, SessionHold, SessionStore};

/// How often a new claim is tried again that does not reach the server.
const MAX_UNREACHED: u32 = 2;
/// How often a claim is tried again whose session ends soon after it was sent.
const MAX_INTERRUPTED: u32 = 10;
/// A claim that was with the server for this long has waited there.
const WAITED: Duration = Duration::from_secs(1);
/// How long a claim that had waited is tried again while the store is unreachable.
const OUTAGE_PATIENCE: Duration = Duration::from_secs(30);
/// The pause between two attempts while the store is unreachable.
const OUTAGE_PAUSE: Duration = Duration::from_millis(100);

impl Shared {
    /// A call that ran in the task of its caller ended, or the background task continues it.
    pub(super) fn callers_call_ended(&self) {
        self.callers_calls.fetch_sub(1, Ordering::SeqCst);
        if self.closing.is_cancelled() {
            self.commands.wake();
        }
    }
}

type SessionReply = Result<Option<SessionHold>>;

pub(super) async fn acquire(
    shared: &Arc<Shared>,
    claim: &mut Claim,
    options: &Arc<Options>,
    wait: Wait,
    gauge: &WaitGauge<'_>,
) -> Result<Option<Arc<Held>>> {
    let Backend::Session(store) = &shared.backend else {
        return Err(Error::new(ErrorKind::Internal, "a session store was expected"));
    };
    let request_timeout = options.get_request_timeout();
    let (head, probe) = match claim.resource.kind().record() {
        RecordKind::Pool => (None, None),
        // First come, first served across processes: every waiter queues in the server itself.
        RecordKind::Lock if claim.no_overtaking && shared.capabilities.fairness == Fairness::Native => {
            (None, None)
        }
        RecordKind::Lock => {
            match wait_for_head(shared, &claim.resource, request_timeout, wait, WaitSite::Server, gauge)
                .await?
            {
                LocalOutcome::Head(head) => (Some(head), None),
                LocalOutcome::Probe { probe, .. } => (None, Some(probe)),
                LocalOutcome::Busy => return Ok(None),
            }
        }
    };
    let (wait, is_probe) = if probe.is_some() { (Wait::Once, true) } else { (wait, false) };
    if wait != Wait::Once {
        // The server says nothing until it grants. What this task holds itself is known here.
        gauge.begin(None);
        own_holds::warn_if_self(shared, claim);
    }
    let mut outage = Outage::default();
    let hold = loop {
        let begun = shared.clock.now();
        match attempt(shared, store, Claim::clone(claim), wait, request_timeout).await {
            Err(error) => {
                let Some(pause) = outage.pause(shared, &error, begun, wait).filter(|_| !is_probe) else {
                    break Err(error);
                };
                telemetry::failed("acquire", &error, &shared.store_name);
                if let Some(head) = &head {
                    head.failed(&error);
                }
                // What may come of the attempt that failed is released by its lock id.
                claim.lock_id = shared.ids.next();
                tokio::select! {
                    biased;
                    () = shared.closing.cancelled() => break Err(shared.stopped()),
                    () = tokio::time::sleep(pause) => {}
                }
            }
            answered => break answered,
        }
    };
    match (probe, &hold) {
        (Some(probe), Ok(_)) => probe.answered(shared.clock.now()),
        (Some(probe), Err(error)) => probe.failed(error),
        (None, _) => {}
    }
    let Some((claim, hold)) = hold? else { return Ok(None) };
    let held = Held::share(Grant {
        claim: &claim,
        token: hold.token,
        deadline: hold.session.deadline(),
        granted_at: shared.clock.now(),
        options: Arc::clone(options),
        session: Some(hold.session.clone()),
        head,
        own_holds: Arc::clone(&shared.own_holds),
    });
    shared.watch(held.deadline(), &held);
    let dependent: Weak<Held> = Arc::downgrade(&held);
    hold.session.bind(dependent);
    Ok(Some(held))
}

/// One call of the store, or two: an attempt in a batch, then a wait. The answer counts with the claim that it was made for.
async fn attempt(
    shared: &Arc<Shared>,
    store: &Arc<dyn SessionStore>,
    claim: Claim,
    wait: Wait,
    request_timeout: Duration,
) -> Result<Option<(Claim, SessionHold)>> {
    let mut call = Call::Acquire;
    if let Some(side) = shared.session.as_ref().filter(|_| store.batches(&claim.resource)) {
        match session_batches::attempt(shared, side, &claim, request_timeout).await {
            Ok(Some(hold)) => return Ok(Some((claim, hold))),
            Ok(None) if wait == Wait::Once || wait.over(shared.clock.now()) => return Ok(None),
            Ok(None) => call = Call::Wait,
            // It was not sent: its session ended while it was queued. The call below opens another.
            Err(error)
                if error.can_retry() && !error.is_outcome_unknown() && !store.batches(&claim.resource) => {}
            Err(error) => return Err(error),
        }
    }
    let withdraw = CancellationToken::new();
    if wait == Wait::Once {
        withdraw.cancel();
    }
    // If this future is dropped, the store withdraws the claim. A hold that it grants nevertheless is released below.
    let _withdraw_on_drop = withdraw.clone().drop_guard();
    let answer = if store.runs_in_callers_task(&claim.resource) {
        let (store, claim, withdraw) = (Arc::clone(store), claim.clone(), withdraw.clone());
        shared.callers_calls.fetch_add(1, Ordering::SeqCst);
        Answer::Own(Box::pin(async move {
            contained(&*store, "acquire", call.of(&*store, &claim, &withdraw)).await
        }))
    } else {
        Answer::of_background(shared, store, call, &claim, &withdraw)
    };
    let pending = PendingReply { shared, claim, answer: Some(answer) };
    pending.wait(wait, &withdraw, request_timeout).await
}

/// Which method of the store waits for the lock.
#[derive(Clone, Copy, Debug)]
enum Call {
    /// The first attempt included.
    Acquire,
    /// An attempt has just found the lock contended.
    Wait,
}

impl Call {
    async fn of(self, store: &dyn SessionStore, claim: &Claim, withdraw: &CancellationToken) -> SessionReply {
        match self {
            Call::Acquire => store.acquire(claim, withdraw).await,
            Call::Wait => store.wait(claim, withdraw).await,
        }
    }
}

/// Failed attempts in a row. A session that ended is noticed only by its use, so a claim is tried again on the next one. If the
/// store cannot be reached, a new claim fails soon; one that had waited in the server is tried for a while.
#[derive(Debug, Default)]
struct Outage {
    /// Attempts that did not reach the server.
    unreached: u32,
    /// Attempts whose session ended while they were with the server.
    interrupted: u32,
    /// Since when a claim that had waited is not waiting in the server.
    since: Option<Moment>,
}

impl Outage {
    /// How long to wait before the next attempt; `None` if the error is final.
    fn pause(&mut self, shared: &Shared, error: &Error, begun: Moment, wait: Wait) -> Option<Duration> {
        let now = shared.clock.now();
        if error.is_outcome_unknown() {
            self.interrupted += 1;
            if now.since(begun) >= WAITED {
                *self = Outage { unreached: 0, interrupted: 1, since: Some(now) };
            }
        } else {
            self.unreached += 1;
        }
        let most = if wait == Wait::Once { 1 } else { MAX_UNREACHED };
        let quick = self.unreached <= most && self.interrupted <= MAX_INTERRUPTED;
        let patient = self.since.is_some_and(|since| now.since(since) < OUTAGE_PATIENCE);
        let tries = error.can_retry() && !wait.over(now) && (quick || patient);
        let first = self.unreached + self.interrupted == 1;
        tries.then_some(if first { Duration::ZERO } else { OUTAGE_PAUSE })
    }
}

/// Where the answer of the store comes from.
enum Answer {
    /// The background task makes the call. The second part is shared with it: a claim that was given up counts as a pending
    /// release until the store has withdrawn it.
    Background(oneshot::Receiver<SessionReply>, Arc<OnceLock<PendingRelease>>),
    /// The caller makes the call itself: see [`SessionStore::runs_in_callers_task`].
    Own(BoxFuture<'static, SessionReply>),
}

impl Answer {
    /// Lets the background task make the call.
    fn of_background(
        shared: &Arc<Shared>,
        store: &Arc<dyn SessionStore>,
        call: Call,
        claim: &Claim,
        withdraw: &CancellationToken,
    ) -> Self {
        let (reply, answer) = oneshot::channel::<SessionReply>();
        let abandoned = Arc::new(OnceLock::new());
        let work = {
            let (store, claim, commands) = (Arc::clone(store), claim.clone(), Arc::clone(&shared.commands));
            let (withdraw, releases) = (withdraw.clone(), Arc::clone(&shared.releases));
            let abandoned = Arc::clone(&abandoned);
            async move {
                // The caller left before the background task ran this, so the store was not asked.
                if reply.is_closed() {
                    return;
                }
                let answer = contained(&*store, "acquire", call.of(&*store, &claim, &withdraw)).await;
                let unknown = matches!(&answer, Err(error) if error.is_outcome_unknown());
                let undelivered = reply.send(answer);
                if unknown || matches!(undelivered, Err(Ok(Some(_)))) {
                    let pending = releases.begin(&claim.resource);
                    commands.send(Command::Forget(Lease::of(&claim, FencingToken::new(0)), Some(pending)));
                }
                drop(abandoned);
            }
        };
        shared.commands.send(Command::Work(Box::pin(work)));
        Answer::Background(answer, abandoned)
    }

    /// Resolves when the store has answered; `None`: the engine ended.
    ///
    /// # Cancel safety
    /// Cancel safe.
    async fn next(&mut self) -> Option<SessionReply> {
        match self {
            Answer::Background(answer, _) => answer.await.ok(),
            Answer::Own(call) => Some(call.await),
        }
    }
}

/// A reply that may have arrived before it was read. Dropping it then releases the hold.
struct PendingReply<'a> {
    shared: &'a Arc<Shared>,
    claim: Claim,
    answer: Option<Answer>,
}

impl PendingReply<'_> {
    async fn wait(
        mut self,
        wait: Wait,
        withdraw: &CancellationToken,
        request_timeout: Duration,
    ) -> Result<Option<(Claim, SessionHold)>> {
        let shared = self.shared;
        let Some(answer) = &mut self.answer else { return Ok(None) };
        let limit = if wait == Wait::Once { shared.clock.now() } else { wait.limit() };
        let hold = tokio::select! {
            biased;
            hold = answer.next() => hold,
            () = shared.closing.cancelled() => return Err(shared.stopped()),
            () = sleep_until(&*shared.clock, limit) => {
                // At the limit the store withdraws the claim; its answer still counts. A store that does not answer is
                // down, and must not look like contention.
                withdraw.cancel();
                tokio::time::timeout(request_timeout, answer.next())
                    .await
                    .map_err(|_| no_answer::<AcquireOperation>(request_timeout))?
            }
        };
        let is_own = matches!(self.answer.take(), Some(Answer::Own(_)));
        if is_own {
            shared.callers_call_ended();
        }
        match hold {
            Some(Ok(Some(hold))) => Ok(Some((self.claim.clone(), hold))),
            Some(Ok(None)) => Ok(None),
            Some(Err(error)) => {
                if is_own && error.is_outcome_unknown() {
                    shared.forget_later(Lease::of(&self.claim, FencingToken::new(0)));
                }
                Err(error)
            }
            None => Err(shared.stopped()),
        }
    }
}

impl Drop for PendingReply<'_> {
    fn drop(&mut self) {
        let lease = Lease::of(&self.claim, FencingToken::new(0));
        match self.answer.take() {
            Some(Answer::Background(mut answer, abandoned)) => {
                let _ = abandoned.set(self.shared.releases.begin(&self.claim.resource));
                answer.close();
                if let Ok(Ok(Some(_))) = answer.try_recv() {
                    self.shared.forget_later(lease);
                }
            }
            Some(Answer::Own(call)) => {
                let pending = self.shared.releases.begin(&self.claim.resource);
                let commands = Arc::clone(&self.shared.commands);
                self.shared.commands.send(Command::Work(Box::pin(async move {
                    let answer = call.await;
                    if matches!(&answer, Ok(Some(_)))
                        || matches!(&answer, Err(error) if error.is_outcome_unknown())
                    {
                        commands.send(Command::Forget(lease, Some(pending)));
                    }
                })));
                self.shared.callers_call_ended();
            }
            None => {}
        }
    }
}
