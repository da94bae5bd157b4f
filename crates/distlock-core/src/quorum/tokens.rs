//! Tokens over many nodes: the largest of a majority, known to a majority before anybody sees it.
//!
//! Nodes count on their own, so a majority grants with different tokens. The largest of them is higher than every
//! token that was returned before, because each of those is known to a majority, and two majorities share a node.
//! For the same to hold next time, this one must be known to a majority too: it is written back, as a renewal
//! that carries it, to the nodes that granted less. A renewal cannot take anything, so what comes late is harmless.

use std::sync::Arc;
use std::time::Duration;

use super::Inner;
use super::error::Failures;
use super::round::{Round, to_node};
use super::ticket::Use;
use crate::error::{Error, Result};
use crate::resource::FencingToken;
use crate::store::{Lease, Renewal};

/// A claim that a majority granted.
pub(super) struct Vote {
    ticket: Use,
    token: FencingToken,
    /// Nodes that know the token.
    know: Vec<usize>,
    /// Nodes that granted less, and must be told.
    behind: Vec<usize>,
    /// Nodes that had not answered when the claim was won. They may have granted too.
    unheard: Vec<usize>,
    /// They are told too.
    widened: bool,
    /// How many of those that are being told have not answered yet.
    open: usize,
    failed: Vec<(usize, Error)>,
}

impl Vote {
    pub(super) fn new(ticket: &Use, granted: &[(usize, FencingToken)], unheard: Vec<usize>) -> Self {
        let token = granted.iter().map(|(_, token)| *token).max().unwrap_or(FencingToken::new(0));
        let nodes = |knows: bool| {
            let nodes = granted.iter().filter(move |(_, own)| (*own >= token) == knows);
            nodes.map(|(node, _)| *node).collect()
        };
        let (know, behind) = (nodes(true), nodes(false));
        Vote {
            ticket: ticket.clone(),
            token,
            know,
            behind,
            unheard,
            widened: false,
            open: 0,
            failed: Vec::new(),
        }
    }

    fn is_known(&self, inner: &Inner) -> bool {
        self.know.len() >= inner.majority
    }

    fn is_decided(&self, inner: &Inner) -> bool {
        self.is_known(inner) || self.know.len() + self.open < inner.majority
    }

    fn record(&mut self, node: usize, answer: Result<Renewal>) {
        self.open -= 1;
        match answer {
            Ok(Renewal::Renewed) => self.know.push(node),
            // It granted a moment ago and has forgotten since: a restart, or a clock that jumped.
            Ok(Renewal::NotYours) => {}
            Err(error) => self.failed.push((node, error)),
        }
    }

    /// Tells all nodes that may know of the grant the next time. False if another round cannot help.
    fn widen(&mut self) -> bool {
        self.widened |= !self.unheard.is_empty();
        self.behind.append(&mut self.unheard);
        let failed = std::mem::take(&mut self.failed);
        let may_help = self.widened || !failed.is_empty();
        if !may_help {
            self.failed = failed;
        }
        may_help
    }

    /// The token if a majority knows it; `None` if nodes forgot the grant; an error if they did not answer.
    fn conclude(self, inner: &Inner, waited: Duration) -> Result<Option<FencingToken>> {
        if self.is_known(inner) {
            return Ok(Some(self.token));
        }
        if self.open == 0 && self.failed.is_empty() {
            return Ok(None);
        }
        let mut failures = Failures::new(inner);
        for (node, error) in self.failed {
            failures.add(node, error);
        }
        failures.add_silent(self.open, waited);
        Err(failures.into_error(self.know.len()))
    }

    fn lease(&self) -> Lease {
        Lease { token: self.token, ..self.ticket.lease.clone() }
    }
}

/// How often the nodes are told that may still learn the token.
const TRIES: u32 = 5;

/// Tells the nodes that are behind, and waits until a majority knows or cannot. If one of them does not answer or fails, it
/// is told again, and so are the nodes that may have granted since: a quorum does without any minority.
pub(super) async fn write_back(
    inner: &Arc<Inner>,
    mut votes: Vec<Vote>,
) -> Vec<Result<Option<FencingToken>>> {
    let patient = votes.iter().all(|vote| vote.is_known(inner) || vote.unheard.is_empty());
    let mut waited = tell(inner, &mut votes, patient).await;
    for number in 1..TRIES {
        let mut again = false;
        for vote in votes.iter_mut().filter(|vote| !vote.is_known(inner)) {
            again |= vote.widen();
        }
        if !again {
            break;
        }
        if number > 1 {
            // Time for the nodes that were not heard of to grant.
            tokio::time::sleep(inner.options.node_timeout / TRIES).await;
        }
        waited = tell(inner, &mut votes, number + 1 == TRIES).await;
    }
    votes.into_iter().map(|vote| vote.conclude(inner, waited)).collect()
}

/// One round: tells every node that is behind. Says how long silent nodes were waited for: longer than usual if `patient`.
async fn tell(inner: &Arc<Inner>, votes: &mut [Vote], patient: bool) -> Duration {
    let expiry = votes.iter().map(|vote| vote.ticket.lease.expiry).max().unwrap_or_default();
    let mut round = Round::begin(inner, expiry);
    let mut asked: Vec<Vec<usize>> = Vec::with_capacity(inner.nodes.len());
    for vote in votes.iter_mut() {
        let know = &vote.know;
        vote.behind.retain(|node| !know.contains(node));
        vote.open = vote.behind.len();
    }
    for node in 0..inner.nodes.len() {
        let which: Vec<usize> = (0..votes.len()).filter(|at| votes[*at].behind.contains(&node)).collect();
        if !which.is_empty() {
            let leases: Vec<Lease> = which.iter().map(|at| votes[*at].lease()).collect();
            let call =
                to_node(inner, node, leases, |store, leases| async move { store.renew(&leases).await });
            round.call(node, call, |_| async {});
        }
        asked.push(which);
    }
    while !votes.iter().all(|vote| vote.is_decided(inner)) {
        let Some(answer) = round.next(patient).await else { break };
        for (at, item) in asked[answer.node].iter().zip(answer.items) {
            votes[*at].record(answer.node, item);
        }
    }
    round.waited()
}

/// Tells one node tokens that others know already. Best effort.
pub(super) async fn write_back_to(inner: &Arc<Inner>, node: usize, what: Vec<(Use, FencingToken)>) {
    let leases = what.iter().map(|(ticket, token)| Lease { token: *token, ..ticket.lease.clone() }).collect();
    let _: Vec<Result<Renewal>> =
        to_node(inner, node, leases, |store, leases: Vec<Lease>| async move { store.renew(&leases).await })
            .await;
}

/// The same for nodes that granted while the others were being told, without waiting.
pub(super) fn write_back_later(inner: &Arc<Inner>, ticket: &Use, token: FencingToken, nodes: Vec<usize>) {
    for node in nodes {
        let (inner, ticket) = (Arc::clone(inner), ticket.clone());
        tokio::spawn(async move { write_back_to(&inner, node, vec![(ticket, token)]).await });
    }
}
