//! Acquiring on a lease store: attempt, wait for a wake-up or for the blocker's end, attempt again.

use std::sync::Arc;
use std::time::Duration;

use super::desk::Mail;
use super::held::{Grant, Held, local_deadline};
use super::lane::{AcquireVerb, silent};
use super::lines::{Place, RECENT};
use super::local_queue::{Answers, Standing, stand_in_line};
use super::neighbours::Neighbour;
use super::schedule::first_renewal_due;
use super::wakeups::Enlisted;
use super::{Ask, LeaseSide, Shared, Wait, telemetry};
use crate::clock::{Moment, sleep_until};
use crate::error::{Error, ErrorKind, Result};
use crate::resource::{FencingToken, RecordKind};
use crate::store::{Attempt, Claim, Lease, PushedGrant, Waiting};

/// How often a waiter whom the store can wake asks all the same: a lost wake-up costs this, not liveness.
const REFRESH: Duration = Duration::from_secs(1);
/// After this long without word a waiter counts as gone, or this long after it would have asked again at the latest. What
/// a dead waiter has in a queue keeps others out for as long.
const WAITER_TTL: Duration = Duration::from_secs(3);
const WAITER_LATE: Duration = Duration::from_secs(2);
/// The shortest pause between two attempts.
const TICK: Duration = Duration::from_millis(1);
/// The pause between two attempts while the store cannot be reached.
const OUTAGE_PAUSE: Duration = Duration::from_millis(100);
/// How long somebody who stands in line already bears a store that cannot be reached.
const OUTAGE_PATIENCE: Duration = Duration::from_secs(30);
/// However short the time limit, a store gets this long for its first answer: without one, nobody can tell
/// contention from a store that is down.
const FIRST_ANSWER: Duration = Duration::from_secs(1);
/// How many grants may be over before they arrive.
const STALE_GRANTS: u32 = 2;

pub(super) async fn acquire(
    shared: &Arc<Shared>,
    side: &LeaseSide,
    ask: &Ask,
    wait: Wait,
) -> Result<Option<Arc<Held>>> {
    let place = match ask.resource.kind().record() {
        RecordKind::Pool => None,
        RecordKind::Lock => match stand_in_line(shared, ask, wait, Answers::Front).await? {
            Standing::First(place) => Some(place),
            Standing::Busy => return Ok(None),
            Standing::Probe { probe, limit } => {
                let mut attempt = Acquisition::new(shared, side, ask, Wait::Once, None);
                attempt.probe = Some(limit);
                // Not past the one in front, where the store can tell.
                attempt.claim.no_overtaking = true;
                let outcome = attempt.run().await;
                match &outcome {
                    Ok(_) => probe.answered(shared.clock.now()),
                    Err(error) => probe.failed(error),
                }
                return outcome;
            }
        },
    };
    Acquisition::new(shared, side, ask, wait, place).run().await
}

/// One acquisition under way. Dropping it at any point leaves nothing in the store.
struct Acquisition<'a> {
    shared: &'a Arc<Shared>,
    side: &'a LeaseSide,
    ask: &'a Ask,
    wait: Wait,
    claim: Claim,
    place: Option<Place>,
    enlisted: Option<Enlisted>,
    neighbour: Option<Neighbour>,
    /// How many attempts were sent, under whatever lock id: the number of the newest one.
    attempts: u64,
    /// The last attempt of this lock id that was answered.
    answered: Option<Answered>,
    /// When the store last answered us, under whatever lock id: we stand in line.
    heard: Option<Moment>,
    /// The one attempt past others of this process may take this long.
    probe: Option<Duration>,
    /// Since when the store cannot be reached.
    outage: Option<Moment>,
    busy_in_a_row: u32,
    stale_grants: u32,
    /// The store may have something under our lock id.
    leaves_traces: bool,
}

/// An attempt that the store answered "busy".
#[derive(Clone, Copy)]
struct Answered {
    number: u64,
    sent: Moment,
}

enum Step {
    Got(Arc<Held>),
    Busy { retry_after: Option<Duration> },
    GaveUp,
    Pause(Duration),
}

impl<'a> Acquisition<'a> {
    fn new(
        shared: &'a Arc<Shared>,
        side: &'a LeaseSide,
        ask: &'a Ask,
        wait: Wait,
        place: Option<Place>,
    ) -> Self {
        let claim = Claim {
            resource: ask.resource.clone(),
            lock_id: shared.ids.next(),
            weight: ask.weight,
            capacity: ask.capacity,
            expiry: ask.options.get_expiry(),
            waiting: None,
            no_overtaking: ask.no_overtaking || place.as_ref().is_some_and(|place| place.no_overtaking),
        };
        Acquisition {
            shared,
            side,
            ask,
            wait,
            claim,
            place,
            enlisted: None,
            neighbour: None,
            attempts: 0,
            answered: None,
            heard: None,
            probe: None,
            outage: None,
            busy_in_a_row: 0,
            stale_grants: 0,
            leaves_traces: false,
        }
    }

