//! The pool record: weighted holders and a first-come, first-served wait queue.

use std::collections::VecDeque;
use std::time::Duration;

use super::{HoldEntry, TokenHistory, Wakes};
use crate::clock::Moment;
use crate::error::Result;
use crate::resource::{FencingToken, LockId};
use crate::store::support::errors::capacity_mismatch;
use crate::store::{Attempt, Claim, GRANT_WINDOW, Inbox, Lease, PushedGrant, Released, Renewal, Wake};

/// One waiter in the queue of a pool.
#[derive(Clone, Debug)]
pub(in crate::memory) struct QueueEntry {
    pub(in crate::memory) lock_id: LockId,
    pub(in crate::memory) weight: u32,
    inbox: Inbox,
    /// The expiry that the claim asked for.
    expiry: Duration,
    /// The number of the newest attempt of this lock id.
    attempt: u64,
    /// When the store answered that attempt.
    last_decision: Moment,
    expires_at: Moment,
}

/// The record of a semaphore, a reader-writer lock or a fair queue.
#[derive(Clone, Debug)]
pub(in crate::memory) struct PoolRecord {
    capacity: u32,
    holders: Vec<HoldEntry>,
    queue: VecDeque<QueueEntry>,
    history: TokenHistory,
}

impl PoolRecord {
    pub(in crate::memory) fn new(now: Moment) -> Self {
        PoolRecord {
            capacity: 0,
            holders: Vec::new(),
            queue: VecDeque::new(),
            history: TokenHistory::new(now),
        }
    }

    pub(in crate::memory) fn try_acquire(
        &mut self,
        claim: &Claim,
        now: Moment,
        wakes: &mut Wakes,
    ) -> Result<Attempt> {
        self.purge(now);
        self.check_capacity(claim)?;
        self.capacity = claim.capacity;
        let before = wakes.len();
        self.grant_heads(now, wakes);
        // The caller gets its grant in the answer and needs no message.
        let mut at = 0;
        wakes.retain(|(_, wake)| {
            at += 1;
            at <= before || !matches!(wake, Wake::Granted { lock_id, .. } if *lock_id == claim.lock_id)
        });

        if let Some(held) = self.holders.iter_mut().find(|held| held.lock_id == claim.lock_id) {
            held.renew_until(now.after(claim.expiry));
            self.history.touch(held.expires_at);
            return Ok(Attempt::Granted { token: held.token });
        }
        let position = self.queue.iter().position(|queued| queued.lock_id == claim.lock_id);
        if position.unwrap_or(self.queue.len()) == 0 && self.fits(claim.weight) {
            if position.is_some() {
                self.queue.pop_front();
            }
            let inbox = claim.waiting.as_ref().map(|waiting| waiting.inbox.clone());
            let held = self.hold(&claim.lock_id, claim.weight, claim.expiry, inbox, now);
            return Ok(Attempt::Granted { token: held.token });
        }
        let ahead = self.queue.iter().take(position.unwrap_or(self.queue.len()));
        let changes = self.holders.iter().map(|held| held.expires_at).chain(ahead.map(|q| q.expires_at));
        let retry_after = changes.min().map(|moment| moment.since(now));
        self.enqueue(claim, position, now, wakes);
        Ok(Attempt::busy(retry_after))
    }

    pub(in crate::memory) fn renew(&mut self, lease: &Lease, now: Moment, wakes: &mut Wakes) -> Renewal {
        self.purge(now);
        let held = self.holders.iter_mut().find(|held| held.lock_id == lease.lock_id);
        let renewal = match held {
            Some(held) => {
                held.renew_until(now.after(lease.expiry));
                held.token = held.token.max(lease.token);
                self.history.raise(held.token);
                self.history.touch(held.expires_at);
                Renewal::Renewed
            }
            None => Renewal::NotYours,
        };
        self.grant_heads(now, wakes);
        renewal
    }

    pub(in crate::memory) fn release(
        &mut self,
        lock_id: &LockId,
        now: Moment,
        wakes: &mut Wakes,
    ) -> Released {
        self.purge(now);
        let held = self.holders.iter().position(|held| held.lock_id == *lock_id);
        let held = held.map(|at| self.holders.remove(at));
        let queued = self.queue.iter().position(|queued| queued.lock_id == *lock_id);
        let queued = queued.and_then(|at| self.queue.remove(at));
        let before = wakes.len();
        self.grant_heads(now, wakes);
        if held.is_none() && queued.is_none() {
            return Released::NotYours;
        }
        self.history.touch(now);
        let own = held.and_then(|held| held.inbox).or(queued.map(|queued| queued.inbox));
        let woke = wakes[before..].iter().any(|(inbox, _)| own.as_ref() != Some(inbox));
        Released::Done { woke }
    }

