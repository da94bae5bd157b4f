//! A lease store that shows what it is asked, and whose wake-ups a test can send itself.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use distlock_core::faults::{Faults, FaultyStore};
use distlock_core::memory::MemoryStore;
use distlock_core::store::{
    Attempt, Backend, Batch, Capabilities, Claim, Finding, Holder, Inbox, Lease, LeaseStore, Query, Record,
    Released, Renewal, Store, Wake, WakeStream,
};
use distlock_core::{Error, Locks, Options, Resource, Result, VirtualClock};
use futures_util::stream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;

#[derive(Clone, Debug)]
pub struct Spy {
    inner: MemoryStore,
    /// Whether it says that it can push.
    pub push: bool,
    /// The claims that arrived.
    pub claims: Arc<Mutex<Vec<Claim>>>,
    pub released: Arc<Mutex<Vec<Lease>>>,
    /// When it was asked to renew how many leases.
    pub renewals: Arc<Mutex<Vec<(Instant, usize)>>>,
    /// The error of every renewal or release, if there is one.
    pub refusal: Arc<Mutex<Option<Error>>>,
    /// The open streams of wake-ups; what the store itself would send is not sent.
    streams: Arc<Mutex<Vec<UnboundedSender<Wake>>>>,
}

impl Spy {
    pub fn new(inner: &MemoryStore) -> Self {
        Spy {
            inner: inner.clone(),
            push: true,
            claims: Arc::default(),
            released: Arc::default(),
            renewals: Arc::default(),
            refusal: Arc::default(),
            streams: Arc::default(),
        }
    }

    /// A process that uses it.
    pub fn locks(&self, options: Options) -> (Locks, VirtualClock, Faults) {
        let clock = VirtualClock::new();
        let (store, faults) = FaultyStore::new(Arc::new(self.clone()));
        let builder = Locks::builder(Backend::lease(store)).clock(Arc::new(clock.clone()));
        (builder.options(options).build().unwrap(), clock, faults)
    }

    pub fn wake(&self, wake: &Wake) {
        for stream in self.streams.lock().unwrap().iter() {
            let _ = stream.send(wake.clone());
        }
    }

    pub fn hang_up(&self) {
        self.streams.lock().unwrap().clear();
    }

    pub fn is_subscribed(&self) -> bool {
        self.streams.lock().unwrap().iter().any(|stream| !stream.is_closed())
    }

    fn refused(&self) -> Result<()> {
        self.refusal.lock().unwrap().clone().map_or(Ok(()), Err)
    }

    pub fn attempts(&self) -> usize {
        self.claims.lock().unwrap().len()
    }

    /// Whether the newest claim left an entry in the queue.
    pub fn last_is_registered(&self) -> bool {
        self.claims.lock().unwrap().last().is_some_and(|claim| claim.waiting.is_some())
    }

    /// The newest claim that arrived.
    pub fn last(&self) -> Claim {
        self.claims.lock().unwrap().last().unwrap().clone()
    }
}

#[async_trait]
impl Store for Spy {
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.inner.capabilities();
        capabilities.push = self.push;
        capabilities
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
impl LeaseStore for Spy {
    async fn try_acquire(&self, claims: &[Claim]) -> Batch<Attempt> {
        self.claims.lock().unwrap().extend_from_slice(claims);
        self.inner.try_acquire(claims).await
    }
    async fn renew(&self, leases: &[Lease]) -> Batch<Renewal> {
        self.renewals.lock().unwrap().push((Instant::now(), leases.len()));
        self.refused()?;
        self.inner.renew(leases).await
    }
    async fn release(&self, leases: &[Lease]) -> Batch<Released> {
        self.released.lock().unwrap().extend_from_slice(leases);
        self.refused()?;
        self.inner.release(leases).await
    }
    async fn subscribe(&self, _: &Inbox) -> Result<WakeStream> {
        let (sender, receiver) = unbounded_channel();
        self.streams.lock().unwrap().push(sender);
        let next = |mut receiver: UnboundedReceiver<Wake>| async { Some((receiver.recv().await?, receiver)) };
        Ok(Box::pin(stream::unfold(receiver, next)))
    }
}
