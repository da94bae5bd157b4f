//! Acquiring on a lease store: attempt, wait for a wake-up or until the blocking hold may expire, attempt again.

mod grants;

use std::sync::Arc;
use std::time::Duration;

use super::held::{Held, local_deadline};
use super::local_queue::{Probe, QueueHead, RECENT};
use super::local_wait::{LocalOutcome, WaitSite, wait_for_head};
use super::local_wakeups::LocalRegistration;
use super::release::withdraw_later;
use super::store_call::{AcquireOperation, no_answer};
use super::telemetry::WaitGauge;
use super::wakeups::WaiterRegistration;
use super::{LeaseSide, Shared, Wait, own_holds, telemetry};
use crate::clock::{Moment, sleep_until};
use crate::error::{Error, Result};
use crate::options::Options;
use crate::resource::RecordKind;
use crate::store::support::queue_pause::{self, ASKS_EVERY};
use crate::store::{Attempt, Claim, Waiting};

/// The least time-to-live of a waiter's queue entry. The entry of a dead waiter blocks others for as long.
const WAITER_TTL: Duration = Duration::from_secs(3);
/// How much longer than the longest pause between two attempts a queue entry lives.
const WAITER_TTL_MARGIN: Duration = Duration::from_secs(2);
/// The shortest pause between two attempts.
const TICK: Duration = Duration::from_millis(1);
/// The pause between two attempts while the store is unreachable.
const OUTAGE_PAUSE: Duration = Duration::from_millis(100);
/// How long a waiter that the store has already answered retries while the store is unreachable.
const OUTAGE_PATIENCE: Duration = Duration::from_secs(30);
/// The least time-out of the first attempt: without an answer, contention looks like an outage.
const FIRST_ANSWER: Duration = Duration::from_secs(1);
/// How many grants may have expired on arrival before the acquisition fails.
const MAX_STALE_GRANTS: u32 = 2;

pub(super) async fn acquire(
    shared: &Arc<Shared>,
    side: &LeaseSide,
    claim: &mut Claim,
    options: &Arc<Options>,
    wait: Wait,
    gauge: &WaitGauge<'_>,
) -> Result<Option<Arc<Held>>> {
    let mut acquisition = Acquisition::new(shared, side, claim, options, wait, gauge);
    let Some(asks) = acquisition.wait_for_head().await? else { return Ok(None) };
    let outcome = acquisition.attempt_until_acquired().await;
    match (&outcome, asks) {
        (Ok(_), HeadOrProbe::Probe(probe)) => probe.answered(shared.clock.now()),
        (Err(error), HeadOrProbe::Probe(probe)) => probe.failed(error),
        (Err(error), HeadOrProbe::Head) if error.can_retry() => {
            if let Some(head) = acquisition.head.take() {
                head.fail_waiters(error);
            }
        }
        (_, HeadOrProbe::Head) => {}
    }
    outcome
}

/// How an acquisition asks the store.
enum HeadOrProbe {
    /// As the head of its local wait queue, if it has one.
    Head,
    /// By one attempt past the head.
    Probe(Probe),
}

/// One acquisition in progress. Dropping it at any point leaves nothing in the store.
struct Acquisition<'a> {
    gauge: &'a WaitGauge<'a>,
    shared: &'a Arc<Shared>,
    side: &'a LeaseSide,
    claim: &'a mut Claim,
    options: &'a Arc<Options>,
    wait: Wait,
    head: Option<QueueHead>,
    registration: Option<WaiterRegistration>,
    local_registration: Option<LocalRegistration>,
    /// How many attempts were sent, over all lock ids: the number of the newest one.
    attempts: u64,
    /// The last attempt under this lock id that was answered "busy".
    last_busy: Option<BusyAttempt>,
    /// When the store last answered, over all lock ids.
    last_answer: Option<Moment>,
    /// The time limit of a probe, an attempt past the head of the local queue.
    probe_limit: Option<Duration>,
    /// Since when the store is unreachable.
    outage_since: Option<Moment>,
    busy_in_a_row: u32,
    stale_grants: u32,
    /// The store may have a hold or a queue entry under our lock id.
    may_be_stored: bool,
}

/// An attempt that the store answered "busy".
#[derive(Clone, Copy)]
struct BusyAttempt {
    number: u64,
    sent: Moment,
}

/// What an attempt led to.
enum AttemptOutcome {
    Acquired(Arc<Held>),
    Busy { retry_after: Option<Duration>, poll_after: Option<Duration> },
    TimedOut,
    RetryAfter(Duration),
}

impl<'a> Acquisition<'a> {
    fn new(
        shared: &'a Arc<Shared>,
        side: &'a LeaseSide,
        claim: &'a mut Claim,
        options: &'a Arc<Options>,
        wait: Wait,
        gauge: &'a WaitGauge<'a>,
    ) -> Self {
        Acquisition {
            gauge,
            shared,
            side,
            claim,
            options,
            wait,
            head: None,
            registration: None,
            local_registration: None,
            attempts: 0,
            last_busy: None,
            last_answer: None,
            probe_limit: None,
            outage_since: None,
            busy_in_a_row: 0,
            stale_grants: 0,
            may_be_stored: false,
        }
    }

