//! What is held: the state that a guard, the schedule and the store's answers share.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::lines::{Lines, Place};
use super::schedule::Slot;
use super::telemetry;
use super::wakeups::Listening;
use crate::clock::{Clock, Moment};
use crate::options::Options;
use crate::store::{Dependent, Lease, LossReason, Session};

const HELD: u8 = 0;
const LOST: u8 = 1;
const RELEASING: u8 = 2;
const RELEASED: u8 = 3;

/// The time before the store's expiry at which a guard counts as lost on our side: one per cent for clocks
/// that run at different speeds, and two milliseconds for clocks that count in milliseconds.
fn margin(expiry: Duration) -> Duration {
    expiry / 100 + Duration::from_millis(2)
}

/// Until when a lease is surely ours, if the request that the store granted was sent at `sent`.
pub(crate) fn local_deadline(sent: Moment, expiry: Duration) -> Moment {
    sent.after(expiry.saturating_sub(margin(expiry)))
}

/// A hundred thousand locks may be held at once, so every word counts here.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) lease: Lease,
    pub(crate) granted_at: Moment,
    pub(crate) options: Arc<Options>,
    /// What a hold of a session store lives with.
    session: Option<Session>,
    state: AtomicU8,
    /// It has the first place in its line of this process.
    in_line: AtomicBool,
    lines: Option<Arc<Lines>>,
    deadline: AtomicU64,
    /// Where the schedule has it.
    pub(super) slot: Slot,
    rare: OnceLock<Box<Rare>>,
}

/// What most holds never need.
#[derive(Debug, Default)]
struct Rare {
    reason: OnceLock<LossReason>,
    signal: OnceLock<CancellationToken>,
    last_error: Mutex<Option<String>>,
    /// Keeps the subscription open that tells of a forced release.
    listening: OnceLock<Listening>,
    /// A forced release was announced since the last renewal was sent.
    announced: AtomicBool,
}

/// Everything that a hold begins with.
pub(crate) struct Grant {
    pub(crate) lease: Lease,
    pub(crate) deadline: Moment,
    pub(crate) granted_at: Moment,
    pub(crate) options: Arc<Options>,
    pub(crate) session: Option<Session>,
    pub(crate) place: Option<Place>,
}

impl Held {
    /// A hold for a guard and the schedule to share. Those behind it in this process learn that it is held.
    pub(crate) fn share(grant: Grant) -> Arc<Self> {
        let held = Arc::new(Held::new(grant));
        if let Some(lines) = &held.lines {
            lines.holds(&held);
        }
        held
    }

    fn new(grant: Grant) -> Self {
        // The line is that of the lease's resource, which it need not remember twice.
        let lines = grant.place.and_then(Place::keep);
        Held {
            lease: grant.lease,
            granted_at: grant.granted_at,
            options: grant.options,
            session: grant.session,
            state: AtomicU8::new(HELD),
            in_line: AtomicBool::new(lines.is_some()),
            lines,
            deadline: AtomicU64::new(grant.deadline.as_nanos()),
            slot: Slot::default(),
            rare: OnceLock::new(),
        }
    }

    fn rare(&self) -> &Rare {
        self.rare.get_or_init(Box::default)
    }

    /// Until when it is surely ours.
    pub(crate) fn deadline(&self) -> Moment {
        match &self.session {
            Some(session) => session.deadline(),
            None => Moment::from_nanos(self.deadline.load(Ordering::SeqCst)),
        }
    }

    /// Why it is lost, if it is. Compares the clock, so it is right in the first moment after a pause, and what
    /// it said once it says for ever.
    pub(crate) fn loss(&self, clock: &dyn Clock) -> Option<&LossReason> {
        self.loss_at(clock.now())
    }

