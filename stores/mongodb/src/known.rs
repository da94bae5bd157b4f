//! What this process knows by itself of the lines it stands in: which of its lock ids wait or hold, who comes after
//! them, and which names were contended a moment ago. All of it saves requests; none of it decides anything.
//!
//! **To which attempt a handoff belongs.** The document of a mutex has no room for the number of an attempt, so the number
//! comes from here: a handoff belongs to the newest attempt that was answered, if it was made after that answer. Tokens
//! say so without a clock: every grant of a name has a higher one, so a handoff whose token is not above the token that
//! the answer saw is older than the answer. An attempt counts only once its answer is here. While it is in flight a
//! handoff is told with the number of the attempt before, which the waiter refuses, since the answer says more. The
//! clock is only asked how long after the answer the handoff was made; if it was set back in between, or if the command
//! that made the handoff was stalled, the waiter is told to ask again.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use distlock_core::LockId;
use distlock_core::store::{PushedGrant, Wake};

use crate::message::Next;
use crate::record::{above_zero, token};

/// For how long a name counts as contended after somebody else was seen there.
const CONTENDED: Duration = Duration::from_secs(2);
/// For how long a lock id that left is remembered: a grant that was on its way must have come by then.
const REMEMBERED: Duration = Duration::from_secs(6);
/// Whoever waits asks again within this time, or counts as gone; so does word of it.
const NEWS: Duration = Duration::from_secs(2);
/// How many lock ids that are done a name keeps for its next request.
const MOST_DONE: usize = 16;

/// Where a lock id stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stand {
    /// In the line.
    Waiting,
    /// In the line, and the lock is its own.
    Holding,
    /// Just leaving.
    Leaving,
    /// Left, not long ago.
    Gone,
}

#[derive(Debug)]
struct Standing {
    name: String,
    stand: Stand,
    /// The highest token that it is known to have held the lock with.
    token: i64,
    /// The lock was handed to it while it was leaving.
    handed: bool,
    /// The newest attempt that was answered.
    answered: Option<Answered>,
    /// The highest token that an answer found in the lock, held by another.
    seen: i64,
    /// When its entry in the line was last renewed, and for how long.
    renewed: Option<(Instant, Duration)>,
    next: Option<(Instant, Next)>,
}

/// An attempt that the server answered, by its number, and when by its clock, where it tells.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered {
    pub(crate) attempt: u64,
    pub(crate) at: Option<i64>,
}

#[derive(Debug)]
struct Contended {
    seen: Instant,
    /// Lock ids of ours that are done and still stand in the line.
    done: Vec<String>,
}

#[derive(Debug, Default)]
struct Inner {
    standing: HashMap<LockId, Standing>,
    left: VecDeque<(Instant, LockId)>,
    names: HashMap<String, Contended>,
    swept: Option<Instant>,
}

#[derive(Debug, Default)]
pub(crate) struct Known(Mutex<Inner>);

/// What a grant that arrived by the stream comes to.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// Tell the engine.
    Tell(Wake),
    /// It came for somebody who left: the lock must go on to the next.
    PassOn { name: String, next: Option<Next> },
    /// It is known already.
    Old,
}

impl Known {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether others were seen at this name a moment ago.
    pub(crate) fn is_contended(&self, name: &str) -> bool {
        self.lock().names.get(name).is_some_and(|contended| contended.seen.elapsed() < CONTENDED)
    }

    /// Somebody else waits for or holds this name.
    pub(crate) fn saw_others(&self, name: &str) {
        let mut inner = self.lock();
        inner.sweep();
        match inner.names.get_mut(name) {
            Some(contended) => contended.seen = Instant::now(),
            None => {
                let contended = Contended { seen: Instant::now(), done: Vec::new() };
                inner.names.insert(name.to_owned(), contended);
            }
        }
    }

    /// Nobody else was there.
    pub(crate) fn saw_nobody(&self, name: &str) {
        self.lock().names.remove(name);
    }

    /// The lock ids of ours that can be struck from the line of a name.
    pub(crate) fn take_done(&self, name: &str) -> Vec<String> {
        self.lock()
            .names
            .get_mut(name)
            .map(|contended| std::mem::take(&mut contended.done))
            .unwrap_or_default()
    }

    /// Where a lock id stands, if it stands anywhere.
    pub(crate) fn stand(&self, lock_id: &LockId) -> Option<Stand> {
        self.lock().standing.get(lock_id).map(|standing| standing.stand)
    }

    /// Whether the entry of a waiter will not last much longer.
    pub(crate) fn must_renew(&self, lock_id: &LockId) -> bool {
        let inner = self.lock();
        let renewed = inner.standing.get(lock_id).and_then(|standing| standing.renewed);
        renewed.is_none_or(|(at, ttl)| at.elapsed() * 2 > ttl)
    }

    /// About to join the line.
    pub(crate) fn joins(&self, lock_id: &LockId, name: &str) {
        let mut inner = self.lock();
        inner.sweep();
        let standing = inner.standing.entry(lock_id.clone()).or_insert_with(|| Standing {
            name: name.to_owned(),
            stand: Stand::Waiting,
            token: i64::MIN,
            handed: false,
            answered: None,
            seen: i64::MIN,
            renewed: None,
            next: None,
        });
        standing.stand = Stand::Waiting;
    }

    /// It could not join: there is no line.
    pub(crate) fn forget(&self, lock_id: &LockId) {
        self.lock().standing.remove(lock_id);
    }