    async fn run(mut self) -> Result<Option<Arc<Held>>> {
        let outcome = self.take().await;
        if let Err(error) = &outcome
            && error.can_retry()
            && let Some(place) = self.place.take()
        {
            place.give_up(error);
        }
        outcome
    }

    async fn take(&mut self) -> Result<Option<Arc<Held>>> {
        loop {
            self.register();
            let pause = match self.attempt().await? {
                Step::Got(held) => return Ok(Some(held)),
                Step::GaveUp => return Ok(None),
                Step::Busy { .. } if self.wait == Wait::Once => return Ok(None),
                Step::Busy { retry_after } => self.pause_while_busy(retry_after),
                Step::Pause(pause) => pause,
            };
            if let Some(held) = self.wait_for(pause).await? {
                return Ok(Some(held));
            }
            // Contention is the store's word. If its last one is old, one more attempt tells.
            let now = self.shared.clock.now();
            if self.wait.over(now) && self.heard_recently(now) {
                return Ok(None);
            }
        }
    }

    /// Decides whether the next attempt leaves our name with the store. A pool's queue needs it from the first
    /// attempt on. A lock's waiter needs it only to be woken, so not before wake-ups can arrive; that spares an
    /// uncontended lock the subscription.
    fn register(&mut self) {
        if self.wait == Wait::Once || self.claim.waiting.is_some() {
            return;
        }
        let pool = self.claim.resource.kind().record() == RecordKind::Pool;
        let push = self.shared.capabilities.push;
        if pool && !push && self.neighbour.is_none() {
            self.neighbour = Some(self.side.neighbours.enter(&self.claim.resource));
        }
        if pool || !push || self.side.wakeups.is_live() {
            let (_, longest_sleep) = self.ask.options.get_busy_wait_sleep();
            let inbox = self.side.wakeups.inbox().clone();
            let ttl = WAITER_TTL.max(longest_sleep + WAITER_LATE);
            self.claim.waiting = Some(Waiting { inbox, ttl, attempt: 0 });
            if push && self.enlisted.is_none() {
                self.enlisted = Some(self.side.wakeups.enlist(&self.claim.lock_id));
            }
        }
    }

