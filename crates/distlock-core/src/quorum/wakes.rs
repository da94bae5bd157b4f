//! The wake-ups of all nodes, merged into one stream. Each is a hint to ask again: a grant of one node is one vote.

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
/// The share of the node time-out by which a wake-up is delayed for each node that is missing to a majority.
const GRACE_SHARE: u32 = 10;

/// Opens a stream on each node. A stream that breaks or does not open is retried while the others continue.
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
        let stream = opened.map_or(NodeStream::Closed { pause: FIRST_PAUSE }, NodeStream::Open);
        listen(Arc::clone(inner), node, inbox.clone(), stream).map(move |wake| (node, wake)).boxed()
    });
    let merger = WakeMerger {
        nodes: Box::pin(stream::select_all(streams)),
        majority: inner.majority,
        grace: inner.options.node_timeout / GRACE_SHARE,
        pending: Vec::new(),
    };
    Ok(Box::pin(stream::unfold(merger, |mut merger| async { Some((merger.next().await?, merger)) })))
}

/// Subscribes in a task of its own, since some drivers' calls must not be dropped before they complete.
async fn open(inner: &Arc<QuorumInner>, node: usize, inbox: &Inbox) -> Result<WakeStream> {
    let (store, inbox) = (Arc::clone(&inner.nodes[node].store), inbox.clone());
    let opened = tokio::spawn(async move { store.subscribe(&inbox).await });
    opened.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "the task of the call ended early")))
}

/// The wake-up stream of one node.
enum NodeStream {
    Open(WakeStream),
    Closed { pause: Duration },
}

fn listen(
    inner: Arc<QuorumInner>,
    node: usize,
    inbox: Inbox,
    stream: NodeStream,
) -> impl Stream<Item = Wake> + Send {
    stream::unfold(stream, move |mut stream| {
        let (inner, inbox) = (Arc::clone(&inner), inbox.clone());
        async move {
            loop {
                stream = match stream {
                    NodeStream::Open(mut open) => match open.next().await {
                        Some(wake) => return Some((wake, NodeStream::Open(open))),
                        None => NodeStream::Closed { pause: FIRST_PAUSE },
                    },
                    NodeStream::Closed { pause } => {
                        tokio::time::sleep(pause).await;
                        match open(&inner, node, &inbox).await {
                            // Wake-ups that were sent while it was closed are lost.
                            Ok(open) => return Some((Wake::Missed, NodeStream::Open(open))),
                            Err(_) => NodeStream::Closed { pause: (pause * 2).min(LAST_PAUSE) },
                        }
                    }
                };
            }
        }
    })
}

/// The wake-ups of one waiter so far.
struct PendingWake {
    lock_id: LockId,
    /// The nodes that woke it.
    nodes: Vec<usize>,
    delivered: bool,
    first_at: Instant,
    until: Instant,
}

/// Merges wake-ups. A release reaches one node after the other, and each node wakes its own first waiter. A waiter that
/// asked after the first wake-up would find the lock still held on the other nodes; and where the nodes differ about the
/// first waiter, all of their waiters would ask and split the votes. So a waiter is woken once a majority of nodes has
/// woken it. Other waiters are woken after a delay, in case the waiters before them are dead: the fewer nodes, the longer
/// the delay.
struct WakeMerger {
    nodes: Pin<Box<dyn Stream<Item = (usize, Wake)> + Send>>,
    majority: usize,
    grace: Duration,
    pending: Vec<PendingWake>,
}

impl WakeMerger {
    async fn next(&mut self) -> Option<Wake> {
        loop {
            let until = self.pending.iter().map(|pending| pending.until).min();
            let received = match until {
                None => self.nodes.next().await,
                Some(until) => match timeout_at(until, self.nodes.next()).await {
                    Ok(received) => received,
                    Err(_) => match self.take_overdue() {
                        Some(wake) => return Some(wake),
                        None => continue,
                    },
                },
            };
            let (node, wake) = received?;
            match wake {
                Wake::Missed => return Some(Wake::Missed),
                // The renewal that follows finds out whether a majority lost the lease.
                Wake::Broken { lock_id } => return Some(Wake::Broken { lock_id: callers_lock_id(&lock_id) }),
                Wake::Retry { lock_id } | Wake::Granted { lock_id, .. } => {
                    if let Some(wake) = self.record(node, callers_lock_id(&lock_id)) {
                        return Some(wake);
                    }
                }
            }
        }
    }

    fn record(&mut self, node: usize, lock_id: LockId) -> Option<Wake> {
        // A second wake-up from the same node belongs to another release.
        self.pending.retain(|pending| {
            pending.lock_id != lock_id || !(pending.delivered && pending.nodes.contains(&node))
        });
        let at = self.pending.iter().position(|pending| pending.lock_id == lock_id).unwrap_or_else(|| {
            let now = Instant::now();
            let (nodes, delivered) = (Vec::new(), false);
            self.pending.push(PendingWake { lock_id, nodes, delivered, first_at: now, until: now });
            self.pending.len() - 1
        });
        let pending = &mut self.pending[at];
        if !pending.nodes.contains(&node) {
            pending.nodes.push(node);
        }
        let missing = u32::try_from(self.majority.saturating_sub(pending.nodes.len())).unwrap_or(u32::MAX);
        pending.until = pending.first_at + self.grace.saturating_mul(missing.max(1));
        if pending.delivered || missing > 0 {
            return None;
        }
        pending.delivered = true;
        Some(Wake::Retry { lock_id: pending.lock_id.clone() })
    }

    /// Removes a wake-up whose delay is over, and returns it if it was not delivered.
    fn take_overdue(&mut self) -> Option<Wake> {
        let now = Instant::now();
        let at = self.pending.iter().position(|pending| pending.until <= now)?;
        let pending = self.pending.swap_remove(at);
        (!pending.delivered).then_some(Wake::Retry { lock_id: pending.lock_id })
    }
}