    /// The line has it.
    pub(crate) fn joined(&self, lock_id: &LockId, sent: Instant, ttl: Duration) {
        if let Some(standing) = self.lock().standing.get_mut(lock_id) {
            standing.renewed = Some((sent, ttl));
        }
    }

    /// Another holds the lock, with this token.
    pub(crate) fn saw_held(&self, lock_id: &LockId, number: i64) {
        if let Some(standing) = self.lock().standing.get_mut(lock_id) {
            standing.seen = standing.seen.max(number);
            // What it had been handed is over.
            if standing.stand == Stand::Holding && standing.token <= standing.seen {
                standing.stand = Stand::Waiting;
            }
        }
    }

    /// An attempt was answered "busy".
    pub(crate) fn is_busy(&self, lock_id: &LockId, answered: Answered) {
        if let Some(standing) = self.lock().standing.get_mut(lock_id)
            && standing.answered.is_none_or(|last| last.attempt <= answered.attempt)
        {
            standing.answered = Some(answered);
        }
    }

    /// It holds the lock now, if it stood in the line.
    pub(crate) fn holds(&self, lock_id: &LockId, number: i64) {
        if let Some(standing) = self.lock().standing.get_mut(lock_id) {
            standing.stand = Stand::Holding;
            standing.token = standing.token.max(number);
        }
    }

    /// Word of who comes after a lock id of ours.
    pub(crate) fn followed_by(&self, lock_id: &LockId, next: Option<Next>) {
        let mut inner = self.lock();
        if let Some(standing) = inner.standing.get_mut(lock_id) {
            standing.next = next.map(|next| (Instant::now(), next));
        }
    }

    /// Who comes after it, as far as we know; once.
    pub(crate) fn take_next(&self, lock_id: &LockId) -> Option<Next> {
        let mut inner = self.lock();
        let (heard, next) = inner.standing.get_mut(lock_id)?.next.take()?;
        (heard.elapsed() < NEWS).then_some(next)
    }

    /// It is leaving, from where it stood.
    pub(crate) fn leaves(&self, lock_id: &LockId) -> Option<Stand> {
        let mut inner = self.lock();
        inner.sweep();
        let standing = inner.standing.get_mut(lock_id)?;
        Some(std::mem::replace(&mut standing.stand, Stand::Leaving))
    }

    /// It has left. True: the lock was handed to it meanwhile.
    pub(crate) fn left(&self, lock_id: &LockId) -> bool {
        let mut inner = self.lock();
        let Some(standing) = inner.standing.get_mut(lock_id) else { return false };
        standing.stand = Stand::Gone;
        let handed = std::mem::take(&mut standing.handed);
        inner.left.push_back((Instant::now(), lock_id.clone()));
        handed
    }

    /// It could not leave after all.
    pub(crate) fn stays(&self, lock_id: &LockId, stood: Stand) {
        if let Some(standing) = self.lock().standing.get_mut(lock_id) {
            standing.stand = stood;
        }
    }

    /// Its entry is still in the line; the next request for the name strikes it.
    pub(crate) fn is_done(&self, lock_id: &LockId, name: &str) {
        let mut inner = self.lock();
        if let Some(contended) = inner.names.get_mut(name)
            && contended.done.len() < MOST_DONE
        {
            contended.done.push(lock_id.as_str().to_owned());
        }
    }

    /// The change stream shows that the lock is held by this lock id, for a short window.
    pub(crate) fn arrived(
        &self,
        lock_id: &LockId,
        acquired_at: i64,
        expires_at: i64,
        number: i64,
    ) -> Arrival {
        let mut inner = self.lock();
        let Some(standing) = inner.standing.get_mut(lock_id) else { return Arrival::Old };
        if number <= standing.token {
            return Arrival::Old;
        }
        match standing.stand {
            Stand::Holding => Arrival::Old,
            Stand::Leaving => {
                standing.handed = true;
                Arrival::Old
            }
            Stand::Gone => {
                let next = standing.next.take().map(|(_, next)| next);
                Arrival::PassOn { name: standing.name.clone(), next }
            }
            Stand::Waiting => {
                let is_newer = number > standing.seen;
                let answered = standing.answered.filter(|_| is_newer);
                let after = answered.and_then(|answered| acquired_at.checked_sub(answered.at?));
                let after = after.and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis);
                let window = above_zero(expires_at - acquired_at);
                let (Some(Answered { attempt, .. }), Some(after), Some(window)) = (answered, after, window)
                else {
                    // Older than the newest answer, or decided by another clock: asking again is safe.
                    return Arrival::Tell(Wake::retry(lock_id.clone()));
                };
                standing.stand = Stand::Holding;
                standing.token = number;
                let grant = PushedGrant::new(token(number), window).with_attempt(attempt).with_after(after);
                Arrival::Tell(Wake::granted(lock_id.clone(), grant))
            }
        }
    }
}

impl Inner {
    /// Forgets what is old; a little each time.
    fn sweep(&mut self) {
        while self.left.front().is_some_and(|(at, _)| at.elapsed() > REMEMBERED) {
            if let Some((_, lock_id)) = self.left.pop_front()
                && self.standing.get(&lock_id).is_some_and(|standing| standing.stand == Stand::Gone)
            {
                self.standing.remove(&lock_id);
            }
        }
        if self.swept.is_none_or(|at| at.elapsed() > CONTENDED) {
            self.swept = Some(Instant::now());
            self.names.retain(|_, contended| contended.seen.elapsed() < CONTENDED);
        }
    }
}

#[cfg(test)]
mod tests;
