//! Asking many nodes at once: each call in a task of its own, so that what answers late is noticed.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, timeout_at};

use super::Inner;
use crate::error::Result;

/// What one node said to each item it was asked.
pub(super) struct Answer<T> {
    pub(super) node: usize,
    pub(super) items: Vec<Result<T>>,
}

/// Calls under way to some of the nodes.
pub(super) struct Round<T> {
    answers: UnboundedReceiver<Answer<T>>,
    sender: Option<UnboundedSender<Answer<T>>>,
    deadline: Instant,
}

impl<T: Send + 'static> Round<T> {
    /// A round that waits for one node time-out from now on.
    pub(super) fn begin(inner: &Inner) -> Self {
        let (sender, answers) = unbounded_channel();
        Round { answers, sender: Some(sender), deadline: Instant::now() + inner.options.node_timeout }
    }

    /// Starts a call. If its answer comes after the round was closed, `late` gets it.
    pub(super) fn call<C, L>(&self, node: usize, call: C, late: impl FnOnce(Answer<T>) -> L + Send + 'static)
    where
        C: Future<Output = Vec<Result<T>>> + Send + 'static,
        L: Future<Output = ()> + Send,
    {
        let sender = self.sender.clone();
        tokio::spawn(async move {
            let answer = Answer { node, items: call.await };
            let unheard = match sender {
                Some(sender) => sender.send(answer).err().map(|unsent| unsent.0),
                None => Some(answer),
            };
            if let Some(answer) = unheard {
                late(answer).await;
            }
        });
    }

    /// The next answer; `None` when all have answered or the time is over.
    pub(super) async fn next(&mut self) -> Option<Answer<T>> {
        // Ours would keep the channel open after the last call has answered.
        self.sender = None;
        timeout_at(self.deadline, self.answers.recv()).await.ok().flatten()
    }

    /// Ends the round: from now on answers are late. Those that came before are returned.
    pub(super) async fn close(mut self) -> Vec<Answer<T>> {
        self.sender = None;
        self.answers.close();
        let mut rest = Vec::new();
        while let Some(answer) = self.answers.recv().await {
            rest.push(answer);
        }
        rest
    }
}

/// A call to one node that owns what it needs.
pub(super) fn to_node<I, T, F>(
    inner: &Arc<Inner>,
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
