//! Renewing: a majority of *all* nodes must renew. Counting only the nodes that granted would allow two holders.

use std::sync::Arc;
use std::time::Duration;

use super::QuorumInner;
use super::acquire;
use super::error::Failures;
use super::generation::{GenerationRef, Generations};
use super::round::{NodeReply, Round, to_node};
use crate::error::{Error, Result};
use crate::store::{Batch, Claim, Lease, Renewal};

/// The answers of the nodes to one renewal.
struct RenewVotes {
    renewed: usize,
    not_held: Vec<usize>,
    failed: Vec<(usize, Error)>,
}

impl RenewVotes {
    fn record(&mut self, node: usize, answer: Result<Renewal>) {
        match answer {
            Ok(Renewal::Renewed) => self.renewed += 1,
            Ok(Renewal::NotYours) => self.not_held.push(node),
            Err(error) => self.failed.push((node, error)),
        }
    }

    fn is_decided(&self, inner: &QuorumInner) -> bool {
        let (nodes, majority) = (inner.nodes.len(), inner.majority);
        let silent = nodes - self.renewed - self.not_held.len() - self.failed.len();
        let lost = nodes - self.not_held.len() < majority;
        let may_be_lost = nodes - self.not_held.len() < majority + silent;
        self.renewed >= majority || lost || (self.renewed + silent < majority && !may_be_lost)
    }

    /// The result. If too many nodes do not have the lease, it is lost. If too many nodes failed, it is an error, and the
    /// engine retries until its deadline.
    fn conclude(self, inner: &QuorumInner, waited: Duration) -> Result<Renewal> {
        if self.renewed >= inner.majority {
            return Ok(Renewal::Renewed);
        }
        if inner.nodes.len() - self.not_held.len() < inner.majority {
            return Ok(Renewal::NotYours);
        }
        let mut failures = Failures::new(inner);
        let answered = self.renewed + self.not_held.len();
        failures.add_unanswered(inner.nodes.len() - answered - self.failed.len(), waited);
        for (node, error) in self.failed {
            failures.add(node, error);
        }
        let unknown = failures.outcome_unknown();
        let error = failures.into_error(answered);
        Err(if unknown { error.with_unknown_outcome() } else { error })
    }
}

pub(super) async fn renew(inner: &Arc<QuorumInner>, leases: &[Lease]) -> Batch<Renewal> {
    let generations: Arc<Vec<GenerationRef>> =
        Arc::new(leases.iter().map(|lease| Generations::of(inner, lease)).collect());
    let for_nodes: Vec<Lease> = leases
        .iter()
        .zip(&*generations)
        // The token is the quorum's: most nodes granted a smaller one, and keep this.
        .map(|(lease, generation)| {
            lease.clone().with_lock_id(generation.lease.lock_id.clone()).with_known_token(false)
        })
        .collect();
    let for_nodes = Arc::new(for_nodes);
    let mut votes: Vec<RenewVotes> =
        leases.iter().map(|_| RenewVotes { renewed: 0, not_held: Vec::new(), failed: Vec::new() }).collect();
    let expiry = leases.iter().map(|lease| lease.expiry).max().unwrap_or_default();
    let mut round = Round::begin(inner, expiry);
    for node in 0..inner.nodes.len() {
        let leases = for_nodes.to_vec();
        let call = to_node(inner, node, leases, |store, leases| async move { store.renew(&leases).await });
        // Keeps the generations known while a call is in flight, so that a release meanwhile is noticed.
        let generations = Arc::clone(&generations);
        round.call(node, call, |_| async move { drop(generations) });
    }
    while !votes.iter().all(|vote| vote.is_decided(inner)) {
        // Without a majority it is an error, so every answer is needed.
        let Some(answer) = round.next(true).await else { break };
        record(&mut votes, answer);
    }
    let waited = round.waited();
    for answer in round.close().await {
        record(&mut votes, answer);
    }
    let now = inner.options.clock.now();
    let mut missing: Vec<Vec<(GenerationRef, Lease)>> = inner.nodes.iter().map(|_| Vec::new()).collect();
    let mut answers = Vec::with_capacity(votes.len());
    for ((vote, generation), lease) in votes.into_iter().zip(&*generations).zip(&*for_nodes) {
        if vote.renewed >= inner.majority {
            generation.touch(now);
            for node in &vote.not_held {
                if inner.options.repair && generation.begin_repair(*node) {
                    missing[*node].push((generation.clone(), lease.clone()));
                }
            }
        }
        answers.push(vote.conclude(inner, waited));
    }
    for (node, what) in missing.into_iter().enumerate().filter(|(_, what)| !what.is_empty()) {
        tokio::spawn(repair(Arc::clone(inner), node, what));
    }
    Ok(answers)
}

fn record(votes: &mut [RenewVotes], answer: NodeReply<Renewal>) {
    for (vote, item) in votes.iter_mut().zip(answer.items) {
        vote.record(answer.node, item);
    }
}

/// Acquires leases that a majority has just renewed on a node that does not have them: it was down or had voted for
/// another client when they were acquired, or it restarted empty. Without repair, one restart after the other would
/// reduce a long-held lock to less than a majority, and another client could acquire it before the holder notices.
///
/// The new vote counts only for later renewals. It is an ordinary claim, so it takes the lock from no holder, and it is
/// withdrawn if the lease was released meanwhile.
async fn repair(inner: Arc<QuorumInner>, node: usize, what: Vec<(GenerationRef, Lease)>) {
    let claims: Vec<Claim> = what.iter().map(|(_, lease)| as_claim(lease)).collect();
    let generations: Arc<Vec<GenerationRef>> =
        Arc::new(what.into_iter().map(|(generation, _)| generation).collect());
    let items = acquire::ask(Arc::clone(&inner), node, claims, Arc::clone(&generations)).await;
    for generation in &*generations {
        generation.end_repair(node);
    }
    acquire::answered_late(inner, generations, NodeReply { node, items }).await;
}

fn as_claim(lease: &Lease) -> Claim {
    Claim::new(lease.resource.clone(), lease.lock_id.clone(), lease.expiry)
        .with_weight(lease.weight)
        .with_capacity(lease.capacity)
}
