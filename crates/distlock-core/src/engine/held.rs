//! A hold: the state that a guard, the renewal schedule and the store's answers share.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::local_queue::QueueHead;
use super::own_holds::{OwnHolds, TaskIdentity};
use super::schedule::Slot;
use super::telemetry;
use super::wakeups::HolderRegistration;
use crate::clock::{Clock, Moment};
use crate::options::Options;
use crate::resource::{FencingToken, LockId, Resource};
use crate::store::{Claim, Dependent, Lease, LossReason, Session};

const HELD: u8 = 0;
const LOST: u8 = 1;
const RELEASING: u8 = 2;
const RELEASED: u8 = 3;

/// How long before the store's expiry a guard counts as lost: one per cent for clocks that run at different speeds, and
/// two milliseconds for clocks that count in milliseconds.
fn margin(expiry: Duration) -> Duration {
    expiry / 100 + Duration::from_millis(2)
}

/// Until when a lease is certainly ours, if the request that the store granted was sent at `sent`.
pub(crate) fn local_deadline(sent: Moment, expiry: Duration) -> Moment {
    sent.after(expiry.saturating_sub(margin(expiry)))
}

/// One hold. A process may have a hundred thousand of them, so its size matters.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) resource: Resource,
    pub(crate) token: FencingToken,
    /// Its lock id, of which only the number differs from other holds. `None`: the rare state has the text.
    number: Option<NonZeroU64>,
    pub(crate) granted_at: Moment,
    pub(crate) options: Arc<Options>,
    /// The session, on a session store.
    session: Option<Session>,
    state: AtomicU8,
    /// It is the head of its local wait queue, or listed in the own holds.
    is_listed: AtomicBool,
    /// It keeps the head of a local wait queue.
    has_queue: bool,
    own_holds: Arc<OwnHolds>,
    weight: u32,
    capacity: u32,
    /// The task that acquired it.
    pub(super) task: TaskIdentity,
    deadline: AtomicU64,
    /// Its position in the schedule.
    pub(super) slot: Slot,
    rare: OnceLock<Box<RareState>>,
}

/// State that most holds never need, allocated on first use.
#[derive(Debug, Default)]
struct RareState {
    /// The text of the lock id, if its number is not enough or a user has asked for it.
    lock_id: OnceLock<LockId>,
    reason: OnceLock<LossReason>,
    signal: OnceLock<CancellationToken>,
    last_error: Mutex<Option<String>>,
    /// Keeps the subscription for a forced release open.
    registration: OnceLock<HolderRegistration>,
    /// A forced release was announced since the last renewal was sent.
    break_announced: AtomicBool,
}

/// The initial state of a hold.
pub(crate) struct Grant<'a> {
    pub(crate) claim: &'a Claim,
    pub(crate) token: FencingToken,
    pub(crate) deadline: Moment,
    pub(crate) granted_at: Moment,
    pub(crate) options: Arc<Options>,
    pub(crate) session: Option<Session>,
    pub(crate) head: Option<QueueHead>,
    pub(crate) own_holds: Arc<OwnHolds>,
}

impl Held {
    /// Makes a hold for a guard and the schedule to share, and tells the local waiters that the lock is held.
    pub(crate) fn share(grant: Grant<'_>) -> Arc<Self> {
        let held = Arc::new(Held::new(grant));
        match held.has_queue {
            true => held.own_holds.queues.acquired(&held),
            false => held.own_holds.add(&held.resource, held.task, held.weight),
        }
        held
    }

