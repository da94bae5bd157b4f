//! The lock record: one holder and a short wait queue.

use std::collections::VecDeque;
use std::time::Duration;

use super::super::tokens::TokenRule;
use super::{HoldEntry, TokenHistory, Wakes};
use crate::clock::Moment;
use crate::resource::{FencingToken, LockId};
use crate::store::support::queue_pause::pause_behind;
use crate::store::{Attempt, Claim, Inbox, Lease, Released, Renewal, Waiting, Wake};

/// One waiter for a lock record.
#[derive(Clone, Debug)]
pub(in crate::memory) struct WaitEntry {
    pub(in crate::memory) lock_id: LockId,
    inbox: Inbox,
    expires_at: Moment,
    /// It was woken and has not asked again yet.
    woken: bool,
}

/// The record of a mutex.
#[derive(Clone, Debug)]
pub(in crate::memory) struct LockRecord {
    holder: Option<HoldEntry>,
    waiters: VecDeque<WaitEntry>,
    history: TokenHistory,
}

impl LockRecord {
    pub(in crate::memory) fn new(now: Moment) -> Self {
        LockRecord { holder: None, waiters: VecDeque::new(), history: TokenHistory::new(now) }
    }

    pub(in crate::memory) fn try_acquire(
        &mut self,
        claim: &Claim,
        now: Moment,
        rule: &mut TokenRule,
    ) -> Attempt {
        self.purge(now);
        if let Some(held) = self.holder.as_mut().filter(|held| held.lock_id == claim.lock_id) {
            held.renew_until(now.after(claim.expiry));
            self.history.touch(held.expires_at);
            return Attempt::Granted { token: held.token };
        }
        if let Some(held) = &self.holder {
            let retry_after = Some(held.left(now));
            let pause = self.register(&claim.lock_id, claim.waiting.as_ref(), now);
            return Attempt::busy(retry_after).with_poll_after(pause);
        }
        if let Some(left) = self.ahead(&claim.lock_id, now).filter(|_| claim.no_overtaking) {
            let pause = self.register(&claim.lock_id, claim.waiting.as_ref(), now);
            return Attempt::busy(left).with_poll_after(pause);
        }
        self.waiters.retain(|waiter| waiter.lock_id != claim.lock_id);
        let token = rule.draw(&mut self.history, now);
        let expires_at = now.after(claim.expiry);
        self.history.touch(expires_at);
        self.holder = Some(HoldEntry {
            lock_id: claim.lock_id.clone(),
            weight: 1,
            token,
            acquired_at: now,
            expires_at,
            inbox: claim.waiting.as_ref().map(|waiting| waiting.inbox.clone()),
        });
        Attempt::Granted { token }
    }

    pub(in crate::memory) fn renew(&mut self, lease: &Lease, now: Moment, rule: &mut TokenRule) -> Renewal {
        self.purge(now);
        let Some(held) = self.holder.as_mut().filter(|held| held.lock_id == lease.lock_id) else {
            return Renewal::NotYours;
        };
        held.renew_until(now.after(lease.expiry));
        if lease.token > held.token {
            held.token = lease.token;
            rule.raise(&mut self.history, held.token, now);
        }
        self.history.touch(held.expires_at);
        Renewal::Renewed
    }

    pub(in crate::memory) fn release(
        &mut self,
        lock_id: &LockId,
        now: Moment,
        wakes: &mut Wakes,
    ) -> Released {
        self.purge(now);
        let held = self.holder.take_if(|held| held.lock_id == *lock_id);
        let waited = self.remove_waiter(lock_id);
        if held.is_some() || waited.is_some() {
            self.history.touch(now);
        }
        let handoff = held.is_some() || waited.as_ref().is_some_and(|waiter| waiter.woken);
        let own = held.as_ref().and_then(|held| held.inbox.clone());
        let woken = self.wake_next(handoff, wakes);
        if held.is_none() && waited.is_none() {
            return Released::NotYours;
        }
        Released::Done { woke: woken.is_some_and(|inbox| own != Some(inbox)) }
    }

    /// Takes the lock from its holder and wakes the next waiter.
    pub(in crate::memory) fn break_lock(&mut self, now: Moment, wakes: &mut Wakes) -> Option<HoldEntry> {
        self.purge(now);
        let held = self.holder.take();
        self.history.touch(now);
        self.wake_next(held.is_some(), wakes);
        held
    }

    pub(in crate::memory) fn live(
        &self,
        now: Moment,
    ) -> (Option<&HoldEntry>, impl Iterator<Item = &WaitEntry>) {
        (
            self.holder.as_ref().filter(|held| held.is_live(now)),
            self.waiters.iter().filter(move |waiter| waiter.expires_at > now),
        )
    }

    pub(in crate::memory) fn last_token(&self) -> Option<FencingToken> {
        self.history.last
    }

    pub(in crate::memory) fn is_spent(&mut self, now: Moment, retention: Duration) -> bool {
        self.purge(now);
        self.holder.is_none() && self.waiters.is_empty() && self.history.is_spent(now, retention)
    }

    /// Removes what has expired. Expiry is final: a late renewal fails, whether or not another client has acquired the
    /// lock.
    fn purge(&mut self, now: Moment) {
        self.holder.take_if(|held| !held.is_live(now));
        self.waiters.retain(|waiter| waiter.expires_at > now);
    }

    /// The time until the first entry ahead of this lock id expires, if there is one.
    fn ahead(&self, lock_id: &LockId, now: Moment) -> Option<Duration> {
        let before = self.waiters.iter().take_while(|waiter| waiter.lock_id != *lock_id);
        before.map(|waiter| waiter.expires_at.since(now)).min()
    }

    /// Queues a waiter, and returns for how long it may sleep.
    fn register(&mut self, lock_id: &LockId, waiting: Option<&Waiting>, now: Moment) -> Option<Duration> {
        let Some(waiting) = waiting else {
            self.remove_waiter(lock_id);
            return None;
        };
        let queued = self.waiters.iter().position(|waiter| waiter.lock_id == *lock_id);
        let pause = pause_behind(queued.unwrap_or(self.waiters.len()));
        let fresh = WaitEntry {
            lock_id: lock_id.clone(),
            inbox: waiting.inbox.clone(),
            expires_at: now.after(waiting.ttl + pause.unwrap_or_default()),
            woken: false,
        };
        self.history.touch(fresh.expires_at);
        match queued.and_then(|at| self.waiters.get_mut(at)) {
            Some(waiter) => *waiter = fresh,
            None => self.waiters.push_back(fresh),
        }
        pause
    }

    fn remove_waiter(&mut self, lock_id: &LockId) -> Option<WaitEntry> {
        let at = self.waiters.iter().position(|waiter| waiter.lock_id == *lock_id)?;
        self.waiters.remove(at)
    }

    /// Wakes the first waiter of a free lock, and returns its inbox. A waiter keeps its entry until it acquires, withdraws
    /// or expires. But on another handoff (`handoff`) waiters that were woken and did not ask are dropped; otherwise a dead
    /// one would be woken again and again while others sleep.
    fn wake_next(&mut self, handoff: bool, wakes: &mut Wakes) -> Option<Inbox> {
        if self.holder.is_some() {
            return None;
        }
        while handoff && self.waiters.front().is_some_and(|waiter| waiter.woken) {
            self.waiters.pop_front();
        }
        let next = self.waiters.front_mut().filter(|waiter| !waiter.woken)?;
        next.woken = true;
        wakes.push((next.inbox.clone(), Wake::Retry { lock_id: next.lock_id.clone() }));
        Some(next.inbox.clone())
    }
}
