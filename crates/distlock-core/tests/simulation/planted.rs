//! Stores with a planted defect. The simulation must find each.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use distlock_core::memory::MemoryStore;
use distlock_core::store::{
    Attempt, Batch, Capabilities, Claim, Finding, Holder, Inbox, Lease, LeaseStore, Query, Record, Released,
    Renewal, Store, Wake, WakeStream,
};
use distlock_core::{Clock, FencingToken, Kind, LockId, Moment, Resource, Result};
use futures_util::StreamExt;

use crate::plan::Theme;
use crate::world::SimClock;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// A release frees the lock whatever lock id it carries.
    ReleaseWithoutOwner,
    /// A renewal takes a free lock.
    RenewalTakes,
    /// A renewal is confirmed although another client holds the lease.
    RenewalUnchecked,
    /// Tokens restart when a lock is released.
    TokenRestarts,
    /// A pushed grant carries the newest attempt at the time of delivery instead of the attempt that it answers.
    PushedAttempt,
    /// A pushed grant claims to be younger than it is.
    PushedAfter,
    /// A writer is sometimes granted beside other holders.
    TwoWriters,
    /// Every claim weighs one.
    Weightless,
    /// No wake-ups are sent.
    NoWakes,
    /// A renewal counts from the moment it was sent, even if a later one was applied before.
    ExpiryMovesBack,
    /// A repeated claim of the holder is answered "busy".
    NotIdempotent,
    /// A release does not remove waiters.
    WaiterStays,
    /// Leases expire early.
    EndsEarly,
    /// Leases never expire.
    NeverEnds,
    /// Renewals are sometimes refused.
    RenewalRefused,
    /// A token counter of a whole server begins at one after it was lost.
    CounterUnseeded,
    /// A token counter of a whole server does not follow the clock, so a replica goes on with old numbers.
    CounterWithoutClock,
}

impl Defect {
    pub const ALL: [Defect; 17] = [
        Defect::ReleaseWithoutOwner,
        Defect::RenewalTakes,
        Defect::RenewalUnchecked,
        Defect::TokenRestarts,
        Defect::PushedAttempt,
        Defect::PushedAfter,
        Defect::TwoWriters,
        Defect::Weightless,
        Defect::NoWakes,
        Defect::ExpiryMovesBack,
        Defect::NotIdempotent,
        Defect::WaiterStays,
        Defect::EndsEarly,
        Defect::NeverEnds,
        Defect::RenewalRefused,
        Defect::CounterUnseeded,
        Defect::CounterWithoutClock,
    ];
}

impl Defect {
    /// The theme that finds it quickly.
    pub fn theme(self) -> Theme {
        match self {
            Defect::PushedAttempt | Defect::PushedAfter => Theme::LatePushes,
            Defect::RenewalTakes | Defect::RenewalUnchecked => Theme::Breaks,
            Defect::NoWakes => Theme::Calm,
            Defect::CounterUnseeded | Defect::CounterWithoutClock => Theme::Counter,
            _ => Theme::Anything,
        }
    }
}

#[derive(Clone)]
pub struct Planted {
    inner: MemoryStore,
    clock: SimClock,
    defect: Defect,
    sent: Arc<AtomicU64>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    calls: u64,
    tokens: HashMap<Resource, u64>,
    attempts: HashMap<LockId, u64>,
    /// The expiry of leases, where the defect replaces the store's.
    ends: HashMap<LockId, (Moment, Lease)>,
    /// The token counter of the server, where the defect replaces the store's. `None`: the next one is the clock.
    counter: Option<u64>,
}

impl fmt::Debug for Planted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Planted({:?})", self.defect)
    }
}

impl Planted {
    pub fn new(inner: MemoryStore, clock: SimClock, defect: Defect, sent: Arc<AtomicU64>) -> Self {
        Planted { inner, clock, defect, sent, state: Arc::default() }
    }

    fn count(&self) -> u64 {
        let mut state = self.state.lock().unwrap();
        state.calls += 1;
        state.calls
    }

