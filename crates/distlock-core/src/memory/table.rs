//! The records of a memory store, and the purge of unused ones.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, SystemTime};

use super::records::{HoldEntry, LockRecord, PoolRecord, Wakes};
use super::tokens::TokenRule;
use crate::clock::Moment;
use crate::error::Result;
use crate::resource::{FencingToken, RecordKind, Resource};
use crate::store::support::inspect;
use crate::store::{Attempt, Claim, Holder, Lease, Query, Record, Released, Renewal, Waiter, Wake};

/// How many records one item of a request checks for the purge. The work stays bounded, and since an item creates at most
/// one record, more records are purged than created.
const PURGE_AT_ONCE: usize = 4;

#[derive(Clone, Debug)]
enum TableRecord {
    Lock(LockRecord),
    Pool(PoolRecord),
}

/// The records by resource. Each has exactly one entry in `due`, which says when to check whether it can be purged.
#[derive(Clone, Debug)]
pub(super) struct Table {
    records: HashMap<Resource, TableRecord>,
    due: VecDeque<(Moment, Resource)>,
    pub(super) retention: Duration,
    /// How mutexes draw their tokens.
    pub(super) rule: TokenRule,
}

impl Table {
    pub(super) fn new(retention: Duration) -> Self {
        Table { records: HashMap::new(), due: VecDeque::new(), retention, rule: TokenRule::default() }
    }

    pub(super) fn try_acquire(&mut self, claim: &Claim, now: Moment, wakes: &mut Wakes) -> Result<Attempt> {
        let kind = claim.resource.kind().record();
        if kind == RecordKind::Pool {
            claim.check_weight()?;
        }
        self.purge(now, wakes);
        if !self.records.contains_key(&claim.resource) {
            self.due.push_back((now.after(self.retention), claim.resource.clone()));
        }
        let entry = self.records.entry(claim.resource.clone()).or_insert_with(|| match kind {
            RecordKind::Lock => TableRecord::Lock(LockRecord::new(now)),
            RecordKind::Pool => TableRecord::Pool(PoolRecord::new(now)),
        });
        match entry {
            TableRecord::Lock(lock) => Ok(lock.try_acquire(claim, now, &mut self.rule)),
            TableRecord::Pool(pool) => pool.try_acquire(claim, now, wakes),
        }
    }

    pub(super) fn renew(&mut self, lease: &Lease, now: Moment, wakes: &mut Wakes) -> Renewal {
        match self.records.get_mut(&lease.resource) {
            Some(TableRecord::Lock(lock)) => lock.renew(lease, now, &mut self.rule),
            Some(TableRecord::Pool(pool)) => pool.renew(lease, now, wakes),
            None => Renewal::NotYours,
        }
    }

    pub(super) fn release(&mut self, lease: &Lease, now: Moment, wakes: &mut Wakes) -> Released {
        let released = match self.records.get_mut(&lease.resource) {
            Some(TableRecord::Lock(lock)) => lock.release(&lease.lock_id, now, wakes),
            Some(TableRecord::Pool(pool)) => pool.release(&lease.lock_id, now, wakes),
            None => Released::NotYours,
        };
        self.purge(now, wakes);
        released
    }

    pub(super) fn break_lock(&mut self, resource: &Resource, now: Moment, wakes: &mut Wakes) -> Vec<Holder> {
        let held: Vec<_> = match self.records.get_mut(resource) {
            Some(TableRecord::Lock(lock)) => lock.break_lock(now, wakes).into_iter().collect(),
            Some(TableRecord::Pool(pool)) => pool.break_lock(now, wakes),
            None => Vec::new(),
        };
        wakes.extend(held.iter().filter_map(|held| {
            let lock_id = held.lock_id.clone();
            Some((lock_id.inbox()?, Wake::Broken { lock_id }))
        }));
        held.iter().map(|held| describe_holder(held, now)).collect()
    }

    /// How many records there are, including those that only keep a token.
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    pub(super) fn last_token(&self, resource: &Resource) -> Option<FencingToken> {
        match self.records.get(resource)? {
            TableRecord::Lock(lock) => lock.last_token(),
            TableRecord::Pool(pool) => pool.last_token(),
        }
    }

    pub(super) fn inspect(&self, query: &Query, now: Moment) -> Vec<Record> {
        let wanted = self.records.iter().filter(|(r, _)| query.matches(r.kind(), r.name()));
        let found = wanted
            .map(|(resource, entry)| {
                let (capacity, holders, waiters) = match entry {
                    TableRecord::Lock(lock) => {
                        let (holder, waiters) = lock.live(now);
                        let waiters = waiters.map(|w| Waiter { lock_id: w.lock_id.clone(), weight: 1 });
                        (
                            1,
                            holder.map(|held| describe_holder(held, now)).into_iter().collect(),
                            waiters.collect(),
                        )
                    }
                    TableRecord::Pool(pool) => {
                        let (holders, queue) = pool.live(now);
                        let waiters = queue.map(|q| Waiter { lock_id: q.lock_id.clone(), weight: q.weight });
                        (
                            pool.capacity(),
                            holders.map(|held| describe_holder(held, now)).collect(),
                            waiters.collect(),
                        )
                    }
                };
                let name = Some(resource.name().to_owned());
                Record { kind: resource.kind(), name, key: None, capacity, holders, waiters }
            })
            .collect();
        inspect::select(found, query)
    }

    fn purge(&mut self, now: Moment, wakes: &mut Wakes) {
        for _ in 0..PURGE_AT_ONCE {
            if self.due.front().is_none_or(|(due, _)| *due > now) {
                return;
            }
            let Some((_, resource)) = self.due.pop_front() else { return };
            let spent = match self.records.get_mut(&resource) {
                Some(TableRecord::Lock(lock)) => lock.is_spent(now, self.retention),
                Some(TableRecord::Pool(pool)) => pool.is_spent(now, self.retention, wakes),
                None => continue,
            };
            if spent {
                self.records.remove(&resource);
            } else {
                self.due.push_back((now.after(self.retention), resource));
            }
        }
    }
}

fn describe_holder(held: &HoldEntry, now: Moment) -> Holder {
    Holder {
        lock_id: held.lock_id.clone(),
        token: Some(held.token),
        acquired_at: SystemTime::now().checked_sub(now.since(held.acquired_at)),
        expires_in: Some(held.expires_at.since(now)),
        weight: held.weight,
        also_held: Vec::new(),
    }
}
