//! The nodes' wake-ups as one stream. Each is a hint that asking again may help, and never more: what one node
//! grants is one vote.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_core::Stream;
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};
use tokio::time::{Instant, timeout_at};

use super::QuorumInner;
use super::error::Failures;
use super::generation::callers_lock_id;
use crate::error::{Error, ErrorKind, Result};
use crate::resource::LockId;
use crate::store::{Inbox, Wake, WakeStream};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(2);
/// The share of the node time-out for which a hint is held back, for each node that is missing to a majority.
const GRACE_SHARE: u32 = 10;

/// Opens a stream on each node. A node whose stream breaks or does not open is tried again while the others
/// go on.
pub(super) async fn subscribe(inner: &Arc<QuorumInner>, inbox: &Inbox) -> Result<WakeStream> {
    let nodes: Vec<usize> =
        (0..inner.nodes.len()).filter(|node| inner.nodes[*node].store.capabilities().push).collect();
    let opened = join_all(nodes.iter().map(|node| async {
        let open = tokio::time::timeout(inner.options.node_timeout, open(inner, *node, inbox));
        open.await.unwrap_or_else(|_| {
            let what = format!("no answer within {:?}", inner.options.node_timeout);
            Err(Error::new(ErrorKind::Unavailable, what))
        })
    }));
    let opened = opened.await;
    if opened.iter().all(Result::is_err) {
        let mut failures = Failures::new(inner);
        for (node, error) in nodes.iter().zip(opened.into_iter().filter_map(Result::err)) {
            failures.add(*node, error);
        }
        return Err(failures.into_error(0).doing("subscribe"));
    }
    let streams = nodes.into_iter().zip(opened).map(|(node, opened)| {
        let line = opened.map_or(NodeStream::Closed { pause: FIRST_PAUSE }, NodeStream::Open);
        listen(Arc::clone(inner), node, inbox.clone(), line).map(move |wake| (node, wake)).boxed()
    });
    let hints = WakeMerger {
        heard: Box::pin(stream::select_all(streams)),
        majority: inner.majority,
        grace: inner.options.node_timeout / GRACE_SHARE,
        pending: Vec::new(),
    };
    Ok(Box::pin(stream::unfold(hints, |mut hints| async { Some((hints.next().await?, hints)) })))
}

/// In a task of its own, since not every driver bears that a call is dropped half-way.
async fn open(inner: &Arc<QuorumInner>, node: usize, inbox: &Inbox) -> Result<WakeStream> {
    let (store, inbox) = (Arc::clone(&inner.nodes[node].store), inbox.clone());
    let opened = tokio::spawn(async move { store.subscribe(&inbox).await });
    opened.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "the task of the call ended early")))
}

enum NodeStream {
    Open(WakeStream),
    Closed { pause: Duration },
}

fn listen(
    inner: Arc<QuorumInner>,
    node: usize,
    inbox: Inbox,
    line: NodeStream,
) -> impl Stream<Item = Wake> + Send {
    stream::unfold(line, move |mut line| {
        let (inner, inbox) = (Arc::clone(&inner), inbox.clone());
        async move {
            loop {
                line = match line {
                    NodeStream::Open(mut open) => match open.next().await {
                        Some(wake) => return Some((wake, NodeStream::Open(open))),
                        None => NodeStream::Closed { pause: FIRST_PAUSE },
                    },
                    NodeStream::Closed { pause } => {
                        tokio::time::sleep(pause).await;
                        match open(&inner, node, &inbox).await {
                            // Whatever was sent while it was closed is gone.
                            Ok(open) => return Some((Wake::Missed, NodeStream::Open(open))),
                            Err(_) => NodeStream::Closed { pause: (pause * 2).min(LAST_PAUSE) },
                        }
                    }
                };
            }
        }
    })
}

/// What was heard about one waiter.
struct PendingWake {
    lock_id: LockId,
    nodes: Vec<usize>,
    told: bool,
    heard: Instant,
    until: Instant,
}

/// WakeMerger, gathered. A release reaches one node after the other, and each wakes whoever waits first there. Whoever
/// asked at the first word would find the other nodes held still; and where nodes differ about who is first, all
/// of them would ask and split the votes. So a waiter is told once a majority of nodes has named it. The others are
/// told a moment later, in case those who were named before them are dead: the fewer nodes named one, the later.
struct WakeMerger {
    heard: Pin<Box<dyn Stream<Item = (usize, Wake)> + Send>>,
    majority: usize,
    grace: Duration,
    pending: Vec<PendingWake>,
}

impl WakeMerger {
    async fn next(&mut self) -> Option<Wake> {
        loop {
            let until = self.pending.iter().map(|hint| hint.until).min();
            let heard = match until {
                None => self.heard.next().await,
                Some(until) => match timeout_at(until, self.heard.next()).await {
                    Ok(heard) => heard,
                    Err(_) => match self.ripen() {
                        Some(wake) => return Some(wake),
                        None => continue,
                    },
                },
            };
            let (node, wake) = heard?;
            match wake {
                Wake::Missed => return Some(Wake::Missed),
                // Whether a majority lost it is for the renewal to find out.
                Wake::Broken { lock_id } => return Some(Wake::Broken { lock_id: callers_lock_id(&lock_id) }),
                Wake::Retry { lock_id } | Wake::Granted { lock_id, .. } => {
                    if let Some(wake) = self.hear(node, callers_lock_id(&lock_id)) {
                        return Some(wake);
                    }
                }
            }
        }
    }

    fn hear(&mut self, node: usize, lock_id: LockId) -> Option<Wake> {
        // The same node twice is another release.
        self.pending.retain(|hint| hint.lock_id != lock_id || !(hint.told && hint.nodes.contains(&node)));
        let at = self.pending.iter().position(|hint| hint.lock_id == lock_id).unwrap_or_else(|| {
            let heard = Instant::now();
            self.pending.push(PendingWake { lock_id, nodes: Vec::new(), told: false, heard, until: heard });
            self.pending.len() - 1
        });
        let hint = &mut self.pending[at];
        if !hint.nodes.contains(&node) {
            hint.nodes.push(node);
        }
        let missing = u32::try_from(self.majority.saturating_sub(hint.nodes.len())).unwrap_or(u32::MAX);
        hint.until = hint.heard + self.grace.saturating_mul(missing.max(1));
        if hint.told || missing > 0 {
            return None;
        }
        hint.told = true;
        Some(Wake::Retry { lock_id: hint.lock_id.clone() })
    }

    /// The grace of a hint is over: it is told if it was not, and forgotten.
    fn ripen(&mut self) -> Option<Wake> {
        let now = Instant::now();
        let at = self.pending.iter().position(|hint| hint.until <= now)?;
        let hint = self.pending.swap_remove(at);
        (!hint.told).then_some(Wake::Retry { lock_id: hint.lock_id })
    }
}
