//! What this process knows of its own waiters: which of its lock ids wait, hold or have left, and which names were
//! contended a moment ago. It saves requests and decides nothing: every grant is decided by the server.
//!
//! **To which attempt a handoff belongs.** A pushed grant carries the number of the attempt it answers
//! ([`PushedGrant::attempt`]), and the document of a mutex has no field for it. So the number comes from here: a handoff
//! belongs to the newest answered attempt, if it was made after that answer. Tokens tell that without a clock. The token
//! of a name rises with every grant, so a handoff whose token is not above the one that the answer saw is older than the
//! answer. An attempt counts once its answer has arrived; while it is in flight a handoff gets the number of the attempt
//! before, which the waiter rejects because the answer supersedes it. The server's clock only says how long after the
//! answer the handoff was made. If it was set back in between, or the command of the handoff was stalled, the waiter is
//! told to try again.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use distlock_core::LockId;
use distlock_core::store::{PushedGrant, Wake};

use crate::documents::{LockDocument, positive_ms, token};

/// How long a name counts as contended after another client was seen there.
const CONTENDED: Duration = Duration::from_secs(2);
/// How long a name is remembered whose lock was handed off by a holder that did not come from the wait queue.
const HANDED_OFF: Duration = Duration::from_secs(10);
/// How long a lock id that left is remembered. Any handoff to it has arrived by then.
const REMEMBERED: Duration = Duration::from_secs(6);
/// How many finished lock ids a name keeps for its next registration.
const MAX_FINISHED: usize = 16;

/// The state of a lock id that is or was in a wait queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaiterState {
    Waiting,
    /// It holds the lock, and its entry is still in the queue.
    Holding,
    /// It has released or withdrawn, or is about to.
    Left,
}

#[derive(Debug)]
struct Waiter {
    name: String,
    state: WaiterState,
    /// Token and time of the newest grant to it.
    hold: Option<(i64, Option<i64>)>,
    answered: Option<AnsweredAttempt>,
    /// The highest token that an answer found in the document, held by another lock id.
    seen_token: i64,
    /// When its queue entry was last renewed, and for how long.
    registered: Option<(Instant, Duration)>,
    /// How many entries were before its own when it registered.
    ahead: u32,
    /// It was granted the lock by its own attempt while entries were before its own: their waiters may still wait.
    overtook: bool,
}

/// The newest attempt that the server answered: its number, and the server's clock at the decision, where it sent it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnsweredAttempt {
    pub(crate) attempt: u64,
    pub(crate) at: Option<i64>,
}

#[derive(Debug)]
struct ContendedName {
    seen: Instant,
    /// Lock ids of this process that are done and still have a queue entry.
    finished: Vec<String>,
}

#[derive(Debug, Default)]
struct CacheContent {
    waiters: HashMap<LockId, Waiter>,
    left: VecDeque<(Instant, LockId)>,
    contended: HashMap<String, ContendedName>,
    /// The names where the last release of a holder that did not come from the wait queue found a waiter.
    handed_off: HashMap<String, Instant>,
    swept: Option<Instant>,
}

#[derive(Debug, Default)]
pub(crate) struct WaiterCache(Mutex<CacheContent>);

/// A mutex document held by a lock id of this process for a short window, as the change stream shows it. It does not show a field
/// that did not change, such as the time of a grant in the millisecond of the release before it. Then the window is not known
/// either, and the grant may be one that this process acquired itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandoffEvent {
    pub(crate) acquired_at: Option<i64>,
    pub(crate) expires_at: Option<i64>,
    pub(crate) token: Option<i64>,
}

/// What to do with a [`HandoffEvent`].
#[derive(Debug)]
pub(crate) enum HandoffAction {
    Wake(Wake),
    /// Its waiter has left: hand the lock to the next one.
    PassOn {
        name: String,
    },
    /// It is known already.
    Ignore,
}

