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
    /// How many nodes know the token.
    know: usize,
    /// Nodes that must be told.
    behind: Vec<usize>,
    /// How many of them have not answered yet.
    open: usize,
    failed: Vec<(usize, Error)>,
}

impl Vote {
    pub(super) fn new(ticket: &Use, granted: &[(usize, FencingToken)]) -> Self {
        let token = granted.iter().map(|(_, token)| *token).max().unwrap_or(FencingToken::new(0));
        let behind: Vec<usize> =
            granted.iter().filter(|(_, own)| *own < token).map(|(node, _)| *node).collect();
        let (know, open) = (granted.len() - behind.len(), behind.len());
        Vote { ticket: ticket.clone(), token, know, behind, open, failed: Vec::new() }
    }

    fn is_decided(&self, inner: &Inner) -> bool {
        self.know >= inner.majority || self.know + self.open < inner.majority
    }

    fn record(&mut self, node: usize, answer: Result<Renewal>) {
        self.open -= 1;
        match answer {
            Ok(Renewal::Extended) => self.know += 1,
            // It granted a moment ago and has forgotten since: a restart, or a clock that jumped.
            Ok(Renewal::NotYours) => {}
            Err(error) => self.failed.push((node, error)),
        }
    }

    /// The token if a majority knows it; `None` if nodes forgot the grant; an error if they did not answer.
    fn conclude(self, inner: &Inner, waited: Duration) -> Result<Option<FencingToken>> {
        if self.know >= inner.majority {
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
        Err(failures.into_error(self.know))
    }

    fn lease(&self) -> Lease {
        Lease { token: self.token, ..self.ticket.lease.clone() }
    }
}

/// Tells the nodes that are behind, and waits until a majority knows or cannot. The other nodes are told too,
/// but not waited for: the more of them know, the more may later lose their memory at once.
pub(super) async fn write_back(
    inner: &Arc<Inner>,
    mut votes: Vec<Vote>,
) -> Vec<Result<Option<FencingToken>>> {
    let expiry = votes.iter().map(|vote| vote.ticket.lease.expiry).max().unwrap_or_default();
    let mut round = Round::begin(inner, expiry);
    let mut asked: Vec<Vec<usize>> = Vec::with_capacity(inner.nodes.len());
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
        // A token that no majority knows is an error.
        let Some(answer) = round.next(true).await else { break };
        for (at, item) in asked[answer.node].iter().zip(answer.items) {
            votes[*at].record(answer.node, item);
        }
    }
    let waited = round.waited();
    votes.into_iter().map(|vote| vote.conclude(inner, waited)).collect()
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
