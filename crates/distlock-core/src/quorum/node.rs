//! One node of a quorum.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::withdraw::PendingReleases;
use crate::engine::contained;
use crate::error::{Error, ErrorKind, Result};
use crate::store::support::errors::too_few_answers;
use crate::store::{Batch, LeaseStore};

/// How many unanswered calls one node may have. A node that never answers would otherwise collect one task for each
/// attempt of each waiter.
const MAX_UNANSWERED: usize = 1024;

#[derive(Debug)]
pub(super) struct Node {
    pub(super) store: Arc<dyn LeaseStore>,
    pub(super) name: String,
    unanswered: AtomicUsize,
    /// It did not answer in time in the last round that waited for it.
    slow: AtomicBool,
    /// Releases that it has not confirmed yet.
    pub(super) pending_releases: Mutex<PendingReleases>,
}

impl Node {
    pub(super) fn new(number: usize, store: Arc<dyn LeaseStore>) -> Self {
        let name = format!("node {number} ({})", store.describe());
        Node {
            store,
            name,
            unanswered: AtomicUsize::new(0),
            slow: AtomicBool::new(false),
            pending_releases: Mutex::default(),
        }
    }

    pub(super) fn is_slow(&self) -> bool {
        self.slow.load(Ordering::Relaxed)
    }

    pub(super) fn set_slow(&self, slow: bool) {
        self.slow.store(slow, Ordering::Relaxed);
    }

    /// Calls the store and drives the call to completion, however long that takes. Returns one answer for each item.
    pub(super) async fn call<T, F>(
        &self,
        items: usize,
        call: impl FnOnce(Arc<dyn LeaseStore>) -> F,
    ) -> Vec<Result<T>>
    where
        F: Future<Output = Batch<T>>,
    {
        let _in_flight = match InFlightCall::begin(&self.unanswered) {
            Some(call) => call,
            None => {
                let what = format!("{MAX_UNANSWERED} requests are unanswered");
                return one_per_item(
                    Err(Error::new(ErrorKind::Unavailable, what).on(self.name.as_str())),
                    items,
                );
            }
        };
        let call = async { call(Arc::clone(&self.store)).await };
        one_per_item(contained(&*self.store, "ask a node", call).await, items)
    }
}

struct InFlightCall<'a>(&'a AtomicUsize);

impl<'a> InFlightCall<'a> {
    fn begin(unanswered: &'a AtomicUsize) -> Option<Self> {
        let call = InFlightCall(unanswered);
        // Incremented before the check, since dropping `call` decrements it in either case.
        (unanswered.fetch_add(1, Ordering::Relaxed) < MAX_UNANSWERED).then_some(call)
    }
}

impl Drop for InFlightCall<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn one_per_item<T>(answers: Batch<T>, items: usize) -> Vec<Result<T>> {
    let mut answers = match answers {
        Ok(answers) => answers,
        Err(error) => return (0..items).map(|_| Err(error.clone())).collect(),
    };
    answers.resize_with(items, || Err(too_few_answers()));
    answers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_never_answers_gets_no_more_calls_than_the_limit() {
        let unanswered = AtomicUsize::new(0);
        let mut calls: Vec<_> = (0..MAX_UNANSWERED).map_while(|_| InFlightCall::begin(&unanswered)).collect();
        assert_eq!(calls.len(), MAX_UNANSWERED);
        for _ in 0..2 {
            assert!(InFlightCall::begin(&unanswered).is_none());
        }
        calls.pop();
        assert!(InFlightCall::begin(&unanswered).is_some());
    }

    #[test]
    fn a_node_that_answers_too_few_or_too_many_items_gives_one_answer_for_each() {
        for answered in 0..4 {
            let answers = one_per_item(Ok((0..answered).map(Ok).collect()), 2);
            let good: Vec<usize> = answers.iter().flatten().copied().collect();
            assert_eq!((answers.len(), good), (2, (0..answered.min(2)).collect()));
            assert!(answers.iter().flat_map(|answer| answer.as_ref().err()).all(Error::is_outcome_unknown));
        }
        let down = Error::new(ErrorKind::Unavailable, "down");
        assert_eq!(one_per_item::<()>(Err(down), 2).len(), 2);
    }
}