impl WaiterCache {
    fn lock(&self) -> MutexGuard<'_, CacheContent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, lock_id: &LockId, change: impl FnOnce(&mut Waiter) -> T) -> Option<T> {
        self.lock().waiters.get_mut(lock_id).map(change)
    }

    /// Whether another client held or waited for this name a moment ago.
    pub(crate) fn is_contended(&self, name: &str) -> bool {
        self.lock().contended.get(name).is_some_and(|contended| contended.seen.elapsed() < CONTENDED)
    }

    pub(crate) fn set_contended(&self, name: &str) {
        let mut content = self.lock();
        content.sweep();
        match content.contended.get_mut(name) {
            Some(contended) => contended.seen = Instant::now(),
            None => {
                let contended = ContendedName { seen: Instant::now(), finished: Vec::new() };
                content.contended.insert(name.to_owned(), contended);
            }
        }
    }

    pub(crate) fn set_uncontended(&self, name: &str) {
        self.lock().contended.remove(name);
    }

    /// Whether a holder that did not come from the wait queue is likely to have a waiter: the last one had. Clients that
    /// meet at a name often do so in the same way again.
    pub(crate) fn expects_waiter(&self, name: &str) -> bool {
        self.lock().handed_off.get(name).is_some_and(|at| at.elapsed() < HANDED_OFF)
    }

    /// Such a holder found a waiter when it released the lock, or none.
    pub(crate) fn set_found_waiter(&self, name: &str, found: bool) {
        let mut content = self.lock();
        if found {
            content.sweep();
            content.handed_off.insert(name.to_owned(), Instant::now());
        } else if !content.handed_off.is_empty() {
            content.handed_off.remove(name);
        }
    }

    /// This lock id is done and its queue entry is still there; the next registration for the name removes it.
    pub(crate) fn add_finished(&self, name: &str, lock_id: &LockId) {
        if let Some(contended) = self.lock().contended.get_mut(name)
            && contended.finished.len() < MAX_FINISHED
        {
            contended.finished.push(lock_id.as_str().to_owned());
        }
    }

    pub(crate) fn take_finished(&self, name: &str) -> Vec<String> {
        let mut content = self.lock();
        content.contended.get_mut(name).map(|name| std::mem::take(&mut name.finished)).unwrap_or_default()
    }

    pub(crate) fn state(&self, lock_id: &LockId) -> Option<WaiterState> {
        self.with(lock_id, |waiter| waiter.state)
    }

    /// The token that the waiter found last; below every token if it has seen none.
    pub(crate) fn seen_token(&self, lock_id: &LockId) -> i64 {
        self.with(lock_id, |waiter| waiter.seen_token).unwrap_or(i64::MIN)
    }

    /// Whether the queue entry of a waiter is missing or has lived for half of its time.
    pub(crate) fn needs_registration(&self, lock_id: &LockId) -> bool {
        let registered = self.with(lock_id, |waiter| waiter.registered).flatten();
        registered.is_none_or(|(at, ttl)| at.elapsed() * 2 > ttl)
    }

    /// The lock id is about to register. From now on handoffs to it are recognised.
    pub(crate) fn start_waiting(&self, lock_id: &LockId, name: &str) {
        let mut content = self.lock();
        content.sweep();
        let waiter = content.waiters.entry(lock_id.clone()).or_insert_with(|| Waiter {
            name: name.to_owned(),
            state: WaiterState::Waiting,
            hold: None,
            answered: None,
            seen_token: i64::MIN,
            registered: None,
            ahead: 0,
            overtook: false,
        });
        waiter.state = WaiterState::Waiting;
    }

    pub(crate) fn set_registered(&self, lock_id: &LockId, sent: Instant, ttl: Duration) {
        self.with(lock_id, |waiter| waiter.registered = Some((sent, ttl)));
    }

    pub(crate) fn set_ahead(&self, lock_id: &LockId, ahead: u32) {
        self.with(lock_id, |waiter| waiter.ahead = ahead);
    }

    /// Whether waiters before it in the queue may still wait, although it holds or held the lock.
    pub(crate) fn overtook(&self, lock_id: &LockId) -> bool {
        self.with(lock_id, |waiter| waiter.overtook).unwrap_or(false)
    }

    /// It could not register.
    pub(crate) fn forget(&self, lock_id: &LockId) {
        self.lock().waiters.remove(lock_id);
    }

    /// The lock is held by another lock id, with this token.
    pub(crate) fn set_busy(&self, lock_id: &LockId, token: i64) {
        self.with(lock_id, |waiter| {
            waiter.seen_token = waiter.seen_token.max(token);
            let is_over = waiter.hold.is_none_or(|(held, _)| held <= waiter.seen_token);
            if waiter.state == WaiterState::Holding && is_over {
                waiter.state = WaiterState::Waiting;
            }
        });
    }

    /// An attempt was answered "busy".
    pub(crate) fn set_answered(&self, lock_id: &LockId, answered: AnsweredAttempt) {
        self.with(lock_id, |waiter| {
            if waiter.answered.is_none_or(|last| last.attempt <= answered.attempt) {
                waiter.answered = Some(answered);
            }
        });
    }

    /// The lock was granted to it.
    pub(crate) fn set_granted(&self, lock_id: &LockId, lock: &LockDocument) {
        self.with(lock_id, |waiter| {
            waiter.state = WaiterState::Holding;
            waiter.overtook = waiter.ahead > 0;
            waiter.note_hold(lock);
        });
    }

    /// The lock was handed to it, and its own attempt found this grant, or a newer one.
    pub(crate) fn set_found_handoff(&self, lock_id: &LockId, lock: &LockDocument) {
        self.with(lock_id, |waiter| waiter.note_hold(lock));
    }

    /// It leaves, from this state. From now on a handoff to it is passed on.
    pub(crate) fn leave(&self, lock_id: &LockId) -> Option<WaiterState> {
        let mut content = self.lock();
        content.sweep();
        let waiter = content.waiters.get_mut(lock_id)?;
        let state = std::mem::replace(&mut waiter.state, WaiterState::Left);
        content.left.push_back((Instant::now(), lock_id.clone()));
        Some(state)
    }

    /// It could not leave.
    pub(crate) fn restore(&self, lock_id: &LockId, state: WaiterState) {
        self.with(lock_id, |waiter| waiter.state = state);
    }

    /// The change stream shows that the lock was handed to this lock id.
    pub(crate) fn handed_off(&self, lock_id: &LockId, event: HandoffEvent) -> HandoffAction {
        self.with(lock_id, |waiter| waiter.handed_off(lock_id, event)).unwrap_or(HandoffAction::Ignore)
    }
}