    fn new(grant: Grant<'_>) -> Self {
        let Claim { resource, lock_id, weight, capacity, .. } = grant.claim;
        let number = grant.own_holds.ids.number_of(lock_id);
        let rare: OnceLock<Box<RareState>> = OnceLock::new();
        if number.is_none() {
            let _ = rare.get_or_init(Box::default).lock_id.set(lock_id.clone());
        }
        Held {
            resource: resource.clone(),
            token: grant.token,
            number,
            granted_at: grant.granted_at,
            options: grant.options,
            session: grant.session,
            state: AtomicU8::new(HELD),
            is_listed: AtomicBool::new(true),
            has_queue: grant.head.is_some_and(QueueHead::keep),
            own_holds: grant.own_holds,
            weight: *weight,
            capacity: *capacity,
            task: TaskIdentity::current(),
            deadline: AtomicU64::new(grant.deadline.as_nanos()),
            slot: Slot::default(),
            rare,
        }
    }

    fn rare_state(&self) -> &RareState {
        self.rare.get_or_init(Box::default)
    }

    /// Until when it is certainly ours.
    pub(crate) fn deadline(&self) -> Moment {
        match &self.session {
            Some(session) => session.deadline().min(self.renewed_until()),
            None => self.lease_deadline(),
        }
    }

    /// [`deadline`](Self::deadline) for a hold that is not a session's.
    pub(super) fn lease_deadline(&self) -> Moment {
        Moment::from_nanos(self.deadline.load(Ordering::SeqCst))
    }

    /// When it is not renewed any more. A session's lock is lost then.
    pub(crate) fn renewed_until(&self) -> Moment {
        self.options.get_max_hold().map_or(Moment::NEVER, |longest| self.granted_at.after(longest))
    }

    /// Its lock id.
    pub(crate) fn lock_id(&self) -> LockId {
        match self.number {
            Some(number) => self.own_holds.ids.with_number(number.get()),
            None => self.known_lock_id().clone(),
        }
    }

    /// The number of its lock id among those of its engine. `None`: it has only the text.
    pub(super) fn number(&self) -> Option<NonZeroU64> {
        self.number
    }

    /// Its lock id, kept for the caller.
    pub(crate) fn known_lock_id(&self) -> &LockId {
        self.rare_state().lock_id.get_or_init(|| match self.number {
            Some(number) => self.own_holds.ids.with_number(number.get()),
            // Never: it was set when the hold was made.
            None => LockId::from_stored(""),
        })
    }

    /// How long a renewal lasts. A session is not renewed: its claim covers the minimum hold time too.
    pub(crate) fn expiry(&self) -> Duration {
        match self.session {
            None => self.options.get_expiry(),
            Some(_) => self.stored_expiry(),
        }
    }

    /// The longest time for which the store may keep it.
    pub(crate) fn stored_expiry(&self) -> Duration {
        self.options.get_expiry().max(self.options.get_hold_at_least())
    }

    /// Its lease, as the store must recognise it again.
    pub(crate) fn lease(&self) -> Lease {
        self.lease_under(self.lock_id(), self.expiry())
    }

    /// The same, of a caller that knows its lock id and its expiry.
    pub(super) fn lease_under(&self, lock_id: LockId, expiry: Duration) -> Lease {
        Lease::new(self.resource.clone(), lock_id, self.token, expiry)
            .with_known_token(true)
            .with_weight(self.weight)
            .with_capacity(self.capacity)
    }

    /// Its lease, with the longest time for which the store may keep it.
    pub(crate) fn stored_lease(&self) -> Lease {
        self.lease().with_expiry(self.stored_expiry())
    }

    /// Until when it is held although it is released earlier.
    pub(crate) fn held_at_least_until(&self) -> Moment {
        self.granted_at.after(self.options.get_hold_at_least())
    }

    /// Why it is lost, if it is. It reads the clock, so it is right immediately after a pause. Once lost, always lost.
    pub(crate) fn loss(&self, clock: &dyn Clock) -> Option<&LossReason> {
        self.loss_at(clock.now())
    }

