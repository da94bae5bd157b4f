//! A memory store with one defect.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use distlock_core::memory::MemoryStore;
use distlock_core::store::{
    Attempt, Batch, Capabilities, Claim, Finding, Holder, Inbox, Lease, LeaseStore, PushedGrant, Query,
    Record, Released, Renewal, Store, Waiting, Wake, WakeStream,
};
use distlock_core::{Error, ErrorKind, FencingToken, LockId, Resource, Result, WRITER_WEIGHT};
use futures_util::StreamExt;

use super::Defect;
use super::names::{broken_lock_id, broken_resource};
use super::tokens::DeletableCounters;

/// A memory store with one defect, or with none. Clones share everything.
#[derive(Clone, Debug)]
pub struct BrokenStore {
    inner: MemoryStore,
    defect: Option<Defect>,
    counters: Arc<DeletableCounters>,
    renewals: Arc<AtomicU64>,
    /// The newest attempt of each waiter: the engine believes only a grant that names it.
    attempts: Arc<Mutex<HashMap<LockId, u64>>>,
}

impl BrokenStore {
    /// Wraps a memory store.
    #[must_use]
    pub fn new(inner: MemoryStore, defect: Option<Defect>) -> Self {
        BrokenStore {
            inner,
            defect,
            counters: Arc::default(),
            renewals: Arc::default(),
            attempts: Arc::default(),
        }
    }

    fn has(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    fn expiry(&self, asked: Duration) -> Duration {
        match self.defect {
            Some(Defect::ExpiresEarly) => asked / 4,
            Some(Defect::NeverExpires) => Duration::from_secs(3600),
            _ => asked,
        }
    }

    fn claim(&self, claim: &Claim) -> Claim {
        let mut claim_sent = claim
            .clone()
            .with_resource(broken_resource(self.defect, &claim.resource, claim.capacity))
            .with_lock_id(broken_lock_id(self.defect, &claim.lock_id))
            .with_expiry(self.expiry(claim.expiry));
        let writes = claim.weight == WRITER_WEIGHT;
        match self.defect {
            Some(Defect::TwoWriters) if writes => claim_sent.weight = WRITER_WEIGHT / 2,
            Some(Defect::ReaderBesideWriter) if writes => claim_sent.weight = WRITER_WEIGHT - 1,
            Some(Defect::NoQueue) => claim_sent.waiting = None,
            Some(Defect::SingleAttemptQueues) => {
                let waiting = || Waiting::new(Inbox::new("unused"), Duration::from_secs(60), 1);
                claim_sent.waiting.get_or_insert_with(waiting);
            }
            _ => {}
        }
        claim_sent
    }

    fn lease(&self, lease: &Lease) -> Lease {
        lease
            .clone()
            .with_resource(broken_resource(self.defect, &lease.resource, lease.capacity))
            .with_lock_id(broken_lock_id(self.defect, &lease.lock_id))
            .with_expiry(self.expiry(lease.expiry))
            // An invented token must not reach the inner store.
            .with_token(FencingToken::new(0))
    }

    async fn holders(&self, resource: &Resource) -> Vec<Holder> {
        let query = Query::named(resource.name()).with_kind(resource.kind());
        let found = self.inner.inspect(&query).await.expect("a memory store answers");
        found.into_iter().flat_map(|record| record.holders).collect()
    }

    /// The token that this store returns.
    async fn token(&self, resource: &Resource, lock_id: &LockId, token: FencingToken) -> FencingToken {
        match self.defect {
            Some(Defect::TokenRestartsAtRelease | Defect::TokenRestartsAtBreak) => {
                self.counters.token(resource, lock_id)
            }
            Some(Defect::TokenSharedByHolders) => {
                self.holders(resource).await.iter().filter_map(|holder| holder.token).min().unwrap_or(token)
            }
            _ => token,
        }
    }

    fn attempts(&self) -> MutexGuard<'_, HashMap<LockId, u64>> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn acquire_one(&self, claim: &Claim) -> Result<Attempt> {
        let claim = self.claim(claim);
        if let Some(waiting) = &claim.waiting {
            self.attempts().insert(claim.lock_id.clone(), waiting.attempt);
        }
        let holders = self.holders(&claim.resource).await;
        if self.has(Defect::ChecksThenSets) && holders.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
            self.inner.break_lock(&claim.resource).await?;
        }
        if self.has(Defect::ForgetsLockIds) && holders.iter().any(|holder| holder.lock_id == claim.lock_id) {
            return Ok(Attempt::busy(None));
        }
        let mut answers = self.inner.try_acquire(std::slice::from_ref(&claim)).await?;
        match answers.pop().expect("one answer for one claim")? {
            Attempt::Granted { token, .. } => {
                let token = self.token(&claim.resource, &claim.lock_id, token).await;
                Ok(Attempt::granted(token))
            }
            Attempt::Busy { .. } if self.has(Defect::NoRetryAfter) => Ok(Attempt::busy(None)),
            busy => Ok(busy),
        }
    }

    async fn renew_one(&self, lease: &Lease) -> Result<Renewal> {
        let lease = self.lease(lease);
        let one = std::slice::from_ref(&lease);
        if self.has(Defect::FailedRenewalFrees) && self.renewals.fetch_add(1, Ordering::SeqCst) % 2 == 1 {
            self.inner.release(one).await?;
            return Err(Error::new(ErrorKind::Unavailable, "the renewal failed").with_unknown_outcome());
        }
        let renewed = self.inner.renew(one).await?.pop().expect("one answer for one lease")?;
        match (self.defect, renewed) {
            (Some(Defect::RenewalFrees), Renewal::Renewed) => {
                self.inner.release(one).await?;
                Ok(Renewal::Renewed)
            }
            (Some(Defect::RenewsForeignLock), Renewal::NotYours) => Ok(Renewal::Renewed),
            (Some(Defect::RenewalAcquires), Renewal::NotYours) => {
                let again = Claim::new(lease.resource.clone(), lease.lock_id.clone(), lease.expiry)
                    .with_weight(lease.weight)
                    .with_capacity(lease.capacity);
                let acquired =
                    self.inner.try_acquire(&[again]).await?.pop().expect("one answer for one claim")?;
                Ok(match acquired {
                    Attempt::Granted { .. } => Renewal::Renewed,
                    _ => Renewal::NotYours,
                })
            }
            (_, renewed) => Ok(renewed),
        }
    }

    async fn release_one(&self, lease: &Lease) -> Result<Released> {
        let lease = self.lease(lease);
        let holds = self.holders(&lease.resource).await.iter().any(|holder| holder.lock_id == lease.lock_id);
        if self.has(Defect::WithdrawnWaitersStay) && !holds {
            return Ok(Released::NotYours);
        }
        let released = self.inner.release(std::slice::from_ref(&lease)).await?.pop().expect("one answer")?;
        match (self.defect, &released) {
            (Some(Defect::TokenRestartsAtRelease), Released::Done { .. }) => {
                self.counters.delete(&lease.resource)
            }
            (Some(Defect::ReleaseWithoutOwnerCheck), Released::NotYours) => {
                self.inner.break_lock(&lease.resource).await?;
                return Ok(Released::Done { woke: false });
            }
            _ => {}
        }
        Ok(released)
    }
}

