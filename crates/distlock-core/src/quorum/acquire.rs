//! Acquiring: all nodes are asked at once. A majority of all nodes must grant, and a majority must know the token.

use std::sync::Arc;
use std::time::Duration;

use super::QuorumInner;
use super::error::{Failures, no_answer};
use super::generation::{AttemptState, GenerationRef, Generations};
use super::round::{NodeReply, Round, to_node};
use super::tokens;
use super::withdraw::{Persist, withdraw, withdraw_all};
use crate::error::{Error, Result};
use crate::resource::{FencingToken, RecordKind};
use crate::store::{Attempt, Batch, Claim};

/// The longest pause of a waiter that no node can wake.
const UNQUEUED_PAUSE: Duration = Duration::from_millis(100);

/// The answers of the nodes to one claim.
struct AcquireVotes {
    generation: GenerationRef,
    granted: Vec<(usize, FencingToken)>,
    busy: Vec<(usize, Option<Duration>)>,
    failed: Vec<(usize, Error)>,
}

impl AcquireVotes {
    fn record(&mut self, node: usize, answer: Result<Attempt>) {
        match answer {
            Ok(Attempt::Granted { token }) => self.granted.push((node, token)),
            Ok(Attempt::Busy { retry_after, .. }) => self.busy.push((node, retry_after)),
            Err(error) => self.failed.push((node, error)),
        }
    }

    /// Whether it is granted, or can no longer be granted and it is clear if that is contention or an outage.
    fn is_decided(&self, inner: &QuorumInner) -> bool {
        let (nodes, majority) = (inner.nodes.len(), inner.majority);
        let answered = self.granted.len() + self.busy.len();
        let winnable = nodes - self.busy.len() - self.failed.len() >= majority;
        let clear = answered >= majority || nodes - self.failed.len() < majority;
        self.granted.len() >= majority || (!winnable && clear)
    }

    /// The nodes that have not answered yet.
    fn unanswered(&self, inner: &QuorumInner) -> Vec<usize> {
        let answered = |node: &usize| {
            self.granted.iter().any(|(other, _)| other == node)
                || self.busy.iter().any(|(other, _)| other == node)
                || self.failed.iter().any(|(other, _)| other == node)
        };
        (0..inner.nodes.len()).filter(|node| !answered(node)).collect()
    }

    /// Whether it is undecided, and an error unless more nodes answer.
    fn needs_more(&self, inner: &QuorumInner) -> bool {
        !self.is_decided(inner) && self.granted.len() + self.busy.len() < inner.majority
    }
}

pub(super) async fn try_acquire(inner: &Arc<QuorumInner>, claims: &[Claim]) -> Batch<Attempt> {
    let started = inner.options.clock.now();
    let mut answers: Vec<Option<Result<Attempt>>> =
        claims.iter().map(|claim| inner.refuse(claim.resource.kind()).map(Err)).collect();
    let asked: Vec<usize> = (0..claims.len()).filter(|at| answers[*at].is_none()).collect();
    let mut votes: Vec<AcquireVotes> = asked
        .iter()
        .map(|at| AcquireVotes {
            generation: Generations::begin(inner, &claims[*at]),
            granted: Vec::new(),
            busy: Vec::new(),
            failed: Vec::new(),
        })
        .collect();
    let for_nodes: Vec<Claim> =
        asked.iter().zip(&votes).map(|(at, vote)| for_node(&claims[*at], &vote.generation)).collect();

    let waited = collect(inner, for_nodes, &mut votes).await;
    let tokens = confirm_tokens(inner, &votes).await;

    let mut undo = Vec::new();
    for ((at, vote), token) in asked.into_iter().zip(votes).zip(tokens) {
        let expiry = claims[at].expiry;
        let elapsed = inner.options.clock.now().since(started);
        let in_time = elapsed.saturating_add(inner.options.min_validity) < expiry;
        let granted = token.as_ref().ok().copied().flatten().filter(|_| in_time);
        let kept = granted.and_then(|token| Some((token, vote.generation.keep(token, started)?)));
        answers[at] = Some(match kept {
            Some((token, late_grants)) => {
                tokens::write_back_later(inner, &vote.generation, token, late_grants);
                Ok(Attempt::Granted { token })
            }
            None => {
                let answer = match token {
                    Err(error) => Err(error),
                    // Granted too late to be of use, or released by the caller meanwhile.
                    Ok(Some(_)) => Ok(Attempt::busy(None)),
                    Ok(None) => conclude(inner, &vote, waited),
                };
                undo.push(vote);
                answer.map_err(|error| error.about(&claims[at].resource))
            }
        });
    }
    undo_all(inner, undo).await;
    Ok(answers.into_iter().flatten().collect())
}

