//! A node whose name, capabilities and errors a test chooses, and that records its calls.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use distlock_core::faults::{Faults, FaultyStore, Verb};
use distlock_core::memory::MemoryStore;
use distlock_core::quorum::{Quorum, QuorumOptions};
use distlock_core::store::{
    Attempt, Batch, Capabilities, Claim, Finding, Holder, Inbox, Lease, LeaseStore, Query, Record, Released,
    Renewal, Store, Wake, WakeStream,
};
use distlock_core::{Error, ErrorKind, LockId, Resource, Result, VirtualClock};
use futures_util::stream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

#[derive(Clone, Debug)]
pub struct ScriptedNode {
    inner: Arc<dyn LeaseStore>,
    pub name: String,
    pub push: bool,
    pub durable: bool,
    pub faults: Faults,
    /// The error of every call of a verb.
    pub errors: Arc<Mutex<HashMap<Verb, ErrorKind>>>,
    /// Lock ids whose release fails.
    pub stuck: Arc<Mutex<Vec<String>>>,
    /// The lock ids of every call of a verb, failed ones included.
    calls: Arc<Mutex<HashMap<Verb, Vec<Vec<String>>>>>,
    streams: Arc<Mutex<Vec<UnboundedSender<Wake>>>>,
}

impl ScriptedNode {
    pub fn new(name: &str) -> Self {
        let memory = MemoryStore::with_clock(Arc::new(VirtualClock::new()));
        let (inner, faults) = FaultyStore::new(Arc::new(memory));
        ScriptedNode {
            inner: Arc::new(inner),
            name: name.to_owned(),
            push: true,
            durable: true,
            faults,
            errors: Arc::default(),
            stuck: Arc::default(),
            calls: Arc::default(),
            streams: Arc::default(),
        }
    }

    /// So many nodes with different names.
    pub fn several(count: usize) -> Vec<Self> {
        (1..=count).map(|number| ScriptedNode::new(&format!("server {number}"))).collect()
    }

    pub fn fail(&self, verb: Verb, kind: ErrorKind) {
        self.errors.lock().unwrap().insert(verb, kind);
    }

    /// The lock ids of the calls of a verb.
    pub fn calls(&self, verb: Verb) -> Vec<Vec<String>> {
        self.calls.lock().unwrap().get(&verb).cloned().unwrap_or_default()
    }

    pub fn wake(&self, lock_id: &str) {
        let wake = Wake::retry(LockId::from_stored(lock_id));
        for stream in self.streams.lock().unwrap().iter() {
            let _ = stream.send(wake.clone());
        }
    }

    fn begin<'a>(&self, verb: Verb, ids: impl Iterator<Item = &'a LockId>) -> Result<()> {
        let ids = ids.map(ToString::to_string).collect();
        self.calls.lock().unwrap().entry(verb).or_default().push(ids);
        match self.errors.lock().unwrap().get(&verb) {
            Some(kind) => Err(Error::new(*kind, "refused by the script")),
            None => Ok(()),
        }
    }
}

pub fn quorum_of(nodes: &[ScriptedNode]) -> Quorum {
    let stores = nodes.iter().map(|node| Arc::new(node.clone()) as Arc<dyn LeaseStore>).collect();
    Quorum::with_options(stores, QuorumOptions::new().clock(Arc::new(VirtualClock::new()))).unwrap()
}

#[async_trait]
impl Store for ScriptedNode {
    fn describe(&self) -> String {
        self.name.clone()
    }
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.inner.capabilities();
        (capabilities.push, capabilities.durable) = (self.push, self.durable);
        capabilities
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
impl LeaseStore for ScriptedNode {
    async fn try_acquire(&self, claims: &[Claim]) -> Batch<Attempt> {
        self.begin(Verb::Acquire, claims.iter().map(|claim| &claim.lock_id))?;
        self.inner.try_acquire(claims).await
    }
    async fn renew(&self, leases: &[Lease]) -> Batch<Renewal> {
        self.begin(Verb::Renew, leases.iter().map(|lease| &lease.lock_id))?;
        self.inner.renew(leases).await
    }
    async fn release(&self, leases: &[Lease]) -> Batch<Released> {
        self.begin(Verb::Release, leases.iter().map(|lease| &lease.lock_id))?;
        let mut answers = self.inner.release(leases).await?;
        for (answer, lease) in answers.iter_mut().zip(leases) {
            if self.stuck.lock().unwrap().iter().any(|id| id == lease.lock_id.as_str()) {
                *answer = Err(Error::new(ErrorKind::Unavailable, "this one is stuck"));
            }
        }
        Ok(answers)
    }
    async fn subscribe(&self, _: &Inbox) -> Result<WakeStream> {
        let (sender, receiver) = unbounded_channel();
        self.streams.lock().unwrap().push(sender);
        let next = |mut receiver: UnboundedReceiver<Wake>| async { Some((receiver.recv().await?, receiver)) };
        Ok(Box::pin(stream::unfold(receiver, next)))
    }
}
