//! Taking back what nodes granted or may have granted, until they say that it is gone.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::QuorumInner;
use super::error::silent;
use super::generation::GenerationRef;
use super::round::to_node;
use crate::clock::Moment;
use crate::error::Result;
use crate::resource::RecordKind;
use crate::store::{Lease, Released};

pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(50);
pub(super) const LAST_PAUSE: Duration = Duration::from_secs(1);
/// Nobody tries longer than this; what is left then goes at its expiry.
pub(super) const PATIENCE: Duration = Duration::from_secs(300);
/// What is taken back on a lock record may be the entry of a waiter, which lives for as long as this.
const QUEUED: Duration = Duration::from_secs(63);

/// What a node should give back, and after which moment it has gone by itself.
#[derive(Debug)]
pub(super) struct PendingRelease {
    what: GenerationRef,
    until: Moment,
}

/// The way to the task that goes on asking a node. There is none while nothing is left there.
#[derive(Debug, Default)]
pub(super) struct PendingReleases(Option<UnboundedSender<PendingRelease>>);

/// Whether to go on if a node fails to give back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Persist {
    /// It granted or may have: until it confirms, or the expiry is over.
    Yes,
    /// It said that nothing was carried out: once, in case it is wrong.
    No,
}

/// Takes generations back on several nodes at once, and returns when each was asked once or at the node time-out.
/// The rest goes on by itself.
pub(super) async fn withdraw_all(
    inner: &Arc<QuorumInner>,
    plan: Vec<(usize, Vec<GenerationRef>)>,
    persist: Persist,
) {
    let asked = plan.into_iter().filter(|(_, what)| !what.is_empty());
    let tasks: Vec<_> =
        asked.map(|(node, what)| tokio::spawn(withdraw(Arc::clone(inner), node, what, persist))).collect();
    if !tasks.is_empty() {
        let _ = tokio::time::timeout(inner.options.node_timeout, join_all(tasks)).await;
    }
}

/// Asks one node once to give back; what fails is left to its follow-up task.
pub(super) async fn withdraw(
    inner: Arc<QuorumInner>,
    node: usize,
    what: Vec<GenerationRef>,
    persist: Persist,
) {
    let failed = ask(&inner, node, what).await;
    if persist == Persist::No {
        return;
    }
    let now = inner.options.clock.now();
    for what in failed {
        let until = now.after(lasts(&what.lease).min(PATIENCE));
        leave(&inner, node, PendingRelease { what, until });
    }
}

/// How long a node keeps what this lease may have left there.
pub(super) fn lasts(lease: &Lease) -> Duration {
    match lease.resource.kind().record() {
        RecordKind::Lock => lease.expiry.max(QUEUED),
        RecordKind::Pool => lease.expiry,
    }
}

/// Returns what the node did not confirm.
async fn ask(inner: &Arc<QuorumInner>, node: usize, mut what: Vec<GenerationRef>) -> Vec<GenerationRef> {
    let leases: Vec<Lease> = what.iter().map(|generation| generation.lease.clone()).collect();
    let mut answers = release_on(Arc::clone(inner), node, leases, inner.patience()).await.into_iter();
    let now = inner.options.clock.now();
    what.retain(|generation| {
        let Some(Err(error)) = answers.next() else { return false };
        if error.is_outcome_unknown() {
            generation.may_be_released_late(now);
        }
        true
    });
    what
}

/// A release on one node that does not wait for ever. The call itself is driven to its end all the same.
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
        _ => vec![Err(silent(limit)); count],
    }
}

fn leave(inner: &Arc<QuorumInner>, node: usize, pending: PendingRelease) {
    let mut pending_releases =
        inner.nodes[node].pending_releases.lock().unwrap_or_else(PoisonError::into_inner);
    let pending = match &pending_releases.0 {
        None => pending,
        Some(sender) => match sender.send(pending) {
            Ok(()) => return,
            // The follow-up task went down with its runtime.
            Err(unsent) => unsent.0,
        },
    };
    let (sender, receiver) = unbounded_channel();
    let _ = sender.send(pending);
    pending_releases.0 = Some(sender);
    tokio::spawn(follow_up(Arc::clone(inner), node, receiver));
}

/// One task for each node that did not give back what it should: it asks again, for all of it at once.
async fn follow_up(inner: Arc<QuorumInner>, node: usize, mut receiver: UnboundedReceiver<PendingRelease>) {
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
            // Nothing is added while we hold this, so that nothing is forgotten.
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
        let failed = ask(&inner, node, batch.iter().map(|pending| pending.what.clone()).collect()).await;
        batch.retain(|pending| failed.iter().any(|what| what.is(&pending.what)));
        pause = if batch.is_empty() { FIRST_PAUSE } else { (pause * 2).min(LAST_PAUSE) };
        left.append(&mut batch);
    }
}
