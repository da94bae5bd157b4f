//! A store with hooks around its calls, and a store whose wake-ups arrive late.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;

use super::Verb;
use crate::error::{Error, Result};
use crate::resource::{LockId, Resource};
use crate::store::support::errors::too_few_answers;
use crate::store::{
    Attempt, Batch, Capabilities, Claim, Finding, Holder, Inbox, Lease, LeaseStore, Query, Record, Released,
    Renewal, Store, WakeStream,
};

/// What a test does around the calls of a store. Every method passes the call on by default.
#[async_trait]
pub trait StoreHooks: fmt::Debug + Send + Sync + 'static {
    /// The name that the store reports.
    fn describe(&self, inner: String) -> String {
        inner
    }

    /// The capabilities that the store reports.
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        inner
    }

    /// Runs before `try_acquire`.
    async fn before_acquire(&self, _: &[Claim]) {}

    /// Runs before `renew`.
    async fn before_renew(&self, _: &[Lease]) {}

    /// Runs before `release`.
    async fn before_release(&self, _: &[Lease]) {}

    /// The error of an item of a request, if it has one: the other items go on without it.
    fn refuse(&self, _: Verb, _: &LockId) -> Option<Error> {
        None
    }

    /// Opens the stream of wake-ups.
    async fn subscribe(&self, inner: &dyn LeaseStore, inbox: &Inbox) -> Result<WakeStream> {
        inner.subscribe(inbox).await
    }
}

/// Any lease store, with hooks around its calls.
#[derive(Clone, Debug)]
pub struct HookedStore {
    inner: Arc<dyn LeaseStore>,
    hooks: Arc<dyn StoreHooks>,
}

impl HookedStore {
    /// Wraps a store.
    #[must_use]
    pub fn new(inner: Arc<dyn LeaseStore>, hooks: Arc<dyn StoreHooks>) -> Self {
        HookedStore { inner, hooks }
    }

    async fn pass<I: Clone, T, F: Future<Output = Batch<T>>>(
        &self,
        verb: Verb,
        items: &[I],
        lock_id: impl Fn(&I) -> &LockId,
        call: impl FnOnce(Vec<I>) -> F,
    ) -> Batch<T> {
        let refused: Vec<_> = items.iter().map(|item| self.hooks.refuse(verb, lock_id(item))).collect();
        let passed = items.iter().zip(&refused).filter(|(_, refused)| refused.is_none());
        let passed: Vec<I> = passed.map(|(item, _)| item.clone()).collect();
        let answers = if passed.is_empty() { Vec::new() } else { call(passed).await? };
        let mut answers = answers.into_iter();
        let mut answer = || answers.next().unwrap_or_else(|| Err(too_few_answers()));
        Ok(refused.into_iter().map(|refused| refused.map_or_else(&mut answer, Err)).collect())
    }
}

#[async_trait]
impl Store for HookedStore {
    fn describe(&self) -> String {
        self.hooks.describe(self.inner.describe())
    }

    fn capabilities(&self) -> Capabilities {
        self.hooks.capabilities(self.inner.capabilities())
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Record>> {
        self.inner.inspect(query).await
    }

    async fn break_lock(&self, resource: &Resource) -> Result<Vec<Holder>> {
        self.inner.break_lock(resource).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        self.inner.doctor().await
    }
}

#[async_trait]
impl LeaseStore for HookedStore {
    async fn try_acquire(&self, claims: &[Claim]) -> Batch<Attempt> {
        self.hooks.before_acquire(claims).await;
        let call = async |claims: Vec<Claim>| self.inner.try_acquire(&claims).await;
        self.pass(Verb::Acquire, claims, |claim| &claim.lock_id, call).await
    }

    async fn renew(&self, leases: &[Lease]) -> Batch<Renewal> {
        self.hooks.before_renew(leases).await;
        let call = async |leases: Vec<Lease>| self.inner.renew(&leases).await;
        self.pass(Verb::Renew, leases, |lease| &lease.lock_id, call).await
    }

    async fn release(&self, leases: &[Lease]) -> Batch<Released> {
        self.hooks.before_release(leases).await;
        let call = async |leases: Vec<Lease>| self.inner.release(&leases).await;
        self.pass(Verb::Release, leases, |lease| &lease.lock_id, call).await
    }

    async fn subscribe(&self, inbox: &Inbox) -> Result<WakeStream> {
        self.hooks.subscribe(&*self.inner, inbox).await
    }
}

/// Wraps a store so that its wake-ups arrive late, and returns the delay beside it. The delay is zero at first.
#[must_use]
pub fn delay_wakes(inner: Arc<dyn LeaseStore>) -> (HookedStore, WakeDelay) {
    let delay = WakeDelay::default();
    (HookedStore::new(inner, Arc::new(DelayedWakes(delay.clone()))), delay)
}

/// By how much wake-ups are late. Clones share the delay.
#[derive(Clone, Debug, Default)]
pub struct WakeDelay(Arc<AtomicU64>);

impl WakeDelay {
    /// Delays the wake-ups that arrive from now on. Their order stays the same.
    pub fn set(&self, delay: Duration) {
        self.0.store(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX), Ordering::SeqCst);
    }

    fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::SeqCst))
    }
}

#[derive(Debug)]
struct DelayedWakes(WakeDelay);

#[async_trait]
impl StoreHooks for DelayedWakes {
    async fn subscribe(&self, inner: &dyn LeaseStore, inbox: &Inbox) -> Result<WakeStream> {
        /// How many wake-ups may be delayed at once, each by the full delay from its own arrival.
        const AT_ONCE: usize = 1000;
        let delay = self.0.clone();
        let delayed = inner.subscribe(inbox).await?.map(move |wake| {
            let delay = delay.get();
            async move {
                tokio::time::sleep(delay).await;
                wake
            }
        });
        Ok(Box::pin(delayed.buffered(AT_ONCE)))
    }
}
