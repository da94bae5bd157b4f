//! Releasing: all nodes are asked. The release ends when a majority has confirmed; the other nodes are retried.

use std::sync::Arc;
use std::time::Duration;

use super::QuorumInner;
use super::error::Failures;
use super::generation::{GenerationRef, Generations};
use super::round::{NodeReply, Round};
use super::withdraw::{FIRST_PAUSE, LAST_PAUSE, MAX_RETRY_TIME, Persist, lifetime, release_on, withdraw};
use crate::error::{Error, Result};
use crate::store::{Batch, Lease, Released};

/// The answers of the nodes to one release.
#[derive(Default)]
struct ReleaseVotes {
    done: usize,
    woke: bool,
    not_held: usize,
    failed: Vec<(usize, Error)>,
}

impl ReleaseVotes {
    fn record(&mut self, node: usize, answer: Result<Released>) {
        match answer {
            Ok(Released::Done { woke }) => {
                self.done += 1;
                self.woke |= woke;
            }
            Ok(Released::NotYours) => self.not_held += 1,
            Err(error) => self.failed.push((node, error)),
        }
    }

    fn is_decided(&self, inner: &QuorumInner) -> bool {
        self.done >= inner.majority || self.not_held >= inner.majority
    }

    /// Whether it is an error unless more nodes answer, and they can still make a majority.
    fn needs_more(&self, inner: &QuorumInner) -> bool {
        self.done + self.not_held < inner.majority && inner.nodes.len() - self.failed.len() >= inner.majority
    }

    /// The result. Once a majority does not hold the lease any more, the other nodes cannot block another client.
    fn conclude(self, inner: &QuorumInner, waited: Duration) -> Result<Released> {
        let answered = self.done + self.not_held;
        if self.not_held >= inner.majority {
            return Ok(Released::NotYours);
        }
        if answered >= inner.majority {
            return Ok(Released::Done { woke: self.woke });
        }
        let mut failures = Failures::new(inner);
        failures.add_unanswered(inner.nodes.len() - answered - self.failed.len(), waited);
        for (node, error) in self.failed {
            failures.add(node, error);
        }
        Err(failures.into_error(answered).with_unknown_outcome())
    }
}

pub(super) async fn release(inner: &Arc<QuorumInner>, leases: &[Lease]) -> Batch<Released> {
    let generations: Arc<Vec<GenerationRef>> =
        Arc::new(leases.iter().map(|lease| Generations::of(inner, lease)).collect());
    for generation in &*generations {
        generation.release();
    }
    stop_waiting(inner, leases.iter().zip(&*generations));
    let for_nodes: Vec<Lease> = leases
        .iter()
        .zip(&*generations)
        .map(|(lease, generation)| Lease { lock_id: generation.lease.lock_id.clone(), ..lease.clone() })
        .collect();
    let mut votes: Vec<ReleaseVotes> = leases.iter().map(|_| ReleaseVotes::default()).collect();
    let expiry = leases.iter().map(|lease| lease.expiry).max().unwrap_or_default();
    let mut round = Round::begin(inner, expiry);
    for node in 0..inner.nodes.len() {
        let call = release_on(Arc::clone(inner), node, for_nodes.clone(), inner.needed_node_timeout());
        let (inner, generations) = (Arc::clone(inner), Arc::clone(&generations));
        round.call(node, call, move |answer| retry_failed(inner, generations, answer));
    }
    while !votes.iter().all(|vote| vote.is_decided(inner)) {
        let needed = votes.iter().any(|vote| vote.needs_more(inner));
        let Some(answer) = round.next(needed).await else { break };
        record(inner, &generations, &mut votes, answer);
    }
    let waited = round.waited();
    for answer in round.close().await {
        record(inner, &generations, &mut votes, answer);
    }
    Ok(votes.into_iter().map(|vote| vote.conclude(inner, waited)).collect())
}

/// Removes the queue entries under the caller's own lock id of leases that are held under a later generation.
fn stop_waiting<'a>(
    inner: &Arc<QuorumInner>,
    released: impl Iterator<Item = (&'a Lease, &'a GenerationRef)>,
) {
    let later: Vec<_> = released.filter(|(_, generation)| !generation.is_first()).collect();
    let Some(lifetime) = later.iter().map(|(lease, _)| lifetime(lease)).max() else { return };
    let waiting: Vec<Lease> = later.into_iter().map(|(lease, _)| lease.clone()).collect();
    for node in 0..inner.nodes.len() {
        tokio::spawn(leave_queue(Arc::clone(inner), node, waiting.clone(), lifetime));
    }
}

/// Asks a node until it confirms: a queue entry that is left there keeps the next waiter from being woken.
async fn leave_queue(inner: Arc<QuorumInner>, node: usize, mut waiting: Vec<Lease>, lifetime: Duration) {
    let until = inner.options.clock.now().after(lifetime.min(MAX_RETRY_TIME));
    let mut pause = FIRST_PAUSE;
    loop {
        let answers = release_on(Arc::clone(&inner), node, waiting.clone(), inner.release_timeout()).await;
        let mut answers = answers.into_iter();
        waiting.retain(|_| answers.next().is_some_and(|answer| answer.is_err()));
        if waiting.is_empty() || inner.options.clock.now().after(pause) >= until {
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

fn record(
    inner: &Arc<QuorumInner>,
    generations: &Arc<Vec<GenerationRef>>,
    votes: &mut [ReleaseVotes],
    answer: NodeReply<Released>,
) {
    let mut failed = Vec::new();
    for ((vote, generation), item) in votes.iter_mut().zip(&**generations).zip(answer.items) {
        if item.is_err() {
            failed.push(generation.clone());
        }
        vote.record(answer.node, item);
    }
    retry(inner, answer.node, failed);
}

async fn retry_failed(
    inner: Arc<QuorumInner>,
    generations: Arc<Vec<GenerationRef>>,
    answer: NodeReply<Released>,
) {
    let failed = generations.iter().zip(&answer.items).filter(|(_, item)| item.is_err());
    retry(&inner, answer.node, failed.map(|(generation, _)| generation.clone()).collect());
}

/// Retries a failed release in the background until the node confirms or the lease has expired. Otherwise its vote would
/// be missing for the next client.
fn retry(inner: &Arc<QuorumInner>, node: usize, generations: Vec<GenerationRef>) {
    if generations.is_empty() {
        return;
    }
    let now = inner.options.clock.now();
    for generation in &generations {
        generation.may_be_released_late(now);
    }
    tokio::spawn(withdraw(Arc::clone(inner), node, generations, Persist::Yes));
}