    /// Waits in the local wait queue, if there is one. `None`: contended.
    async fn wait_for_head(&mut self) -> Result<Option<HeadOrProbe>> {
        if self.claim.resource.kind().record() == RecordKind::Pool {
            return Ok(Some(HeadOrProbe::Head));
        }
        let (shared, resource, wait) = (self.shared, &self.claim.resource, self.wait);
        let request_timeout = self.options.get_request_timeout();
        match wait_for_head(shared, resource, request_timeout, wait, WaitSite::Engine, self.gauge).await? {
            LocalOutcome::Head(head) => {
                self.claim.no_overtaking |= head.no_overtaking;
                self.head = Some(head);
                Ok(Some(HeadOrProbe::Head))
            }
            LocalOutcome::Busy => Ok(None),
            LocalOutcome::Probe { probe, limit } => {
                self.wait = Wait::Once;
                self.probe_limit = Some(limit);
                // Does not overtake the head, where the store can tell.
                self.claim.no_overtaking = true;
                Ok(Some(HeadOrProbe::Probe(probe)))
            }
        }
    }

    async fn attempt_until_acquired(&mut self) -> Result<Option<Arc<Held>>> {
        loop {
            self.register();
            let pause = match self.attempt().await? {
                AttemptOutcome::Acquired(held) => return Ok(Some(held)),
                AttemptOutcome::TimedOut => return Ok(None),
                AttemptOutcome::Busy { .. } if self.wait == Wait::Once => return Ok(None),
                AttemptOutcome::Busy { retry_after, poll_after } => {
                    self.pause_while_busy(retry_after, poll_after)
                }
                AttemptOutcome::RetryAfter(pause) => pause,
            };
            if let Some(held) = self.wait_for(pause).await? {
                return Ok(Some(held));
            }
            // Only a recent answer of the store is contention. If the last one is old, one more attempt decides.
            let now = self.shared.clock.now();
            if self.wait.over(now) && self.answered_recently(now) {
                return Ok(None);
            }
        }
    }

    /// Decides whether the next attempt leaves an entry in the store's wait queue. A pool needs the entry from the first
    /// attempt on. A lock record needs it only for wake-ups, so not before wake-ups can arrive; an uncontended lock then
    /// needs no subscription.
    fn register(&mut self) {
        if self.wait == Wait::Once || self.claim.waiting.is_some() {
            return;
        }
        let pool = self.claim.resource.kind().record() == RecordKind::Pool;
        let push = self.shared.capabilities.push;
        if pool && !push {
            let register = || self.side.local_wakeups.register(&self.claim.resource);
            self.local_registration.get_or_insert_with(register);
        }
        if pool || !push || self.side.wakeups.is_live() {
            let (_, longest_sleep) = self.options.get_busy_wait_sleep();
            let inbox = self.side.wakeups.inbox().clone();
            let ttl = WAITER_TTL.max(longest_sleep + WAITER_TTL_MARGIN);
            self.claim.waiting = Some(Waiting { inbox, ttl, attempt: 0 });
            if push && self.registration.is_none() {
                self.registration = Some(self.side.wakeups.register(&self.claim.lock_id));
            }
        }
    }

    async fn attempt(&mut self) -> Result<AttemptOutcome> {
        let shared = self.shared;
        let sent = shared.clock.now();
        let request = self.options.get_request_timeout();
        let limit = match (self.wait, self.answered_recently(sent)) {
            (Wait::Until(limit), true) => limit.since(sent).min(request),
            (Wait::Until(limit), false) => limit.since(sent).max(FIRST_ANSWER).min(request),
            _ => self.probe_limit.unwrap_or(request),
        };
        self.may_be_stored = true;
        if let Some(head) = self.head.as_ref().filter(|_| self.attempts > 0) {
            head.asks_again();
        }
        self.attempts += 1;
        if let Some(waiting) = &mut self.claim.waiting {
            waiting.attempt = self.attempts;
        }
        let submission = self.side.acquire.submit(Claim::clone(self.claim));
        let answer = tokio::select! {
            biased;
            answer = tokio::time::timeout(limit, submission) => answer,
            () = shared.closing.cancelled() => return Err(shared.stopped()),
        };
        match answer {
            Ok(Ok(Attempt::Granted { token })) => {
                let deadline = local_deadline(sent, self.claim.expiry);
                self.accept(token, deadline)
            }
            Ok(Ok(Attempt::Busy { retry_after, poll_after })) => {
                telemetry::busy(&self.claim.resource, &shared.store_name);
                self.may_be_stored = self.claim.waiting.is_some();
                self.last_busy = Some(BusyAttempt { number: self.attempts, sent });
                let now = shared.clock.now();
                self.last_answer = Some(now);
                self.outage_since = None;
                if let Some(head) = &self.head {
                    head.busy(now);
                }
                Ok(AttemptOutcome::Busy { retry_after, poll_after })
            }
            Ok(Err(error)) => self.failed(error),
            Err(_) => {
                let now = shared.clock.now();
                if self.wait.over(now) && self.outage_since.is_none() && self.answered_recently(now) {
                    return Ok(AttemptOutcome::TimedOut);
                }
                self.failed(no_answer::<AcquireOperation>(limit))
            }
        }
    }