    /// The same for a moment that the caller has read already. An old `now` never reports a loss too early; a deadline
    /// that has passed since is noticed by the next call.
    pub(crate) fn loss_at(&self, now: Moment) -> Option<&LossReason> {
        if self.is_held() {
            if let Some(reason) = self.session.as_ref().and_then(Session::ended) {
                self.lose(reason.clone());
            } else if now >= self.deadline() {
                self.lose(match &self.session {
                    _ if now >= self.renewed_until() => LossReason::MaxHold,
                    Some(_) => LossReason::SessionEnded("its heartbeat was not answered in time".into()),
                    None => LossReason::Expired { last_error: self.take_error() },
                });
            }
        }
        (self.state.load(Ordering::SeqCst) == LOST).then(|| self.rare_state().reason.get()).flatten()
    }

    /// Marks it as lost, unless it was lost or released before, and passes the head of the local queue on.
    pub(crate) fn lose(&self, reason: LossReason) {
        // Stored before the state changes, so that every reader of the state finds the reason.
        let reason = self.rare_state().reason.get_or_init(|| reason);
        if self.state.compare_exchange(HELD, LOST, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return;
        }
        telemetry::lost(self, reason, &self.own_holds.store);
        if let Some(signal) = self.rare_state().signal.get() {
            signal.cancel();
        }
        drop(self.unlist());
    }

    /// A token that is cancelled when the guard is lost.
    pub(crate) fn signal(&self) -> &CancellationToken {
        let signal = self.rare_state().signal.get_or_init(CancellationToken::new);
        if self.state.load(Ordering::SeqCst) == LOST {
            signal.cancel();
        }
        signal
    }

    /// Records at `now` that the store renewed it by a request sent at `sent`. A late answer changes nothing: a guard that
    /// may have been reported as lost never becomes held again.
    pub(crate) fn renewed(&self, sent: Moment, now: Moment) {
        self.renewed_to(local_deadline(sent, self.expiry()), now);
    }

    /// The same for a caller that knows the [`local_deadline`] of the renewal. Returns until when it is certainly ours, unless it is
    /// lost or released.
    pub(super) fn renewed_to(&self, deadline: Moment, now: Moment) -> Option<Moment> {
        if self.loss_at(now).is_some() || !self.is_held() {
            return None;
        }
        let before = self.deadline.fetch_max(deadline.as_nanos(), Ordering::SeqCst);
        Some(Moment::from_nanos(before).max(deadline))
    }

    #[cfg(test)]
    pub(super) fn end_at(&self, deadline: Moment) {
        self.deadline.store(deadline.as_nanos(), Ordering::SeqCst);
    }

    pub(crate) fn note_error(&self, error: &crate::Error) {
        *self.rare_state().last_error.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(format!("{error:#}"));
    }