/// The claim as it is sent to a node. Nodes are never asked for `no_overtaking`: their queues may differ, and waiters that
/// each respect another queue would wait for each other. A claim waits only under the caller's own lock id, where a
/// withdrawal finds it.
fn for_node(claim: &Claim, generation: &GenerationRef) -> Claim {
    let lock = claim.resource.kind().record() == RecordKind::Lock;
    Claim {
        lock_id: generation.lease.lock_id.clone(),
        waiting: claim.waiting.clone().filter(|_| lock && generation.is_first()),
        cadence: None,
        no_overtaking: false,
        ..claim.clone()
    }
}

/// Asks all nodes and collects votes until every claim is decided or the time is over. Returns how long it waited for
/// nodes that did not answer.
async fn collect(inner: &Arc<QuorumInner>, claims: Vec<Claim>, votes: &mut [AcquireVotes]) -> Duration {
    let Some(expiry) = claims.iter().map(|claim| claim.expiry).max() else { return Duration::ZERO };
    let generations: Arc<Vec<GenerationRef>> =
        Arc::new(votes.iter().map(|vote| vote.generation.clone()).collect());
    let mut round = Round::begin(inner, expiry);
    for node in 0..inner.nodes.len() {
        let call = ask(Arc::clone(inner), node, claims.clone(), Arc::clone(&generations));
        let (inner, generations) = (Arc::clone(inner), Arc::clone(&generations));
        round.call(node, call, move |answer| answered_late(inner, generations, answer));
    }
    drop(generations);
    while !votes.iter().all(|vote| vote.is_decided(inner)) {
        let needed = votes.iter().any(|vote| vote.needs_more(inner));
        let Some(answer) = round.next(needed).await else { break };
        record(votes, answer);
    }
    let waited = round.waited();
    for answer in round.close().await {
        record(votes, answer);
    }
    waited
}

/// Asks one node. After a time-out the outcome is unknown, so that a possible grant is withdrawn. The call is still
/// driven to completion, and a late answer is handled too.
pub(super) async fn ask(
    inner: Arc<QuorumInner>,
    node: usize,
    claims: Vec<Claim>,
    generations: Arc<Vec<GenerationRef>>,
) -> Vec<Result<Attempt>> {
    let limit = inner.needed_node_timeout();
    let mut call = tokio::spawn(to_node(&inner, node, claims, |store, claims: Vec<Claim>| async move {
        store.try_acquire(&claims).await
    }));
    let gone = |count| vec![Err(no_answer(limit)); count];
    match tokio::time::timeout(limit, &mut call).await {
        Ok(answers) => answers.unwrap_or_else(|_| gone(generations.len())),
        Err(_) => {
            let count = generations.len();
            tokio::spawn(async move {
                if let Ok(items) = call.await {
                    answered_late(inner, generations, NodeReply { node, items }).await;
                }
            });
            gone(count)
        }
    }
}

fn record(votes: &mut [AcquireVotes], answer: NodeReply<Attempt>) {
    for (vote, item) in votes.iter_mut().zip(answer.items) {
        vote.record(answer.node, item);
    }
}

/// Handles an answer that arrived after its round was closed. If the claim was granted without this node, its vote is kept
/// and it gets the token. If the claim failed or was released since, its vote is withdrawn.
pub(super) async fn answered_late(
    inner: Arc<QuorumInner>,
    generations: Arc<Vec<GenerationRef>>,
    answer: NodeReply<Attempt>,
) {
    let node = answer.node;
    let mut ended = Vec::new();
    let mut raise = Vec::new();
    for (generation, item) in generations.iter().zip(answer.items) {
        let granted = match item {
            Ok(Attempt::Granted { token }) => Some(token),
            // The node may have queued it after it was withdrawn.
            Ok(Attempt::Busy { .. }) if generation.is_released() => {
                ended.push(generation.clone());
                continue;
            }
            Ok(Attempt::Busy { .. }) => continue,
            Err(error) if error.is_outcome_unknown() => None,
            Err(_) => continue,
        };
        match generation.granted_late(node) {
            AttemptState::Undecided => {}
            AttemptState::Ended => ended.push(generation.clone()),
            AttemptState::Granted(token) if granted.is_some_and(|own| own < token) => {
                raise.push((generation.clone(), token))
            }
            AttemptState::Granted(_) => {}
        }
    }
    drop(generations);
    if !raise.is_empty() {
        tokens::write_back_to(&inner, node, raise).await;
    }
    if !ended.is_empty() {
        withdraw(inner, node, ended, Persist::Yes).await;
    }
}

