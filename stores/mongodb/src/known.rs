//! What this process knows by itself of the lines it stands in: which of its lock ids wait or hold, who comes after
//! them, and which names were contended a moment ago. All of it saves requests; none of it decides anything.

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
    /// When the server last decided on an attempt of it, by its clock.
    decided_at: i64,
    /// When its entry in the line was last renewed, and for how long.
    renewed: Option<(Instant, Duration)>,
    next: Option<(Instant, Next)>,
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
            decided_at: i64::MAX,
            renewed: None,
            next: None,
        });
        standing.stand = Stand::Waiting;
    }

    /// It could not join: there is no line.
    pub(crate) fn forget(&self, lock_id: &LockId) {
        self.lock().standing.remove(lock_id);
    }

    /// The line has it, since then by the server's clock.
    pub(crate) fn joined(&self, lock_id: &LockId, decided_at: i64, sent: Instant, ttl: Duration) {
        if let Some(standing) = self.lock().standing.get_mut(lock_id) {
            standing.decided_at = decided_at;
            standing.renewed = Some((sent, ttl));
        }
    }

    /// The server decided on an attempt at the lock itself.
    pub(crate) fn decided(&self, lock_id: &LockId, decided_at: i64) {
        if let Some(standing) = self.lock().standing.get_mut(lock_id) {
            standing.decided_at = decided_at;
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
                let after = acquired_at.checked_sub(standing.decided_at).filter(|after| *after >= 0);
                let window = above_zero(expires_at - acquired_at);
                let (Some(after), Some(window)) = (after, window) else {
                    // Older than our last attempt, or decided by another clock: asking again is safe.
                    return Arrival::Tell(Wake::Retry { lock_id: lock_id.clone() });
                };
                standing.stand = Stand::Holding;
                standing.token = number;
                let after = Duration::from_millis(u64::try_from(after).unwrap_or_default());
                let grant = PushedGrant { token: token(number), attempt: 0, after, window };
                Arrival::Tell(Wake::Granted { lock_id: lock_id.clone(), grant })
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
mod tests {
    use super::*;

    fn id(text: &str) -> LockId {
        LockId::from_stored(text)
    }

    #[test]
    fn a_grant_is_told_once_and_only_to_somebody_who_waits() {
        let known = Known::default();
        assert!(matches!(known.arrived(&id("a"), 5, 2005, 1), Arrival::Old));
        known.joins(&id("a"), "name");
        known.joined(&id("a"), 3, Instant::now(), NEWS);
        match known.arrived(&id("a"), 5, 2005, 9) {
            Arrival::Tell(Wake::Granted { grant, .. }) => {
                assert_eq!((grant.token.get(), grant.after), (9, Duration::from_millis(2)));
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(known.arrived(&id("a"), 5, 2005, 9), Arrival::Old));
    }

    #[test]
    fn a_grant_older_than_the_last_attempt_is_not_believed() {
        let known = Known::default();
        known.joins(&id("a"), "name");
        known.joined(&id("a"), 10, Instant::now(), NEWS);
        let arrival = known.arrived(&id("a"), 5, 2005, 9);
        assert!(matches!(arrival, Arrival::Tell(Wake::Retry { .. })), "{arrival:?}");
    }

    #[test]
    fn a_grant_for_somebody_who_left_is_passed_on() {
        let known = Known::default();
        known.joins(&id("a"), "name");
        assert_eq!(known.leaves(&id("a")), Some(Stand::Waiting));
        assert!(matches!(known.arrived(&id("a"), 5, 2005, 9), Arrival::Old));
        assert!(known.left(&id("a")), "it came while we were leaving");
        let arrival = known.arrived(&id("a"), 5, 2005, 9);
        assert!(matches!(arrival, Arrival::PassOn { ref name, .. } if name == "name"), "{arrival:?}");
    }

    #[test]
    fn late_word_of_a_hold_that_is_over_is_not_taken_for_a_new_one() {
        let known = Known::default();
        known.joins(&id("a"), "name");
        known.holds(&id("a"), 9);
        known.leaves(&id("a"));
        assert!(!known.left(&id("a")));
        assert!(matches!(known.arrived(&id("a"), 5, 2005, 9), Arrival::Old));
        assert!(matches!(known.arrived(&id("a"), 7, 2007, 10), Arrival::PassOn { .. }));
    }
}
