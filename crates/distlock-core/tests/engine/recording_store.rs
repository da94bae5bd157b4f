//! A lease store that records its requests, and whose wake-ups the test sends.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use distlock_core::faults::{Faults, FaultyStore, HookedStore, StoreHooks, Verb};
use distlock_core::memory::MemoryStore;
use distlock_core::store::{Backend, Capabilities, Claim, Inbox, Lease, LeaseStore, Wake, WakeStream};
use distlock_core::{Error, LockId, Locks, Options, Result, VirtualClock};
use futures_util::stream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;

#[derive(Clone, Debug)]
pub struct Recorder {
    inner: MemoryStore,
    /// Whether it reports that it can push.
    pub push: bool,
    /// The claims that the store received.
    pub claims: Arc<Mutex<Vec<Claim>>>,
    pub released: Arc<Mutex<Vec<Lease>>>,
    /// When the store received a renewal, and of how many leases.
    pub renewals: Arc<Mutex<Vec<(Instant, usize)>>>,
    /// The error of every renewal and release, if there is one.
    pub refusal: Arc<Mutex<Option<Error>>>,
    /// The open streams of wake-ups. They carry only what the test sends.
    streams: Arc<Mutex<Vec<UnboundedSender<Wake>>>>,
}

impl Recorder {
    pub fn new(inner: &MemoryStore) -> Self {
        Recorder {
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
        let (store, faults) = self.store();
        let builder = Locks::builder(Backend::lease(store)).clock(Arc::new(clock.clone()));
        (builder.options(options).build().unwrap(), clock, faults)
    }

    /// The store, with faults before it.
    pub fn store(&self) -> (FaultyStore, Faults) {
        FaultyStore::new(Arc::new(HookedStore::new(Arc::new(self.inner.clone()), Arc::new(self.clone()))))
    }

    pub fn wake(&self, wake: &Wake) {
        for stream in self.streams.lock().unwrap().iter() {
            let _ = stream.send(wake.clone());
        }
    }

    pub fn close_streams(&self) {
        self.streams.lock().unwrap().clear();
    }

    pub fn is_subscribed(&self) -> bool {
        self.streams.lock().unwrap().iter().any(|stream| !stream.is_closed())
    }

    pub fn attempts(&self) -> usize {
        self.claims.lock().unwrap().len()
    }

    /// Whether the newest claim left an entry in the wait queue.
    pub fn last_is_registered(&self) -> bool {
        self.claims.lock().unwrap().last().is_some_and(|claim| claim.waiting.is_some())
    }

    /// The newest claim that the store received.
    pub fn last(&self) -> Claim {
        self.claims.lock().unwrap().last().unwrap().clone()
    }
}

#[async_trait]
impl StoreHooks for Recorder {
    fn capabilities(&self, mut inner: Capabilities) -> Capabilities {
        inner.push = self.push;
        inner
    }

    async fn before_acquire(&self, claims: &[Claim]) {
        self.claims.lock().unwrap().extend_from_slice(claims);
    }

    async fn before_renew(&self, leases: &[Lease]) {
        self.renewals.lock().unwrap().push((Instant::now(), leases.len()));
    }

    fn refuse(&self, verb: Verb, _: &LockId) -> Option<Error> {
        self.refusal.lock().unwrap().clone().filter(|_| verb != Verb::Acquire)
    }

    async fn before_release(&self, leases: &[Lease]) {
        self.released.lock().unwrap().extend_from_slice(leases);
    }

    async fn subscribe(&self, _: &dyn LeaseStore, _: &Inbox) -> Result<WakeStream> {
        let (sender, receiver) = unbounded_channel();
        self.streams.lock().unwrap().push(sender);
        let next = |mut receiver: UnboundedReceiver<Wake>| async { Some((receiver.recv().await?, receiver)) };
        Ok(Box::pin(stream::unfold(receiver, next)))
    }
}
