//! One error for the failures of several nodes.

use std::time::Duration;

use super::QuorumInner;
use crate::error::{Error, ErrorKind};

/// The error for a node that did not answer.
pub(super) fn no_answer(after: Duration) -> Error {
    Error::new(ErrorKind::Unavailable, format!("no answer within {after:?}")).with_unknown_outcome()
}

/// The nodes that failed, with their errors.
pub(super) struct Failures<'a> {
    inner: &'a QuorumInner,
    errors: Vec<(usize, Error)>,
    /// How many nodes did not answer within `waited`.
    unanswered: usize,
    waited: Duration,
}

impl<'a> Failures<'a> {
    pub(super) fn new(inner: &'a QuorumInner) -> Self {
        Failures { inner, errors: Vec::new(), unanswered: 0, waited: Duration::ZERO }
    }

    pub(super) fn add(&mut self, node: usize, error: Error) {
        self.errors.push((node, error));
    }

    /// Adds nodes that did not answer in time.
    pub(super) fn add_unanswered(&mut self, nodes: usize, waited: Duration) {
        self.unanswered += nodes;
        self.waited = self.waited.max(waited);
    }

    /// Whether a node may have applied the request.
    pub(super) fn outcome_unknown(&self) -> bool {
        self.unanswered > 0 || self.errors.iter().any(|(_, error)| error.is_outcome_unknown())
    }

    /// An error that says how many nodes answered and why the others failed. It has the kind of the nodes' errors if they
    /// agree, for example if all refuse the password.
    pub(super) fn into_error(self, answered: usize) -> Error {
        let QuorumInner { nodes, majority, .. } = self.inner;
        let mut reasons: Vec<String> =
            self.errors.iter().map(|(node, error)| format!("{}: {error:#}", nodes[*node].name)).collect();
        if self.unanswered > 0 {
            reasons.push(format!("{} without an answer within {:?}", self.unanswered, self.waited));
        }
        let kind = match self.errors.first() {
            Some((_, first))
                if self.unanswered == 0
                    && self.errors.iter().all(|(_, error)| error.kind() == first.kind()) =>
            {
                first.kind()
            }
            _ => ErrorKind::Unavailable,
        };
        let detail = format!(
            "{answered} of {} nodes answered and {majority} must ({})",
            nodes.len(),
            reasons.join("; ")
        );
        Error::new(kind, detail).advise("bring these nodes back, or give slow ones a longer node time-out")
    }
}
