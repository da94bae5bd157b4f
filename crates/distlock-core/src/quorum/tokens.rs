//! The token of a quorum: the largest of a majority, known to a majority before the grant is returned.
//!
//! Each node counts its own tokens, so a majority grants with different ones. The largest of them is higher than every
//! token returned before, because each of those is known to a majority, and two majorities share a node. To keep that
//! true, a majority must know the new token too: it is written back, in a renewal, to the nodes that granted a smaller
//! one. A renewal never acquires, so a late one does no harm.

use std::sync::Arc;
use std::time::Duration;

use super::QuorumInner;
use super::error::Failures;
use super::generation::GenerationRef;
use super::round::{Round, to_node};
use crate::error::{Error, Result};
use crate::resource::FencingToken;
use crate::store::{Lease, Renewal};

/// The write-back of the token of a claim that a majority granted.
pub(super) struct TokenWriteBack {
    generation: GenerationRef,
    token: FencingToken,
    /// Nodes that know the token.
    know: Vec<usize>,
    /// Nodes that granted a smaller token and must get this one.
    behind: Vec<usize>,
    /// Nodes that had not answered when the claim was granted. They may have granted too.
    unanswered: Vec<usize>,
    /// The unanswered nodes get the token too.
    widened: bool,
    /// How many nodes have not confirmed the token yet.
    open: usize,
    failed: Vec<(usize, Error)>,
}

impl TokenWriteBack {
    pub(super) fn new(
        generation: &GenerationRef,
        granted: &[(usize, FencingToken)],
        unanswered: Vec<usize>,
    ) -> Self {
        let token = granted.iter().map(|(_, token)| *token).max().unwrap_or(FencingToken::new(0));
        let nodes = |knows: bool| {
            let nodes = granted.iter().filter(move |(_, own)| (*own >= token) == knows);
            nodes.map(|(node, _)| *node).collect()
        };
        let (know, behind) = (nodes(true), nodes(false));
        TokenWriteBack {
            generation: generation.clone(),
            token,
            know,
            behind,
            unanswered,
            widened: false,
            open: 0,
            failed: Vec::new(),
        }
    }

    fn is_known(&self, inner: &QuorumInner) -> bool {
        self.know.len() >= inner.majority
    }

    fn is_decided(&self, inner: &QuorumInner) -> bool {
        self.is_known(inner) || self.know.len() + self.open < inner.majority
    }

    fn record(&mut self, node: usize, answer: Result<Renewal>) {
        self.open -= 1;
        match answer {
            Ok(Renewal::Renewed) => self.know.push(node),
            // It granted and has forgotten since: a restart, or a clock that jumped.
            Ok(Renewal::NotYours) => {}
            Err(error) => self.failed.push((node, error)),
        }
    }

    /// Includes all nodes that may have granted in the next round. False if another round cannot help.
    fn widen(&mut self) -> bool {
        self.widened |= !self.unanswered.is_empty();
        self.behind.append(&mut self.unanswered);
        let failed = std::mem::take(&mut self.failed);
        self.widened || !failed.is_empty()
    }

    /// The token if a majority knows it, `None` if nodes forgot the grant, an error if nodes failed or did not answer.
    fn conclude(self, inner: &QuorumInner, waited: Duration) -> Result<Option<FencingToken>> {
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
        failures.add_unanswered(self.open, waited);
        Err(failures.into_error(self.know.len()))
    }

    fn lease(&self) -> Lease {
        self.generation.lease.clone().with_token(self.token)
    }
}

/// How many rounds a write-back has at most.
const MAX_ROUNDS: u32 = 5;

/// Sends the tokens to the nodes that are behind, and waits until a majority knows them or cannot. If a node fails or does
/// not answer, it is asked again, and so are the nodes that may have granted since: a quorum tolerates any minority.
pub(super) async fn write_back(
    inner: &Arc<QuorumInner>,
    mut write_backs: Vec<TokenWriteBack>,
) -> Vec<Result<Option<FencingToken>>> {
    let patient =
        write_backs.iter().all(|write_back| write_back.is_known(inner) || write_back.unanswered.is_empty());
    let mut waited = send_tokens(inner, &mut write_backs, patient).await;
    for number in 1..MAX_ROUNDS {
        let mut again = false;
        for write_back in write_backs.iter_mut().filter(|write_back| !write_back.is_known(inner)) {
            again |= write_back.widen();
        }
        if !again {
            break;
        }
        if number > 1 {
            // Gives the unanswered nodes time to grant.
            tokio::time::sleep(inner.options.node_timeout / MAX_ROUNDS).await;
        }
        waited = send_tokens(inner, &mut write_backs, number + 1 == MAX_ROUNDS).await;
    }
    write_backs.into_iter().map(|write_back| write_back.conclude(inner, waited)).collect()
}

/// One round: sends the tokens to every node that is behind. Returns how long it waited for nodes that did not answer:
/// longer than usual if `patient`.
async fn send_tokens(
    inner: &Arc<QuorumInner>,
    write_backs: &mut [TokenWriteBack],
    patient: bool,
) -> Duration {
    let expiry =
        write_backs.iter().map(|write_back| write_back.generation.lease.expiry).max().unwrap_or_default();
    let mut round = Round::begin(inner, expiry);
    let mut asked: Vec<Vec<usize>> = Vec::with_capacity(inner.nodes.len());
    for write_back in write_backs.iter_mut() {
        let know = &write_back.know;
        write_back.behind.retain(|node| !know.contains(node));
        write_back.open = write_back.behind.len();
    }
    for node in 0..inner.nodes.len() {
        let which: Vec<usize> =
            (0..write_backs.len()).filter(|at| write_backs[*at].behind.contains(&node)).collect();
        if !which.is_empty() {
            let leases: Vec<Lease> = which.iter().map(|at| write_backs[*at].lease()).collect();
            let call =
                to_node(inner, node, leases, |store, leases| async move { store.renew(&leases).await });
            round.call(node, call, |_| async {});
        }
        asked.push(which);
    }
    while !write_backs.iter().all(|write_back| write_back.is_decided(inner)) {
        let Some(answer) = round.next(patient).await else { break };
        for (at, item) in asked[answer.node].iter().zip(answer.items) {
            write_backs[*at].record(answer.node, item);
        }
    }
    round.waited()
}

/// Sends one node tokens that a majority already knows. Best effort.
pub(super) async fn write_back_to(
    inner: &Arc<QuorumInner>,
    node: usize,
    what: Vec<(GenerationRef, FencingToken)>,
) {
    let leases = what.iter().map(|(generation, token)| generation.lease.clone().with_token(*token)).collect();
    let _: Vec<Result<Renewal>> =
        to_node(inner, node, leases, |store, leases: Vec<Lease>| async move { store.renew(&leases).await })
            .await;
}

/// The same, in the background, for nodes that granted during the write-back.
pub(super) fn write_back_later(
    inner: &Arc<QuorumInner>,
    generation: &GenerationRef,
    token: FencingToken,
    nodes: Vec<usize>,
) {
    for node in nodes {
        let (inner, generation) = (Arc::clone(inner), generation.clone());
        tokio::spawn(async move { write_back_to(&inner, node, vec![(generation, token)]).await });
    }
}