    /// The same for many holds with one look at the clock. A `now` that is old by the time it is used calls nothing lost
    /// too early; what is past its deadline since then is noticed by the next look.
    pub(crate) fn loss_at(&self, now: Moment) -> Option<&LossReason> {
        if self.is_held() {
            if let Some(reason) = self.session.as_ref().and_then(Session::ended) {
                self.lose(reason.clone());
            } else if now >= self.deadline() {
                self.lose(match &self.session {
                    Some(_) => LossReason::SessionEnded("its heartbeat was not answered in time".into()),
                    None => LossReason::Expired { last_error: self.take_error() },
                });
            }
        }
        (self.state.load(Ordering::SeqCst) == LOST).then(|| self.rare().reason.get()).flatten()
    }

    /// Turns it lost, unless it was lost or given back before. The next one of this process may go on.
    pub(crate) fn lose(&self, reason: LossReason) {
        // The reason is there before the state says so: whoever sees the state finds the reason.
        let reason = self.rare().reason.get_or_init(|| reason);
        if self.state.compare_exchange(HELD, LOST, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return;
        }
        telemetry::lost(&self.lease, reason);
        if let Some(signal) = self.rare().signal.get() {
            signal.cancel();
        }
        drop(self.take_place());
    }

    /// Cancelled when the guard is lost.
    pub(crate) fn signal(&self) -> &CancellationToken {
        let signal = self.rare().signal.get_or_init(CancellationToken::new);
        if self.state.load(Ordering::SeqCst) == LOST {
            signal.cancel();
        }
        signal
    }

    /// The store extended it by an answer to a request sent at `sent`, as we see at `now`. Too late is too late: what may
    /// have been called lost already is never called held again.
    pub(crate) fn extended(&self, sent: Moment, now: Moment) {
        if self.loss_at(now).is_none() {
            self.deadline.fetch_max(local_deadline(sent, self.lease.expiry).as_nanos(), Ordering::SeqCst);
        }
    }

    pub(crate) fn note_error(&self, error: &crate::Error) {
        *self.rare().last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
    }

    fn take_error(&self) -> Option<String> {
        self.rare.get()?.last_error.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Keeps the subscription open as long as this is held.
    pub(crate) fn listen(&self, listening: Listening) {
        let _ = self.rare().listening.set(listening);
    }

    /// A message says that the lock was broken: the next renewal is due now.
    pub(crate) fn announce_break(&self) {
        self.rare().announced.store(true, Ordering::SeqCst);
    }

    /// Whether a forced release was announced and not looked into yet.
    pub(crate) fn take_announced_break(&self) -> bool {
        self.rare.get().is_some_and(|rare| rare.announced.swap(false, Ordering::SeqCst))
    }

    /// How often it is extended, if it is.
    pub(crate) fn cadence(&self) -> Option<Duration> {
        self.options.extends().then(|| self.options.get_extension_cadence())
    }

    pub(crate) fn is_held(&self) -> bool {
        self.state.load(Ordering::SeqCst) == HELD
    }

    /// Ends renewing. False if it was lost or is being released by somebody else.
    pub(crate) fn begin_release(&self) -> bool {
        self.state.compare_exchange(HELD, RELEASING, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    pub(crate) fn is_releasing(&self) -> bool {
        self.state.load(Ordering::SeqCst) == RELEASING
    }

    /// The store was told, or need not be. The next one of this process may go on. False if that was so before: a
    /// release that was given up half-way may be finished by two.
    pub(crate) fn finish_release(&self, woke: bool) -> bool {
        let first = self.state.swap(RELEASED, Ordering::SeqCst) != RELEASED;
        if let Some(place) = self.take_place() {
            place.hand_on(woke);
        }
        first
    }

    /// The first place in the line, for the one who asks first.
    fn take_place(&self) -> Option<Place> {
        let had = self.in_line.swap(false, Ordering::SeqCst);
        self.lines.as_ref().filter(|_| had).map(|lines| Place::again(lines, &self.lease.resource))
    }
}

impl Dependent for Held {
    fn session_ended(&self, reason: &LossReason) {
        self.lose(reason.clone());
    }
}

/// Nobody can give it back any more: the next one of this process may go on all the same.
impl Drop for Held {
    fn drop(&mut self) {
        drop(self.take_place());
    }
}