    fn take_error(&self) -> Option<String> {
        self.rare.get()?.last_error.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Keeps the subscription for a forced release open for as long as this hold lives.
    pub(crate) fn keep_registration(&self, registration: HolderRegistration) {
        let _ = self.rare_state().registration.set(registration);
    }

    /// Records that a wake-up announced a forced release: the next renewal is due now.
    pub(crate) fn announce_break(&self) {
        self.rare_state().break_announced.store(true, Ordering::SeqCst);
    }

    /// Whether a forced release was announced since the last call.
    pub(crate) fn take_announced_break(&self) -> bool {
        self.rare.get().is_some_and(|state| state.break_announced.swap(false, Ordering::SeqCst))
    }

    /// How often it is renewed, if it is.
    pub(crate) fn cadence(&self) -> Option<Duration> {
        self.options.extends().then(|| self.options.get_extension_cadence())
    }

    pub(crate) fn is_held(&self) -> bool {
        self.state.load(Ordering::SeqCst) == HELD
    }

    /// Begins the release and ends renewing. False if it is lost, or released elsewhere.
    pub(crate) fn begin_release(&self) -> bool {
        self.state.compare_exchange(HELD, RELEASING, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    pub(crate) fn is_releasing(&self) -> bool {
        self.state.load(Ordering::SeqCst) == RELEASING
    }

    /// Ends the release and passes the head of the local queue on. `woke`: the release woke a waiter of another process.
    /// False if it was ended before: two commands may release one hold, as when a fair mutex is lost and its guard dropped.
    pub(crate) fn finish_release(&self, woke: bool) -> bool {
        let first = self.state.swap(RELEASED, Ordering::SeqCst) != RELEASED;
        if let Some(head) = self.unlist() {
            head.release_to_next(woke);
        }
        first
    }

    /// Takes it off the lists of this process. The head of the local queue, if it had one, is for the first caller.
    fn unlist(&self) -> Option<QueueHead> {
        if !self.is_listed.swap(false, Ordering::SeqCst) {
            return None;
        }
        if self.has_queue {
            return Some(self.own_holds.queues.head_of_hold(&self.resource));
        }
        self.own_holds.remove(&self.resource, self.task, self.weight);
        None
    }
}

impl Dependent for Held {
    fn session_ended(&self, reason: &LossReason) {
        self.lose(reason.clone());
    }
}

/// Passes the head of the local queue on, in case the hold was never released.
impl Drop for Held {
    fn drop(&mut self) {
        drop(self.unlist());
    }
}

#[cfg(test)]
mod tests {
    use super::super::local_queue::{Joined, LocalQueues};
    use super::*;
    use crate::resource::{Kind, LockIds};

    fn resource() -> Resource {
        Resource::new(Kind::Mutex, "a").unwrap()
    }

    fn hold(queues: &Arc<LocalQueues>) -> Arc<Held> {
        hold_under(queues, &Arc::new(LockIds::new("test")), LockId::from_stored("id"))
    }

    fn hold_under(queues: &Arc<LocalQueues>, ids: &Arc<LockIds>, lock_id: LockId) -> Arc<Held> {
        let Joined::Head(head) = queues.join(&resource()) else { panic!("the queue is not empty") };
        Held::share(Grant {
            claim: &Claim::new(resource(), lock_id, Duration::from_secs(10)),
            token: FencingToken::new(1),
            deadline: Moment::NEVER,
            granted_at: Moment::from_nanos(0),
            options: Arc::default(),
            session: None,
            head: Some(head),
            own_holds: Arc::new(OwnHolds::new("test".into(), Arc::clone(ids), Arc::clone(queues))),
        })
    }

    #[test]
    fn a_hold_knows_its_lock_id_whether_it_keeps_the_number_or_the_text() {
        let ids = Arc::new(LockIds::new("test"));
        for lock_id in [ids.next(), LockIds::new("a forked child").next()] {
            let held = hold_under(&Arc::default(), &ids, lock_id.clone());
            assert_eq!((held.lock_id(), held.lease().lock_id), (lock_id.clone(), lock_id.clone()));
            assert_eq!((held.known_lock_id(), held.lock_id()), (&lock_id, lock_id.clone()));
        }
    }

    /// A process may have a hundred thousand holds. Larger is not wrong, but it is to be noticed.
    #[test]
    #[cfg(target_pointer_width = "64")]
    fn a_hold_is_small() {
        assert!(size_of::<Held>() <= 128, "{}", size_of::<Held>());
    }

    #[test]
    fn a_release_that_is_ended_twice_is_counted_once() {
        let held = hold(&Arc::default());
        assert!(held.begin_release() && !held.begin_release());
        assert!(held.finish_release(false));
        assert!(!held.finish_release(false), "the gauge of held locks would fall below what is held");
    }

    #[test]
    fn a_hold_that_is_dropped_unreleased_lets_the_next_waiter_of_the_process_in() {
        let queues = Arc::default();
        let held = hold(&queues);
        let Joined::Waiting(mut next) = queues.join(&resource()) else { panic!("nothing holds the head") };
        assert!(next.try_recv().is_err());
        drop(held);
        assert!(next.try_recv().is_ok());
    }
}