    async fn attempt(&mut self) -> Result<Step> {
        let shared = self.shared;
        let sent = shared.clock.now();
        let request = self.ask.options.get_request_timeout();
        let limit = match (self.wait, self.heard_recently(sent)) {
            (Wait::Until(limit), true) => limit.since(sent).min(request),
            (Wait::Until(limit), false) => limit.since(sent).max(FIRST_ANSWER).min(request),
            _ => self.probe.unwrap_or(request),
        };
        self.leaves_traces = true;
        self.attempts += 1;
        if let Some(waiting) = &mut self.claim.waiting {
            waiting.attempt = self.attempts;
        }
        let submission = self.side.acquire.submit(self.claim.clone());
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
            Ok(Ok(Attempt::Busy { retry_after })) => {
                telemetry::busy(&self.claim.resource);
                self.leaves_traces = self.claim.waiting.is_some();
                self.answered = Some(Answered { number: self.attempts, sent });
                let now = shared.clock.now();
                self.heard = Some(now);
                self.outage = None;
                if let Some(place) = &self.place {
                    place.busy(now);
                }
                Ok(Step::Busy { retry_after })
            }
            Ok(Err(error)) => self.outage(error),
            Err(_) => {
                let now = shared.clock.now();
                if self.wait.over(now) && self.outage.is_none() && self.heard_recently(now) {
                    return Ok(Step::GaveUp);
                }
                self.outage(silent::<AcquireVerb>(limit))
            }
        }
    }

    fn heard_recently(&self, now: Moment) -> bool {
        self.heard.is_some_and(|heard| now.since(heard) <= RECENT)
    }

    /// The store failed us. Whoever stands in line bears it for a while; whoever just came is told, after one
    /// more try for the connection that had gone stale.
    fn outage(&mut self, error: Error) -> Result<Step> {
        let now = self.shared.clock.now();
        let first = self.outage.is_none();
        let since = *self.outage.get_or_insert(now);
        let patience = if self.heard.is_some() { OUTAGE_PATIENCE } else { Duration::ZERO };
        let may_try_again = (first && self.probe.is_none()) || now.since(since) < patience;
        if !error.can_retry() || !may_try_again || self.wait.over(now) {
            return Err(error);
        }
        telemetry::failed("acquire", &error);
        if let Some(place) = &self.place {
            place.failed(&error);
        }
        if error.is_request_in_flight() {
            self.start_afresh();
        }
        Ok(Step::Pause(if first { TICK } else { OUTAGE_PAUSE }))
    }

    /// The attempt may yet be carried out and answered; that answer will be undone by its lock id. So whatever we
    /// get from now on must be under another one, or it would be undone with it.
    fn start_afresh(&mut self) {
        self.shared.desk.post(Mail::Withdraw(self.claim.clone()));
        self.claim.lock_id = self.shared.ids.next();
        self.claim.waiting = None;
        self.enlisted = None;
        self.answered = None;
    }

    fn pause_while_busy(&mut self, retry_after: Option<Duration>) -> Duration {
        let wakeups = &self.side.wakeups;
        let first = self.busy_in_a_row == 0;
        let polled = self.ask.options.sleep_after(self.busy_in_a_row);
        self.busy_in_a_row = self.busy_in_a_row.saturating_add(1);
        if first {
            telemetry::waiting(&self.claim.resource, retry_after);
        }
        let mut pause = polled;
        if self.shared.capabilities.push {
            if self.enlisted.is_none() {
                self.enlisted = Some(wakeups.enlist(&self.claim.lock_id));
            }
            // Rings every bell once it is live, so that who asked before can register.
            wakeups.open(&self.side.store, &self.shared.desk);
            if wakeups.is_live() {
                let registered = self.claim.waiting.is_some();
                // It became live since our attempt: register at once.
                pause =
                    if registered { REFRESH.mul_f64(0.9 + 0.2 * fastrand::f64()) } else { Duration::ZERO };
            }
        }
        match retry_after {
            Some(left) => pause.min(left.max(TICK)),
            None => pause,
        }
    }

    /// Waits for a wake-up or the time to ask again. A grant that came with the wake-up is taken.
    async fn wait_for(&mut self, pause: Duration) -> Result<Option<Arc<Held>>> {
        let shared = self.shared;
        let until = shared.clock.now().after(pause).min(self.wait.limit());
        let rung = async {
            match (&self.enlisted, &self.neighbour) {
                (Some(enlisted), _) => enlisted.bell().rung().await,
                (None, Some(neighbour)) => neighbour.rung().await,
                (None, None) => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = shared.closing.cancelled() => return Err(shared.stopped()),
            () = rung => {}
            () = sleep_until(&*shared.clock, until) => {}
        }
        match self.enlisted.as_ref().and_then(|enlisted| enlisted.bell().take_grant()) {
            Some(grant) => self.accept_pushed(grant),
            None => Ok(None),
        }
    }

    /// A grant made on release, told by a message that may be late. It counts only for the newest attempt that was
    /// sent: the answer to a later attempt says more than a message about an earlier one. The store decided on that
    /// attempt at some moment after we sent it, and granted `after` later: that bounds the grant from below.
    fn accept_pushed(&mut self, grant: PushedGrant) -> Result<Option<Arc<Held>>> {
        let newest = self.answered.filter(|answered| answered.number == self.attempts);
        let Some(Answered { sent, .. }) = newest.filter(|answered| answered.number == grant.attempt) else {
            return Ok(None);
        };
        let now = self.shared.clock.now();
        let deadline = local_deadline(sent.after(grant.after).min(now), grant.window);
        // With little left, asking again is safer: the store recognises the lock id. A plain lease must ask, since
        // nobody would extend the window to its expiry.
        let plain = !self.ask.options.extends() && grant.window < self.claim.expiry;
        if plain || deadline.since(now) < grant.window / 2 {
            return Ok(None);
        }
        let Step::Got(held) = self.accept(grant.token, deadline)? else { return Ok(None) };
        Ok(Some(held))
    }

    fn accept(&mut self, token: FencingToken, deadline: Moment) -> Result<Step> {
        let shared = self.shared;
        let now = shared.clock.now();
        if shared.closing.is_cancelled() {
            return Err(shared.stopped());
        }
        if now >= deadline {
            // The answer took longer than the lease lasts. Asking again with the same lock id is safe.
            self.stale_grants += 1;
            if self.stale_grants > STALE_GRANTS {
                let expiry = self.claim.expiry;
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    format!("answers take longer than the expiry of {expiry:?}"),
                )
                .advise("set a longer expiry, or find out why the store is slow"));
            }
            return Ok(Step::Pause(TICK));
        }
        let held = Held::share(Grant {
            lease: Lease::of(&self.claim, token),
            deadline,
            granted_at: now,
            options: Arc::clone(&self.ask.options),
            session: None,
            place: self.place.take(),
        });
        self.leaves_traces = false;
        let due = match held.cadence() {
            Some(cadence) => first_renewal_due(now, cadence, deadline),
            None => deadline,
        };
        if shared.capabilities.push && held.options.notices_break() && held.cadence().is_some() {
            held.listen(self.side.wakeups.listen_for_break(&held));
            self.side.wakeups.open(&self.side.store, &shared.desk);
        }
        shared.watch(due, &held);
        Ok(Step::Got(held))
    }
}

impl Drop for Acquisition<'_> {
    fn drop(&mut self) {
        if self.leaves_traces {
            self.shared.desk.post(Mail::Withdraw(self.claim.clone()));
        }
    }
}