    pub fn lose_counter(&self) {
        let zero = (self.defect == Defect::CounterUnseeded).then_some(0);
        self.state.lock().unwrap().counter = zero;
    }

    /// The same over a copy of its store.
    pub fn copied_to(&self, inner: MemoryStore) -> Self {
        let counter = self.state.lock().unwrap().counter;
        let state = Arc::new(Mutex::new(State { counter, ..State::default() }));
        Planted { inner, state, ..self.clone() }
    }

    fn draw_token(&self) -> FencingToken {
        let mut state = self.state.lock().unwrap();
        let counter = state.counter.get_or_insert_with(|| self.clock.now().as_nanos() / 1_000);
        *counter += 1;
        FencingToken::new(*counter)
    }

    async fn holder(&self, resource: &Resource) -> Option<LockId> {
        let records = self.inner.inspect(&Query::named(resource.name())).await.ok()?;
        let record = records.into_iter().find(|record| record.kind == resource.kind())?;
        record.holders.first().map(|holder| holder.lock_id.clone())
    }

    /// Ends the leases that have expired by the defect's own expiry.
    async fn end_leases(&self) {
        let now = self.clock.now();
        let over: Vec<Lease> = {
            let mut state = self.state.lock().unwrap();
            let over: Vec<Lease> =
                state.ends.values().filter(|(end, _)| *end <= now).map(|(_, lease)| lease.clone()).collect();
            over.iter().for_each(|lease| drop(state.ends.remove(&lease.lock_id)));
            over
        };
        for lease in over {
            let _ = self.inner.release(&[lease]).await;
        }
    }

    fn claim(&self, claim: &Claim) -> Claim {
        let mut claim = claim.clone();
        match self.defect {
            Defect::Weightless => claim.weight = 1,
            Defect::EndsEarly => claim.expiry = claim.expiry.mul_f64(0.9),
            Defect::NeverEnds => claim.expiry *= 1000,
            _ => {}
        }
        claim
    }

    async fn acquire(&self, claim: &Claim) -> Result<Attempt> {
        if let Some(waiting) = &claim.waiting {
            self.state.lock().unwrap().attempts.insert(claim.lock_id.clone(), waiting.attempt);
        }
        if self.defect == Defect::NotIdempotent
            && self.holder(&claim.resource).await.as_ref() == Some(&claim.lock_id)
        {
            return Ok(Attempt::busy(None));
        }
        let answer = self.inner.try_acquire(&[self.claim(claim)]).await?.remove(0)?;
        let exclusive = claim.resource.kind() == Kind::RwLock && claim.weight == claim.capacity;
        Ok(match (self.defect, answer) {
            (Defect::TwoWriters, Attempt::Busy { .. }) if exclusive && self.count().is_multiple_of(7) => {
                let last = self.inner.last_token(&claim.resource).map_or(1, FencingToken::get);
                Attempt::granted(FencingToken::new(last + 1))
            }
            (Defect::TokenRestarts, Attempt::Granted { .. }) => {
                let mut state = self.state.lock().unwrap();
                let token = state.tokens.entry(claim.resource.clone()).or_default();
                *token += 1;
                Attempt::granted(FencingToken::new(*token))
            }
            (Defect::CounterUnseeded | Defect::CounterWithoutClock, Attempt::Granted { .. }) => {
                Attempt::granted(self.draw_token())
            }
            (Defect::ExpiryMovesBack, Attempt::Granted { token, .. }) => {
                let end = self.clock.now().after(claim.expiry);
                let lease = Lease::of(claim, token);
                self.state.lock().unwrap().ends.insert(claim.lock_id.clone(), (end, lease));
                Attempt::granted(token)
            }
            (_, answer) => answer,
        })
    }

