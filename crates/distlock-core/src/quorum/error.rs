//! One error for what several nodes said.

use std::time::Duration;

use super::QuorumInner;
use crate::error::{Error, ErrorKind};

/// The error for a node that did not answer.
pub(super) fn silent(after: Duration) -> Error {
    Error::new(ErrorKind::Unavailable, format!("no answer within {after:?}")).with_unknown_outcome()
}

/// The nodes that failed, and why.
pub(super) struct Failures<'a> {
    inner: &'a QuorumInner,
    errors: Vec<(usize, Error)>,
    /// Nodes that did not answer, and how long they were waited for.
    silent: usize,
    waited: Duration,
}

impl<'a> Failures<'a> {
    pub(super) fn new(inner: &'a QuorumInner) -> Self {
        Failures { inner, errors: Vec::new(), silent: 0, waited: Duration::ZERO }
    }

    pub(super) fn add(&mut self, node: usize, error: Error) {
        self.errors.push((node, error));
    }

    /// Nodes that did not answer in time.
    pub(super) fn add_silent(&mut self, nodes: usize, waited: Duration) {
        self.silent += nodes;
        self.waited = self.waited.max(waited);
    }

    /// Whether some node may have carried out what failed here.
    pub(super) fn outcome_unknown(&self) -> bool {
        self.silent > 0 || self.errors.iter().any(|(_, error)| error.is_outcome_unknown())
    }

    /// Says that only `answered` nodes did, and what became of the others. The kind is that of the nodes' errors
    /// if they agree, as when all refuse the password.
    pub(super) fn into_error(self, answered: usize) -> Error {
        let QuorumInner { nodes, majority, .. } = self.inner;
        let mut reasons: Vec<String> =
            self.errors.iter().map(|(node, error)| format!("{}: {error}", nodes[*node].name)).collect();
        if self.silent > 0 {
            reasons.push(format!("{} without an answer within {:?}", self.silent, self.waited));
        }
        let kind = match self.errors.first() {
            Some((_, first))
                if self.silent == 0 && self.errors.iter().all(|(_, error)| error.kind() == first.kind()) =>
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
