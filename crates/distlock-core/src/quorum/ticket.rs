//! What the quorum itself knows of a lock id while calls about it are under way.
//!
//! A node may carry a request out long after we gave up on it. Two things follow. A grant that comes late must be
//! kept if the lock was won by others' votes and is still held, and be taken back otherwise; so every late answer
//! finds the [`Ticket`] and asks for its fate. And a *release* that comes late must not hit a later attempt of
//! the same lock id, which waiters repeat all the time: as long as one may still be on its way, the next attempt
//! goes to the nodes under another generation of the id, `id~1`, `id~2`, …

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Inner;
use crate::clock::Moment;
use crate::resource::{FencingToken, LockId};
use crate::store::{Claim, Lease};

/// For how long after an unanswered release the lock id is not used again on the nodes.
const STALE: Duration = Duration::from_secs(60);
const FIRST_SWEEP: usize = 1024;

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Not yet decided.
    Open,
    /// A majority granted it, and it was not released since.
    Kept(FencingToken),
    /// Undone, superseded or released: whatever nodes still grant must go.
    Ended,
}

/// One lock id in one generation.
#[derive(Debug)]
pub(super) struct Ticket {
    lock_id: LockId,
    generation: u32,
    /// What the nodes are asked under this ticket, with their generation of the lock id.
    pub(super) lease: Lease,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    fate: Fate,
    /// Its caller gave it back: it will not be asked for again.
    released: bool,
    attempts: u32,
    /// How many calls or operations are under way.
    users: usize,
    /// Nodes that granted late while the fate was open.
    strays: Vec<usize>,
    /// Nodes that are being asked to take the lease again.
    repairing: Vec<usize>,
    /// A lease of a later generation may be renewed or released until then, and must be found.
    keep_until: Moment,
    /// A release of ours may still be carried out until then.
    stale_until: Moment,
    /// Earlier generations that have calls under way: while there are any, the count must go on.
    older: Vec<Arc<Ticket>>,
}

impl Ticket {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides an open attempt in favour of the claim, and says which nodes granted late meanwhile. `None`:
    /// it was released or asked anew in the meantime, and must be undone.
    pub(super) fn keep(&self, token: FencingToken, now: Moment) -> Option<Vec<usize>> {
        let mut state = self.state();
        if state.fate != Fate::Open {
            return None;
        }
        state.fate = Fate::Kept(token);
        state.keep_until = now.after(self.lease.expiry.saturating_mul(2));
        Some(std::mem::take(&mut state.strays))
    }

    /// From now on everything that nodes granted or will grant under this ticket must go. Says which nodes
    /// granted late, and whether they may hold something of an earlier attempt.
    pub(super) fn end(&self) -> (Vec<usize>, bool) {
        let mut state = self.state();
        state.fate = Fate::Ended;
        (std::mem::take(&mut state.strays), state.attempts > 1)
    }

    /// The same for good, under every generation: its caller gave it back.
    pub(super) fn release(&self) {
        self.end();
        let mut state = self.state();
        state.released = true;
        for older in &state.older {
            older.state().released = true;
        }
    }

    pub(super) fn is_released(&self) -> bool {
        self.state().released
    }

    /// Whether the nodes know it by the lock id that its caller knows.
    pub(super) fn is_first(&self) -> bool {
        self.generation == 0
    }

    /// A node granted after the attempt had stopped listening. Answers the fate; if it is open, whoever decides
    /// it will see to the node.
    pub(super) fn granted_late(&self, node: usize) -> Fate {
        let mut state = self.state();
        if state.fate == Fate::Open {
            state.strays.push(node);
        }
        state.fate
    }

    /// A release may have got lost on its way, or be carried out later.
    pub(super) fn may_be_released_late(&self, now: Moment) {
        let mut state = self.state();
        state.stale_until = state.stale_until.max(now.after(STALE));
    }

    /// A renewal was confirmed.
    pub(super) fn touch(&self, now: Moment) {
        let mut state = self.state();
        state.keep_until = state.keep_until.max(now.after(self.lease.expiry.saturating_mul(2)));
    }

    /// Claims the repair of a node: false if it is under way or the lease is not held any more.
    pub(super) fn begin_repair(&self, node: usize) -> bool {
        let mut state = self.state();
        if !matches!(state.fate, Fate::Kept(_)) || state.repairing.contains(&node) {
            return false;
        }
        state.repairing.push(node);
        true
    }

    pub(super) fn end_repair(&self, node: usize) {
        self.state().repairing.retain(|other| *other != node);
    }

    /// Whether the ticket can be forgotten: no call under way, nothing that may arrive late, and no lease of a
    /// generation that only the ticket knows.
    fn is_idle(&self, now: Moment) -> bool {
        let mut state = self.state();
        state.older.retain(|older| !older.is_idle(now));
        let known_without = self.generation == 0 || state.fate == Fate::Ended || state.keep_until <= now;
        state.users == 0 && state.stale_until <= now && state.older.is_empty() && known_without
    }
}

/// All tickets of a quorum, by the lock id that its caller knows. A lock that is merely held has none.
#[derive(Debug)]
pub(super) struct Ledger(Mutex<Tickets>);

