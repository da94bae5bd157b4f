//! One round of calls to many nodes, each in a task of its own, so that late answers are handled.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, timeout_at};

use super::QuorumInner;
use crate::error::Result;

/// The answers of one node, one for each item.
pub(super) struct NodeReply<T> {
    pub(super) node: usize,
    pub(super) items: Vec<Result<T>>,
}

/// Calls in flight to some of the nodes.
pub(super) struct Round<T> {
    inner: Arc<QuorumInner>,
    answers: UnboundedReceiver<NodeReply<T>>,
    sender: Option<UnboundedSender<NodeReply<T>>>,
    /// Nodes that have not answered yet, and whether the round waits for them.
    open: Vec<(usize, bool)>,
    begun: Instant,
    /// Until when the round waits for nodes that the majority does not need.
    deadline: Instant,
    /// Until when it waits for nodes that the majority needs.
    needed_deadline: Instant,
}

impl<T: Send + 'static> Round<T> {
    /// A round that waits for one node time-out, and longer for a node that the majority needs, but not longer than
    /// `expiry`, after which a grant has expired.
    pub(super) fn begin(inner: &Arc<QuorumInner>, expiry: Duration) -> Self {
        let (sender, answers) = unbounded_channel();
        let begun = Instant::now();
        let deadline = begun + inner.options.node_timeout;
        let needed_deadline = (begun + inner.needed_node_timeout().min(expiry)).max(deadline);
        let (inner, open) = (Arc::clone(inner), Vec::new());
        Round { inner, answers, sender: Some(sender), open, begun, deadline, needed_deadline }
    }

    /// How long the round waited for the nodes that have not answered.
    pub(super) fn waited(&self) -> Duration {
        let until = if Instant::now() < self.needed_deadline { self.deadline } else { self.needed_deadline };
        until - self.begun
    }

    /// Starts a call. If its answer arrives after the round was closed, `late` gets it.
    pub(super) fn call<C, L>(
        &mut self,
        node: usize,
        call: C,
        late: impl FnOnce(NodeReply<T>) -> L + Send + 'static,
    ) where
        C: Future<Output = Vec<Result<T>>> + Send + 'static,
        L: Future<Output = ()> + Send,
    {
        self.open.push((node, !self.inner.nodes[node].is_slow()));
        let (sender, inner, deadline) = (self.sender.clone(), Arc::clone(&self.inner), self.deadline);
        tokio::spawn(async move {
            let answer = NodeReply { node, items: call.await };
            if Instant::now() < deadline {
                inner.nodes[node].set_slow(false);
            }
            let undelivered = match sender {
                Some(sender) => sender.send(answer).err().map(|unsent| unsent.0),
                None => Some(answer),
            };
            if let Some(answer) = undelivered {
                late(answer).await;
            }
        });
    }

    /// The next answer, or `None` when all relevant nodes have answered or the time is over. `needed`: without more
    /// answers the result is an error.
    ///
    /// A node that was slow in the last round is asked, but not waited for if the others are a majority and it is not
    /// needed. Otherwise one hanging node would cost every contended attempt the whole time-out.
    pub(super) async fn next(&mut self, needed: bool) -> Option<NodeReply<T>> {
        if self.sender.take().is_some() {
            let waited_for = self.open.iter().filter(|(_, waited_for)| *waited_for).count();
            if waited_for < self.inner.majority {
                self.open.iter_mut().for_each(|(_, waited_for)| *waited_for = true);
            }
        }
        if self.open.is_empty() || !(needed || self.open.iter().any(|(_, waited_for)| *waited_for)) {
            return None;
        }
        for until in [self.deadline, self.needed_deadline] {
            if let Ok(answer) = timeout_at(until, self.answers.recv()).await {
                let answer = answer?;
                self.open.retain(|(node, _)| *node != answer.node);
                return Some(answer);
            }
            for (node, _) in &self.open {
                self.inner.nodes[*node].set_slow(true);
            }
            if !needed {
                return None;
            }
        }
        None
    }

    /// Ends the round and returns the answers that have arrived. Later ones go to `late`.
    pub(super) async fn close(mut self) -> Vec<NodeReply<T>> {
        self.sender = None;
        self.answers.close();
        let mut rest = Vec::new();
        while let Some(answer) = self.answers.recv().await {
            rest.push(answer);
        }
        rest
    }
}

/// A call to one node as a future that owns its arguments.
pub(super) fn to_node<I, T, F>(
    inner: &Arc<QuorumInner>,
    node: usize,
    items: Vec<I>,
    call: impl FnOnce(Arc<dyn crate::store::LeaseStore>, Vec<I>) -> F + Send + 'static,
) -> impl Future<Output = Vec<Result<T>>> + Send + 'static
where
    I: Send + 'static,
    T: Send + 'static,
    F: Future<Output = crate::store::Batch<T>> + Send,
{
    let inner = Arc::clone(inner);
    async move {
        let count = items.len();
        inner.nodes[node].call(count, |store| call(store, items)).await
    }
}