    async fn renew_lease(&self, lease: &Lease) -> Result<Renewal> {
        if self.defect == Defect::RenewalRefused && self.count().is_multiple_of(9) {
            return Ok(Renewal::NotYours);
        }
        let mut asked = lease.clone();
        match self.defect {
            Defect::EndsEarly => asked.expiry = asked.expiry.mul_f64(0.9),
            Defect::NeverEnds => asked.expiry *= 1000,
            _ => {}
        }
        let answer = self.inner.renew(&[asked]).await?.remove(0)?;
        Ok(match (self.defect, answer) {
            (Defect::RenewalUnchecked, Renewal::NotYours) => Renewal::Renewed,
            (Defect::RenewalTakes, Renewal::NotYours) => {
                let claim = Claim::new(lease.resource.clone(), lease.lock_id.clone(), lease.expiry)
                    .with_weight(lease.weight)
                    .with_capacity(lease.capacity);
                match self.inner.try_acquire(&[claim]).await?.remove(0)? {
                    Attempt::Granted { .. } => Renewal::Renewed,
                    _ => Renewal::NotYours,
                }
            }
            (Defect::ExpiryMovesBack, Renewal::Renewed) => {
                let end = Moment::from_nanos(self.sent.load(SeqCst)).after(lease.expiry);
                self.state.lock().unwrap().ends.insert(lease.lock_id.clone(), (end, lease.clone()));
                Renewal::Renewed
            }
            (_, answer) => answer,
        })
    }

    async fn free(&self, lease: &Lease) -> Result<Released> {
        let mut lease = lease.clone();
        let holder = self.holder(&lease.resource).await;
        match self.defect {
            Defect::ReleaseWithoutOwner => lease.lock_id = holder.unwrap_or(lease.lock_id),
            Defect::WaiterStays if holder.as_ref() != Some(&lease.lock_id) => return Ok(Released::NotYours),
            Defect::TokenRestarts => drop(self.state.lock().unwrap().tokens.remove(&lease.resource)),
            Defect::ExpiryMovesBack => drop(self.state.lock().unwrap().ends.remove(&lease.lock_id)),
            _ => {}
        }
        self.inner.release(&[lease]).await?.remove(0)
    }
}

#[async_trait]
impl Store for Planted {
    fn describe(&self) -> String {
        "planted".to_owned()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::all()
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Record>> {
        self.inner.inspect(query).await
    }

    async fn break_lock(&self, resource: &Resource) -> Result<Vec<Holder>> {
        self.inner.break_lock(resource).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }
}

#[async_trait]
impl LeaseStore for Planted {
    async fn try_acquire(&self, claims: &[Claim]) -> Batch<Attempt> {
        self.end_leases().await;
        let mut answers = Vec::new();
        for claim in claims {
            answers.push(self.acquire(claim).await);
        }
        Ok(answers)
    }

    async fn renew(&self, leases: &[Lease]) -> Batch<Renewal> {
        self.end_leases().await;
        let mut answers = Vec::new();
        for lease in leases {
            answers.push(self.renew_lease(lease).await);
        }
        Ok(answers)
    }

    async fn release(&self, leases: &[Lease]) -> Batch<Released> {
        self.end_leases().await;
        let mut answers = Vec::new();
        for lease in leases {
            answers.push(self.free(lease).await);
        }
        Ok(answers)
    }

    async fn subscribe(&self, inbox: &Inbox) -> Result<WakeStream> {
        let wakes = self.inner.subscribe(inbox).await?;
        let planted = self.clone();
        Ok(match self.defect {
            Defect::NoWakes => Box::pin(wakes.filter(|_| std::future::ready(false))),
            _ => Box::pin(wakes.map(move |wake| planted.wake(wake))),
        })
    }
}

impl Planted {
    fn wake(&self, wake: Wake) -> Wake {
        match wake {
            Wake::Granted { lock_id, mut grant, .. } => {
                if self.defect == Defect::PushedAfter {
                    grant.after += Duration::from_secs(1);
                }
                Wake::granted(lock_id, grant)
            }
            other => other,
        }
    }

    /// Changes a message at the moment of its delivery.
    pub fn delivered(&self, wake: Wake) -> Wake {
        match wake {
            Wake::Granted { lock_id, mut grant, .. } if self.defect == Defect::PushedAttempt => {
                grant.attempt = self.state.lock().unwrap().attempts.get(&lock_id).copied().unwrap_or(0);
                Wake::granted(lock_id, grant)
            }
            other => other,
        }
    }
}