    fn answered_recently(&self, now: Moment) -> bool {
        self.last_answer.is_some_and(|answered| now.since(answered) <= RECENT)
    }

    /// Handles a failed attempt. A waiter that was answered before retries for a while, a new one retries once.
    fn failed(&mut self, error: Error) -> Result<AttemptOutcome> {
        let now = self.shared.clock.now();
        let first = self.outage_since.is_none();
        let since = *self.outage_since.get_or_insert(now);
        let patience = if self.last_answer.is_some() { OUTAGE_PATIENCE } else { Duration::ZERO };
        let may_try_again = (first && self.probe_limit.is_none()) || now.since(since) < patience;
        if !error.can_retry() || !may_try_again || self.wait.over(now) {
            return Err(error);
        }
        telemetry::failed("acquire", &error, &self.shared.store_name);
        if let Some(head) = &self.head {
            head.failed(&error);
        }
        if error.is_request_in_flight() {
            self.use_new_lock_id();
        }
        Ok(AttemptOutcome::RetryAfter(if first { TICK } else { OUTAGE_PAUSE }))
    }

    /// Continues under another lock id. The attempt in flight may still be applied, and its answer will then be undone by
    /// lock id; a grant under the same id would be undone with it.
    fn use_new_lock_id(&mut self) {
        withdraw_later(self.shared, Claim::clone(self.claim));
        self.claim.lock_id = self.shared.ids.next();
        self.claim.waiting = None;
        self.registration = None;
        self.last_busy = None;
    }

    fn pause_while_busy(&mut self, retry_after: Option<Duration>, poll_after: Option<Duration>) -> Duration {
        let wakeups = &self.side.wakeups;
        let first = self.busy_in_a_row == 0;
        let polled = self.options.sleep_after(self.busy_in_a_row, poll_after);
        self.busy_in_a_row = self.busy_in_a_row.saturating_add(1);
        if first {
            self.gauge.begin(retry_after);
            own_holds::warn_if_self(self.shared, self.claim);
        }
        let (mut pause, mut retry_after) = (polled, retry_after);
        let subscribes = self.claim.waiting.is_some() || wakeups.is_live();
        if let Some(no_room) = poll_after.filter(|_| self.shared.capabilities.push && !subscribes) {
            // A subscription would wake nothing: no release grants to a waiter without an entry in the store's wait queue.
            // A thousand waiters may ask at one moment, so they are spread over the whole pause.
            pause = no_room.mul_f64(0.5 + fastrand::f64());
        } else if self.shared.capabilities.push {
            if self.registration.is_none() {
                self.registration = Some(wakeups.register(&self.claim.lock_id));
            }
            // Once live, it wakes every waiter, which can then leave an entry in the store's wait queue.
            wakeups.open(&self.side.store, &self.shared.commands);
            if wakeups.is_live() {
                let registered = self.claim.waiting.is_some();
                // When the holder's lease ends, the waiters before one that is far behind ask first.
                if poll_after.is_some() {
                    let later = ASKS_EVERY.mul_f64(1.0 + fastrand::f64());
                    retry_after = retry_after.map(|left| left.saturating_add(later));
                }
                // Although the store can wake it: a lost wake-up costs at most this.
                let longest = poll_after.unwrap_or_default().clamp(ASKS_EVERY, queue_pause::LONGEST);
                // Without an entry, the subscription became live after our attempt: ask again at once.
                pause =
                    if registered { longest.mul_f64(0.9 + 0.2 * fastrand::f64()) } else { Duration::ZERO };
            }
        }
        match retry_after {
            Some(left) => pause.min(left.max(TICK)),
            None => pause,
        }
    }

    /// Waits for a wake-up or until it is time to ask again. Accepts a grant that came with the wake-up.
    async fn wait_for(&mut self, pause: Duration) -> Result<Option<Arc<Held>>> {
        let shared = self.shared;
        let until = shared.clock.now().after(pause).min(self.wait.limit());
        let woken = async {
            match (&self.registration, &self.local_registration) {
                (Some(registration), _) => registration.signal().woken().await,
                (None, Some(registration)) => registration.woken().await,
                (None, None) => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = shared.closing.cancelled() => return Err(shared.stopped()),
            () = woken => {}
            () = sleep_until(&*shared.clock, until) => {}
        }
        match self.registration.as_ref().and_then(|registration| registration.signal().take_grant()) {
            Some(grant) => self.accept_pushed(grant),
            None => Ok(None),
        }
    }
}

impl Drop for Acquisition<'_> {
    fn drop(&mut self) {
        if self.may_be_stored {
            withdraw_later(self.shared, Claim::clone(self.claim));
        }
    }
}