/// The token of each claim that a majority granted, once a majority knows the token. `Ok(None)`: not granted.
async fn confirm_tokens(
    inner: &Arc<QuorumInner>,
    votes: &[AcquireVotes],
) -> Vec<Result<Option<FencingToken>>> {
    let granted: Vec<usize> =
        (0..votes.len()).filter(|at| votes[*at].granted.len() >= inner.majority).collect();
    let write_back = |at: &usize| {
        let vote = &votes[*at];
        tokens::TokenWriteBack::new(&vote.generation, &vote.granted, vote.unanswered(inner))
    };
    let write_backs = granted.iter().map(write_back).collect();
    let confirmed = tokens::write_back(inner, write_backs).await;
    let mut tokens: Vec<Result<Option<FencingToken>>> = votes.iter().map(|_| Ok(None)).collect();
    for (at, token) in granted.into_iter().zip(confirmed) {
        tokens[at] = token;
    }
    tokens
}

/// The result of a claim that was not granted: contention if a majority answered, and an outage otherwise.
fn conclude(inner: &QuorumInner, vote: &AcquireVotes, waited: Duration) -> Result<Attempt> {
    let answered = vote.granted.len() + vote.busy.len();
    // A majority granted, but nodes forgot the lease before the token was confirmed.
    if vote.granted.len() >= inner.majority {
        return Ok(Attempt::busy(None));
    }
    if answered >= inner.majority {
        return Ok(Attempt::busy(retry_after(inner, vote)));
    }
    let mut failures = Failures::new(inner);
    for (node, error) in &vote.failed {
        failures.add(*node, error.clone());
    }
    failures.add_unanswered(inner.nodes.len() - answered - vote.failed.len(), waited);
    Err(failures.into_error(answered))
}

/// When to ask again. The nodes that granted become free when our votes are withdrawn; enough of the busy nodes must
/// become free to make a majority with them.
///
/// If fewer than a majority are busy, no other client holds the lock: the votes were split, and all will be withdrawn
/// soon. A random pause keeps the same clients from splitting them again.
fn retry_after(inner: &QuorumInner, vote: &AcquireVotes) -> Option<Duration> {
    if vote.busy.len() < inner.majority {
        let most = inner.options.node_timeout.min(Duration::from_millis(20));
        return Some(most.mul_f64(0.1 + 0.9 * fastrand::f64()));
    }
    let mut left: Vec<Duration> = vote.busy.iter().filter_map(|(_, left)| *left).collect();
    left.sort_unstable();
    // A majority refused, so fewer than a majority granted.
    let needed = inner.majority - vote.granted.len();
    let until = left.get(needed - 1).copied();
    if vote.generation.lease.resource.kind().record() == RecordKind::Lock && vote.generation.is_first() {
        return until;
    }
    // Waiters for a pool, and waiters of a later generation of a lock id, are in no node's queue and are not woken.
    let soon = UNQUEUED_PAUSE.mul_f64(0.2 + 0.8 * fastrand::f64());
    Some(until.map_or(soon, |until| until.min(soon)))
}

/// Withdraws every vote of the failed claims. Nodes that granted or may have granted are asked until they confirm.
async fn undo_all(inner: &Arc<QuorumInner>, votes: Vec<AcquireVotes>) {
    let nodes = inner.nodes.len();
    let mut stored: Vec<(usize, Vec<GenerationRef>)> = (0..nodes).map(|node| (node, Vec::new())).collect();
    let (mut unanswered, mut failed) = (stored.clone(), stored.clone());
    for vote in votes {
        let (late_grants, asked_before) = vote.generation.end();
        let plans = stored.iter_mut().zip(&mut unanswered).zip(&mut failed);
        for (node, ((stored, unanswered), failed)) in plans.enumerate() {
            let granted = vote.granted.iter().any(|(other, _)| *other == node) || late_grants.contains(&node);
            let unknown = vote.failed.iter().any(|(other, e)| *other == node && e.is_outcome_unknown());
            let refused = vote.failed.iter().any(|(other, e)| *other == node && !e.is_outcome_unknown());
            let busy = vote.busy.iter().any(|(other, _)| *other == node);
            // A release that overtook the attempt has left the attempt's entry in the queue.
            let queued = busy && (asked_before || vote.generation.is_released());
            if granted || unknown || queued {
                stored.1.push(vote.generation.clone());
            } else if refused {
                failed.1.push(vote.generation.clone());
            } else if !busy {
                unanswered.1.push(vote.generation.clone());
            }
        }
    }
    // Nodes that have not answered are not waited for. Nodes that reported that nothing was applied are asked once.
    for (plan, persist) in [(unanswered, Persist::Yes), (failed, Persist::No)] {
        if plan.iter().any(|(_, what)| !what.is_empty()) {
            let inner = Arc::clone(inner);
            tokio::spawn(async move { withdraw_all(&inner, plan, persist).await });
        }
    }
    withdraw_all(inner, stored, Persist::Yes).await;
}
