//! A node whose name, capabilities and errors a test chooses, and that records its calls.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use distlock_core::faults::{Faults, FaultyStore, HookedStore, StoreHooks, Verb};
use distlock_core::memory::MemoryStore;
use distlock_core::quorum::{Quorum, QuorumOptions};
use distlock_core::store::{Capabilities, Inbox, Lease, LeaseStore, Wake, WakeStream};
use distlock_core::{Error, ErrorKind, LockId, Result, VirtualClock};
use futures_util::stream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

#[derive(Clone, Debug)]
pub struct ScriptedNode {
    /// The node without its script.
    pub memory: MemoryStore,
    inner: FaultyStore,
    pub faults: Faults,
    pub name: String,
    pub push: bool,
    pub durable: bool,
    /// The error of every call of a verb.
    pub errors: Arc<Mutex<HashMap<Verb, ErrorKind>>>,
    /// Lock ids whose release fails.
    pub stuck: Arc<Mutex<Vec<String>>>,
    /// The lock ids of every release, failed ones included.
    pub releases: Arc<Mutex<Vec<Vec<String>>>>,
    streams: Arc<Mutex<Vec<UnboundedSender<Wake>>>>,
}

impl ScriptedNode {
    pub fn new(name: &str) -> Self {
        let memory = MemoryStore::with_clock(Arc::new(VirtualClock::new()));
        let (inner, faults) = FaultyStore::new(Arc::new(memory.clone()));
        ScriptedNode {
            memory,
            inner,
            faults,
            name: name.to_owned(),
            push: true,
            durable: true,
            errors: Arc::default(),
            stuck: Arc::default(),
            releases: Arc::default(),
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

    pub fn releases(&self) -> Vec<Vec<String>> {
        self.releases.lock().unwrap().clone()
    }

    pub fn wake(&self, lock_id: &str) {
        for stream in self.streams.lock().unwrap().iter() {
            let _ = stream.send(Wake::retry(LockId::from_stored(lock_id)));
        }
    }

    pub fn store(&self) -> Arc<dyn LeaseStore> {
        Arc::new(HookedStore::new(Arc::new(self.inner.clone()), Arc::new(self.clone())))
    }
}

pub fn quorum_of(nodes: &[ScriptedNode]) -> Quorum {
    let options = QuorumOptions::new().clock(Arc::new(VirtualClock::new()));
    Quorum::with_options(nodes.iter().map(ScriptedNode::store).collect(), options).unwrap()
}

#[async_trait]
impl StoreHooks for ScriptedNode {
    fn describe(&self, _: String) -> String {
        self.name.clone()
    }

    fn capabilities(&self, mut inner: Capabilities) -> Capabilities {
        (inner.push, inner.durable) = (self.push, self.durable);
        inner
    }

    async fn before_release(&self, leases: &[Lease]) {
        let ids = leases.iter().map(|lease| lease.lock_id.to_string()).collect();
        self.releases.lock().unwrap().push(ids);
    }

    fn refuse(&self, verb: Verb, lock_id: &LockId) -> Option<Error> {
        let stuck =
            verb == Verb::Release && self.stuck.lock().unwrap().iter().any(|id| id == lock_id.as_str());
        let stuck = stuck.then_some(ErrorKind::Unavailable);
        let kind = stuck.or_else(|| self.errors.lock().unwrap().get(&verb).copied())?;
        Some(Error::new(kind, "refused by the script"))
    }

    async fn subscribe(&self, _: &dyn LeaseStore, _: &Inbox) -> Result<WakeStream> {
        let (sender, receiver) = unbounded_channel();
        self.streams.lock().unwrap().push(sender);
        let next = |mut receiver: UnboundedReceiver<Wake>| async { Some((receiver.recv().await?, receiver)) };
        Ok(Box::pin(stream::unfold(receiver, next)))
    }
}
