//! A store whose wake-ups are delayed.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use distlock_core::store::{
    Attempt, Batch, Capabilities, Claim, Finding, Holder, Inbox, Lease, LeaseStore, Query, Record, Released,
    Renewal, Store, WakeStream,
};
use distlock_core::{Resource, Result};
use futures_util::StreamExt;

/// Forwards every call, and wake-ups after a delay.
#[derive(Debug)]
pub struct LateWakes {
    pub inner: Arc<dyn LeaseStore>,
    pub delay_ms: Arc<AtomicU64>,
}

#[async_trait]
impl Store for LateWakes {
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
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
impl LeaseStore for LateWakes {
    async fn try_acquire(&self, claims: &[Claim]) -> Batch<Attempt> {
        self.inner.try_acquire(claims).await
    }
    async fn renew(&self, leases: &[Lease]) -> Batch<Renewal> {
        self.inner.renew(leases).await
    }
    async fn release(&self, leases: &[Lease]) -> Batch<Released> {
        self.inner.release(leases).await
    }
    async fn subscribe(&self, inbox: &Inbox) -> Result<WakeStream> {
        let delay = Arc::clone(&self.delay_ms);
        let stream = self.inner.subscribe(inbox).await?.then(move |wake| {
            let delay = Duration::from_millis(delay.load(Ordering::SeqCst));
            async move {
                tokio::time::sleep(delay).await;
                wake
            }
        });
        Ok(Box::pin(stream))
    }
}
