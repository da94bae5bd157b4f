//! Withdrawing what nodes granted or may have granted, until they confirm.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::QuorumInner;
use super::error::no_answer;
use super::generation::GenerationRef;
use super::round::to_node;
use crate::clock::Moment;
use crate::error::Result;
use crate::resource::RecordKind;
use crate::store::{Lease, Released};

pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(50);
pub(super) const LAST_PAUSE: Duration = Duration::from_secs(1);
/// The longest time for which a release is retried. What is left then expires.
pub(super) const MAX_RETRY_TIME: Duration = Duration::from_secs(300);
/// How long a waiter's entry on a lock record may live.
const QUEUE_ENTRY_TTL: Duration = Duration::from_secs(63);

/// A release that a node has not confirmed, and the moment by which the lease has expired there.
#[derive(Debug)]
pub(super) struct PendingRelease {
    generation: GenerationRef,
    until: Moment,
}

/// The channel to the task that retries releases on a node. There is no task while there is nothing to retry.
#[derive(Debug, Default)]
pub(super) struct PendingReleases(Option<UnboundedSender<PendingRelease>>);

/// Whether to retry if a node fails to release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Persist {
    /// It granted or may have granted: retry until it confirms or the lease has expired.
    Yes,
    /// It reported that nothing was applied: ask once, in case that is wrong.
    No,
}

/// Withdraws generations on several nodes at once. Returns when each was asked once, or at the node time-out; the rest
/// continues in the background.
pub(super) async fn withdraw_all(
    inner: &Arc<QuorumInner>,
    plan: Vec<(usize, Vec<GenerationRef>)>,
    persist: Persist,
) {
    let asked = plan.into_iter().filter(|(_, generations)| !generations.is_empty());
    let tasks: Vec<_> = asked
        .map(|(node, generations)| tokio::spawn(withdraw(Arc::clone(inner), node, generations, persist)))
        .collect();
    if !tasks.is_empty() {
        let _ = tokio::time::timeout(inner.options.node_timeout, join_all(tasks)).await;
    }
}

/// Asks one node once to release. Failures are left to the node's retry task.
pub(super) async fn withdraw(
    inner: Arc<QuorumInner>,
    node: usize,
    generations: Vec<GenerationRef>,
    persist: Persist,
) {
    let failed = ask(&inner, node, generations).await;
    if persist == Persist::No {
        return;
    }
    let now = inner.options.clock.now();
    for generation in failed {
        let until = now.after(lifetime(&generation.lease).min(MAX_RETRY_TIME));
        retry_later(&inner, node, PendingRelease { generation, until });
    }
}

/// How long a node keeps, at most, what this lease may have left there.
pub(super) fn lifetime(lease: &Lease) -> Duration {
    match lease.resource.kind().record() {
        RecordKind::Lock => lease.expiry.max(QUEUE_ENTRY_TTL),
        RecordKind::Pool => lease.expiry,
    }
}

/// Asks a node to release, and returns what it did not confirm.
async fn ask(
    inner: &Arc<QuorumInner>,
    node: usize,
    mut generations: Vec<GenerationRef>,
) -> Vec<GenerationRef> {
    let leases: Vec<Lease> = generations.iter().map(|generation| generation.lease.clone()).collect();
    let mut answers = release_on(Arc::clone(inner), node, leases, inner.release_timeout()).await.into_iter();
    let now = inner.options.clock.now();
    generations.retain(|generation| {
        let Some(Err(error)) = answers.next() else { return false };
        if error.is_outcome_unknown() {
            generation.may_be_released_late(now);
        }
        true
    });
    generations
}

/// Releases on one node, with a time limit. The call itself is driven to completion.
pub(super) async fn release_on(
    inner: Arc<QuorumInner>,
    node: usize,
    leases: Vec<Lease>,
    limit: Duration,
) -> Vec<Result<Released>> {
    let count = leases.len();
    let call =
        to_node(
            &inner,
            node,
            leases,
            |store, leases: Vec<Lease>| async move { store.release(&leases).await },
        );
    match tokio::time::timeout(limit, tokio::spawn(call)).await {
        Ok(Ok(answers)) => answers,
        _ => vec![Err(no_answer(limit)); count],
    }
}

fn retry_later(inner: &Arc<QuorumInner>, node: usize, pending: PendingRelease) {
    let mut pending_releases =
        inner.nodes[node].pending_releases.lock().unwrap_or_else(PoisonError::into_inner);
    let pending = match &pending_releases.0 {
        None => pending,
        Some(sender) => match sender.send(pending) {
            Ok(()) => return,
            // The retry task ended with its runtime.
            Err(unsent) => unsent.0,
        },
    };
    let (sender, receiver) = unbounded_channel();
    let _ = sender.send(pending);
    pending_releases.0 = Some(sender);
    tokio::spawn(retry_releases(Arc::clone(inner), node, receiver));
}

/// The retry task of one node: asks again, for all pending releases at once.
async fn retry_releases(
    inner: Arc<QuorumInner>,
    node: usize,
    mut receiver: UnboundedReceiver<PendingRelease>,
) {
    let mut left: Vec<PendingRelease> = Vec::new();
    let mut pause = FIRST_PAUSE;
    loop {
        while let Ok(pending) = receiver.try_recv() {
            left.push(pending);
        }
        let now = inner.options.clock.now();
        left.retain(|pending| pending.until > now);
        if left.is_empty() {
            let mut pending_releases =
                inner.nodes[node].pending_releases.lock().unwrap_or_else(PoisonError::into_inner);
            // Nothing is added while we hold this lock, so nothing is lost.
            match receiver.try_recv() {
                Ok(pending) => left.push(pending),
                Err(_) => {
                    pending_releases.0 = None;
                    return;
                }
            }
        }
        tokio::time::sleep(pause).await;
        let mut batch: Vec<PendingRelease> = left.drain(..left.len().min(inner.max_batch)).collect();
        let failed =
            ask(&inner, node, batch.iter().map(|pending| pending.generation.clone()).collect()).await;
        batch.retain(|pending| failed.iter().any(|generation| generation.is(&pending.generation)));
        pause = if batch.is_empty() { FIRST_PAUSE } else { (pause * 2).min(LAST_PAUSE) };
        left.append(&mut batch);
    }
}
