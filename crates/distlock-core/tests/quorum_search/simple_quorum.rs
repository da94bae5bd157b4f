//! A simple quorum, sound but slow, and variants of it with one flaw each. The search must find every flaw, and none in
//! the sound one.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use distlock_core::store::{
    Attempt, Batch, Capabilities, Claim, Finding, Holder, Inbox, Lease, LeaseStore, Query, Record, Released,
    Renewal, Store, WakeStream,
};
use distlock_core::{Error, ErrorKind, FencingToken, LockId, Resource, Result};
use futures_util::future::join_all;

const TIMEOUT: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    None,
    /// Counts a majority of the nodes that answered instead of all nodes.
    MajorityOfAnswers,
    /// Counts a renewal over the nodes that granted.
    RenewOverGranters,
    /// Returns the largest token although only its node knows it.
    NoWriteBack,
    /// Returns the token of the first node.
    FirstToken,
    /// Undoes a failed attempt in the background, under the lock id that the next attempt uses.
    LateUndo,
}

#[derive(Clone)]
pub struct SimpleQuorum {
    nodes: Vec<Arc<dyn LeaseStore>>,
    flaw: Flaw,
    granters: Arc<Mutex<HashMap<LockId, Vec<usize>>>>,
}

impl fmt::Debug for SimpleQuorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimpleQuorum({:?})", self.flaw)
    }
}

impl SimpleQuorum {
    pub fn new(nodes: Vec<Arc<dyn LeaseStore>>, flaw: Flaw) -> Self {
        SimpleQuorum { nodes, flaw, granters: Arc::default() }
    }

    fn majority(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    async fn renew_on(&self, node: usize, lease: &Lease) -> Option<Renewal> {
        let call = self.nodes[node].renew(std::slice::from_ref(lease));
        tokio::time::timeout(TIMEOUT, call).await.ok()?.ok()?.pop()?.ok()
    }

    async fn release_everywhere(&self, lease: &Lease) -> usize {
        let calls = self.nodes.iter().map(|node| async {
            let call = node.release(std::slice::from_ref(lease));
            tokio::time::timeout(TIMEOUT, call).await.is_ok_and(|answer| answer.is_ok())
        });
        join_all(calls).await.into_iter().filter(|done| *done).count()
    }

    async fn acquire(&self, claim: &Claim) -> Result<Attempt> {
        let asked = claim.clone().with_no_overtaking(false).with_waiting(None);
        let calls = self.nodes.iter().map(|node| async {
            let call = node.try_acquire(std::slice::from_ref(&asked));
            tokio::time::timeout(TIMEOUT, call).await.ok()?.ok()?.pop()?.ok()
        });
        let answers = join_all(calls).await;
        let mut tokens: HashMap<usize, FencingToken> = HashMap::new();
        for (node, answer) in answers.iter().enumerate() {
            if let Some(Attempt::Granted { token, .. }) = answer {
                tokens.insert(node, *token);
            }
        }
        let answered = answers.iter().flatten().count();
        let needed = match self.flaw {
            Flaw::MajorityOfAnswers => answered / 2 + 1,
            _ => self.majority(),
        };
        let first = (0..self.nodes.len()).find_map(|node| tokens.get(&node).copied());
        let largest = tokens.values().copied().max();
        let lease = Lease::of(claim, largest.unwrap_or(FencingToken::new(0)));
        if let (Some(first), Some(largest)) = (first, largest)
            && tokens.len() >= needed
        {
            let know = match self.flaw {
                Flaw::NoWriteBack | Flaw::FirstToken => self.nodes.len(),
                _ => {
                    let calls = tokens.iter().map(|(node, own)| async {
                        *own == largest || self.renew_on(*node, &lease).await == Some(Renewal::Renewed)
                    });
                    join_all(calls).await.into_iter().filter(|knows| *knows).count()
                }
            };
            if know >= needed {
                let granters = tokens.keys().copied().collect();
                self.granters.lock().unwrap().insert(claim.lock_id.clone(), granters);
                let token = if self.flaw == Flaw::FirstToken { first } else { largest };
                return Ok(Attempt::granted(token));
            }
        }
        match self.flaw {
            Flaw::LateUndo => {
                for node in &self.nodes {
                    let (node, lease) = (node.clone(), lease.clone());
                    tokio::spawn(async move { node.release(&[lease]).await });
                }
            }
            _ => {
                self.release_everywhere(&lease).await;
            }
        }
        if answered >= self.majority() {
            return Ok(Attempt::busy(None));
        }
        Err(Error::new(ErrorKind::Unavailable, "no majority answered"))
    }

    async fn renew_lease(&self, lease: &Lease) -> Result<Renewal> {
        let calls = (0..self.nodes.len()).map(|node| self.renew_on(node, lease));
        let answers = join_all(calls).await;
        let renewed = answers.iter().flatten().filter(|answer| **answer == Renewal::Renewed).count();
        let refused = answers.iter().flatten().count() - renewed;
        let needed = match self.flaw {
            Flaw::MajorityOfAnswers => answers.iter().flatten().count() / 2 + 1,
            Flaw::RenewOverGranters => {
                self.granters.lock().unwrap().get(&lease.lock_id).map_or(self.majority(), |n| n.len() / 2 + 1)
            }
            _ => self.majority(),
        };
        if renewed >= needed {
            return Ok(Renewal::Renewed);
        }
        if refused > self.nodes.len() - needed.min(self.nodes.len()) {
            return Ok(Renewal::NotYours);
        }
        Err(Error::new(ErrorKind::Unavailable, "no majority renewed"))
    }
}

#[async_trait]
impl Store for SimpleQuorum {
    fn describe(&self) -> String {
        "simple quorum".to_owned()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::all()
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Record>> {
        self.nodes[0].inspect(query).await
    }

    async fn break_lock(&self, _: &Resource) -> Result<Vec<Holder>> {
        Err(Error::new(ErrorKind::Unsupported, "no forced release"))
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        self.nodes[0].doctor().await
    }
}

#[async_trait]
impl LeaseStore for SimpleQuorum {
    async fn try_acquire(&self, claims: &[Claim]) -> Batch<Attempt> {
        Ok(vec![self.acquire(&claims[0]).await])
    }

    async fn renew(&self, leases: &[Lease]) -> Batch<Renewal> {
        Ok(vec![self.renew_lease(&leases[0]).await])
    }

    async fn release(&self, leases: &[Lease]) -> Batch<Released> {
        let done = self.release_everywhere(&leases[0]).await;
        if done >= self.majority() {
            return Ok(vec![Ok(Released::Done { woke: false })]);
        }
        Ok(vec![Err(Error::new(ErrorKind::Unavailable, "no majority confirmed").with_unknown_outcome())])
    }

    async fn subscribe(&self, _: &Inbox) -> Result<WakeStream> {
        Err(Error::new(ErrorKind::Unsupported, "no wake-ups"))
    }
}