#[derive(Debug)]
struct Tickets {
    by_id: HashMap<LockId, Arc<Ticket>>,
    sweep_at: usize,
}

impl Ledger {
    pub(super) fn new() -> Self {
        Ledger(Mutex::new(Tickets { by_id: HashMap::new(), sweep_at: FIRST_SWEEP }))
    }

    fn tickets(&self) -> MutexGuard<'_, Tickets> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ticket for an attempt.
    pub(super) fn begin(inner: &Arc<Inner>, claim: &Claim) -> Use {
        let mut tickets = inner.ledger.tickets();
        let (generation, older) = match tickets.by_id.get(&claim.lock_id) {
            None => (0, Vec::new()),
            Some(ticket) => {
                let mut state = ticket.state();
                match state.fate {
                    // Asked again for what it has: idempotent, on the same ids.
                    Fate::Kept(_) => {
                        state.fate = Fate::Open;
                        state.attempts += 1;
                        state.users += 1;
                        return Use { inner: Arc::clone(inner), ticket: Arc::clone(ticket) };
                    }
                    // The older of two attempts at once is superseded, and undoes what it gets.
                    Fate::Open | Fate::Ended => {
                        state.fate = Fate::Ended;
                        let mut older = std::mem::take(&mut state.older);
                        older.push(Arc::clone(ticket));
                        (ticket.generation + 1, older)
                    }
                }
            }
        };
        let lease = Lease::of(claim, FencingToken::new(0));
        tickets.issue(inner, lease, generation, older, Fate::Open)
    }

    /// The ticket for a lease that was granted, or for what may be left of a claim.
    pub(super) fn of(inner: &Arc<Inner>, lease: &Lease) -> Use {
        let mut tickets = inner.ledger.tickets();
        if let Some(ticket) = tickets.by_id.get(&lease.lock_id) {
            ticket.state().users += 1;
            return Use { inner: Arc::clone(inner), ticket: Arc::clone(ticket) };
        }
        tickets.issue(inner, lease.clone(), 0, Vec::new(), Fate::Kept(lease.token))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.tickets().by_id.len()
    }
}

impl Tickets {
    fn issue(
        &mut self,
        inner: &Arc<Inner>,
        mut lease: Lease,
        generation: u32,
        older: Vec<Arc<Ticket>>,
        fate: Fate,
    ) -> Use {
        let now = inner.options.clock.now();
        if self.by_id.len() >= self.sweep_at {
            self.by_id.retain(|_, ticket| !ticket.is_idle(now));
            self.sweep_at = (self.by_id.len() * 2).max(FIRST_SWEEP);
        }
        let lock_id = lease.lock_id.clone();
        lease.lock_id = of_generation(&lock_id, generation);
        let state = State {
            fate,
            released: false,
            attempts: 1,
            users: 1,
            strays: Vec::new(),
            repairing: Vec::new(),
            keep_until: Moment::from_nanos(0),
            stale_until: Moment::from_nanos(0),
            older,
        };
        let (id, state) = (lock_id.clone(), Mutex::new(state));
        let ticket = Arc::new(Ticket { lock_id: id, generation, lease, state });
        self.by_id.insert(lock_id, Arc::clone(&ticket));
        Use { inner: Arc::clone(inner), ticket }
    }
}

/// A ticket in use by a call or an operation. It is forgotten when nobody uses it and nothing depends on it.
#[derive(Debug)]
pub(super) struct Use {
    inner: Arc<Inner>,
    ticket: Arc<Ticket>,
}

impl Deref for Use {
    type Target = Ticket;

    fn deref(&self) -> &Ticket {
        &self.ticket
    }
}

impl Clone for Use {
    fn clone(&self) -> Self {
        self.ticket.state().users += 1;
        Use { inner: Arc::clone(&self.inner), ticket: Arc::clone(&self.ticket) }
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let now = self.inner.options.clock.now();
        let mut tickets = self.inner.ledger.tickets();
        self.ticket.state().users -= 1;
        // Ours, or the one of a later generation that waited for us.
        if tickets.by_id.get(&self.ticket.lock_id).is_some_and(|current| current.is_idle(now)) {
            tickets.by_id.remove(&self.ticket.lock_id);
        }
    }
}

impl Use {
    pub(super) fn is(&self, other: &Use) -> bool {
        Arc::ptr_eq(&self.ticket, &other.ticket)
    }
}

const MARK: char = '~';

fn of_generation(lock_id: &LockId, generation: u32) -> LockId {
    match generation {
        0 => lock_id.clone(),
        _ => LockId::from_stored(format!("{lock_id}{MARK}{generation}")),
    }
}

/// The lock id as the caller of the quorum knows it.
pub(super) fn as_asked(lock_id: &LockId) -> LockId {
    match lock_id.as_str().rsplit_once(MARK) {
        Some((before, generation))
            if !before.is_empty()
                && !generation.is_empty()
                && generation.bytes().all(|b| b.is_ascii_digit()) =>
        {
            LockId::from_stored(before)
        }
        _ => lock_id.clone(),
    }
}

#[cfg(test)]
mod tests;