impl Waiter {
    fn note_hold(&mut self, lock: &LockDocument) {
        if self.hold.is_none_or(|(held, _)| held < lock.token) {
            self.hold = Some((lock.token, lock.acquired_at));
        }
    }

    fn handed_off(&mut self, lock_id: &LockId, event: HandoffEvent) -> HandoffAction {
        // A known grant. Its token is higher if a waiter announced itself since; its time is the same.
        let is_known = |(token, at): (i64, Option<i64>)| {
            event.token.is_some_and(|shown| shown <= token)
                || event.acquired_at.is_some_and(|shown| at == Some(shown))
        };
        if self.hold.is_some_and(is_known) {
            return HandoffAction::Ignore;
        }
        match self.state {
            WaiterState::Holding => HandoffAction::Ignore,
            WaiterState::Left => HandoffAction::PassOn { name: self.name.clone() },
            WaiterState::Waiting => HandoffAction::Wake(match self.granted(event) {
                Some(grant) => Wake::granted(lock_id.clone(), grant),
                // Older than the newest answer, decided by another clock, or not shown whole: trying again is safe.
                None => Wake::retry(lock_id.clone()),
            }),
        }
    }

    /// The grant that a handoff is to a waiter, if that is certain.
    fn granted(&mut self, event: HandoffEvent) -> Option<PushedGrant> {
        let HandoffEvent { acquired_at: Some(acquired_at), expires_at: Some(expires_at), token: Some(shown) } =
            event
        else {
            return None;
        };
        let AnsweredAttempt { attempt, at } = self.answered.filter(|_| shown > self.seen_token)?;
        let after = Duration::from_millis(u64::try_from(acquired_at.checked_sub(at?)?).ok()?);
        let window = positive_ms(expires_at - acquired_at)?;
        self.state = WaiterState::Holding;
        self.hold = Some((shown, Some(acquired_at)));
        Some(PushedGrant::new(token(shown), window).with_attempt(attempt).with_after(after))
    }
}

impl CacheContent {
    /// Forgets what is old, a little at a time.
    fn sweep(&mut self) {
        while self.left.front().is_some_and(|(at, _)| at.elapsed() > REMEMBERED) {
            if let Some((_, lock_id)) = self.left.pop_front()
                && self.waiters.get(&lock_id).is_some_and(|waiter| waiter.state == WaiterState::Left)
            {
                self.waiters.remove(&lock_id);
            }
        }
        if self.swept.is_none_or(|at| at.elapsed() > CONTENDED) {
            self.swept = Some(Instant::now());
            self.contended.retain(|_, contended| contended.seen.elapsed() < CONTENDED);
            self.handed_off.retain(|_, at| at.elapsed() < HANDED_OFF);
        }
    }
}

#[cfg(test)]
mod tests;