    /// Takes the pool from all its holders and grants to the next waiters.
    pub(in crate::memory) fn break_lock(&mut self, now: Moment, wakes: &mut Wakes) -> Vec<HoldEntry> {
        self.purge(now);
        let held = std::mem::take(&mut self.holders);
        self.history.touch(now);
        self.grant_heads(now, wakes);
        held
    }

    pub(in crate::memory) fn capacity(&self) -> u32 {
        self.capacity
    }

    pub(in crate::memory) fn live(
        &self,
        now: Moment,
    ) -> (impl Iterator<Item = &HoldEntry>, impl Iterator<Item = &QueueEntry>) {
        (
            self.holders.iter().filter(move |held| held.is_live(now)),
            self.queue.iter().filter(move |queued| queued.expires_at > now),
        )
    }

    pub(in crate::memory) fn last_token(&self) -> Option<FencingToken> {
        self.history.last
    }

    pub(in crate::memory) fn is_spent(
        &mut self,
        now: Moment,
        retention: Duration,
        wakes: &mut Wakes,
    ) -> bool {
        self.purge(now);
        self.grant_heads(now, wakes);
        self.holders.is_empty() && self.queue.is_empty() && self.history.is_spent(now, retention)
    }

    fn purge(&mut self, now: Moment) {
        self.holders.retain(|held| held.is_live(now));
        self.queue.retain(|queued| queued.expires_at > now);
    }

    /// A pool in use has one capacity: with two at once, a semaphore would admit more than the smaller one allows. A claim that
    /// resizes sets it.
    fn check_capacity(&self, claim: &Claim) -> Result<()> {
        let unused = self.holders.is_empty() && self.queue.is_empty();
        if unused || claim.resizes || self.capacity == claim.capacity {
            return Ok(());
        }
        Err(capacity_mismatch(&claim.resource, self.capacity, claim.capacity))
    }

    fn fits(&self, weight: u32) -> bool {
        let used: u64 = self.holders.iter().map(|held| u64::from(held.weight)).sum();
        used + u64::from(weight) <= u64::from(self.capacity)
    }

    /// Grants to the head of the queue while it fits, strictly in order: a light claim never passes a heavy one,
    /// or readers would starve a writer.
    fn grant_heads(&mut self, now: Moment, wakes: &mut Wakes) {
        while self.queue.front().is_some_and(|head| self.fits(head.weight)) {
            let Some(head) = self.queue.pop_front() else { return };
            let window = head.expiry.min(GRANT_WINDOW);
            let held = self.hold(&head.lock_id, head.weight, window, Some(head.inbox.clone()), now);
            let grant = PushedGrant {
                token: held.token,
                attempt: head.attempt,
                after: now.since(head.last_decision),
                window,
            };
            wakes.push((head.inbox, Wake::Granted { lock_id: head.lock_id, grant }));
        }
    }

    fn hold(
        &mut self,
        lock_id: &LockId,
        weight: u32,
        expiry: Duration,
        inbox: Option<Inbox>,
        now: Moment,
    ) -> &HoldEntry {
        let token = self.history.next_token(now);
        let expires_at = now.after(expiry);
        self.history.touch(expires_at);
        let lock_id = lock_id.clone();
        self.holders.push(HoldEntry { lock_id, weight, token, acquired_at: now, expires_at, inbox });
        &self.holders[self.holders.len() - 1]
    }

    fn enqueue(&mut self, claim: &Claim, position: Option<usize>, now: Moment, wakes: &mut Wakes) {
        let Some(waiting) = &claim.waiting else {
            // A single attempt leaves no entry, even if an earlier attempt of this id had queued.
            if position.and_then(|at| self.queue.remove(at)).is_some() {
                self.grant_heads(now, wakes);
            }
            return;
        };
        let fresh = QueueEntry {
            lock_id: claim.lock_id.clone(),
            weight: claim.weight,
            inbox: waiting.inbox.clone(),
            expiry: claim.expiry,
            attempt: waiting.attempt,
            last_decision: now,
            expires_at: now.after(waiting.ttl),
        };
        self.history.touch(fresh.expires_at);
        match position.and_then(|at| self.queue.get_mut(at)) {
            // Applied after a later attempt of the same lock id.
            Some(queued) if queued.attempt > fresh.attempt => {}
            Some(queued) => *queued = fresh,
            None => self.queue.push_back(fresh),
        }
    }
}