#[async_trait]
impl Store for BrokenStore {
    fn describe(&self) -> String {
        match self.defect {
            Some(defect) => format!("broken memory ({defect:?})"),
            None => "memory".to_owned(),
        }
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Record>> {
        self.inner.inspect(query).await
    }

    async fn break_lock(&self, resource: &Resource) -> Result<Vec<Holder>> {
        if self.has(Defect::TokenRestartsAtBreak) {
            self.counters.delete(resource);
        }
        self.inner.break_lock(resource).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        self.inner.doctor().await
    }
}

#[async_trait]
impl LeaseStore for BrokenStore {
    async fn try_acquire(&self, claims: &[Claim]) -> Batch<Attempt> {
        let mut answers = Vec::new();
        for claim in claims {
            let answer = self.acquire_one(claim).await;
            if self.has(Defect::BatchFailsAsAWhole) {
                answers.push(Ok(answer?));
            } else {
                answers.push(answer);
            }
        }
        Ok(answers)
    }

    async fn renew(&self, leases: &[Lease]) -> Batch<Renewal> {
        let mut answers = Vec::new();
        for lease in leases {
            answers.push(self.renew_one(lease).await);
        }
        Ok(answers)
    }

    async fn release(&self, leases: &[Lease]) -> Batch<Released> {
        let mut answers = Vec::new();
        for lease in leases {
            answers.push(self.release_one(lease).await);
        }
        Ok(answers)
    }

    async fn subscribe(&self, inbox: &Inbox) -> Result<WakeStream> {
        let stream = self.inner.subscribe(inbox).await?;
        let store = self.clone();
        Ok(match self.defect {
            Some(Defect::NeverWakes) => Box::pin(stream.filter(|_| std::future::ready(false))),
            Some(Defect::WakesClaimAGrant) => Box::pin(stream.map(move |wake| match wake {
                Wake::Retry { lock_id, .. } => {
                    static INVENTED: AtomicU64 = AtomicU64::new(1 << 60);
                    let token = FencingToken::new(INVENTED.fetch_add(1, Ordering::SeqCst));
                    let window = Duration::from_secs(2);
                    let attempt = store.attempts().get(&lock_id).copied().unwrap_or_default();
                    let grant =
                        PushedGrant::new(token, window).with_attempt(attempt).with_after(Duration::MAX);
                    Wake::granted(lock_id, grant)
                }
                wake => wake,
            })),
            Some(Defect::TokenRestartsAtRelease | Defect::TokenRestartsAtBreak) => {
                Box::pin(stream.then(move |wake| {
                    let store = store.clone();
                    async move { store.with_own_token(wake).await }
                }))
            }
            _ => stream,
        })
    }
}

impl BrokenStore {
    /// Replaces the token of a pushed grant by this store's own.
    async fn with_own_token(&self, wake: Wake) -> Wake {
        let Wake::Granted { lock_id, grant, .. } = wake else { return wake };
        let records = self.inner.inspect(&Query::default()).await.expect("a memory store answers");
        let held = |record: &Record| record.holders.iter().any(|holder| holder.lock_id == lock_id);
        let record = records.into_iter().find(held);
        let resource = record.and_then(|record| Resource::new(record.kind, record.name?).ok());
        match resource {
            Some(resource) => {
                let token = self.counters.token(&resource, &lock_id);
                Wake::granted(lock_id, grant.with_token(token))
            }
            None => Wake::retry(lock_id),
        }
    }
}
