//! One of the stores that a quorum is made of.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::withdraw::PendingReleases;
use crate::engine::contained;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Batch, LeaseStore};

/// How many calls to one node may be without an answer. A node that swallows requests would otherwise collect
/// one task for each attempt of each waiter.
const MAX_UNANSWERED: usize = 1024;

#[derive(Debug)]
pub(super) struct Node {
    pub(super) store: Arc<dyn LeaseStore>,
    pub(super) name: String,
    unanswered: AtomicUsize,
    /// Whether it did not answer in time when it was last waited for.
    slow: AtomicBool,
    /// What could not be taken back there yet.
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

    /// Calls the store and drives the call to its end, however long that takes. One answer for each of `items`.
    pub(super) async fn call<T, F>(
        &self,
        items: usize,
        call: impl FnOnce(Arc<dyn LeaseStore>) -> F,
    ) -> Vec<Result<T>>
    where
        F: Future<Output = Batch<T>>,
    {
        let _calling = match Calling::begin(&self.unanswered) {
            Some(calling) => calling,
            None => {
                let what = format!("{MAX_UNANSWERED} requests are without an answer");
                return spread(Err(Error::new(ErrorKind::Unavailable, what).on(self.name.as_str())), items);
            }
        };
        let call = async { call(Arc::clone(&self.store)).await };
        spread(contained(&*self.store, "ask a node", call).await, items)
    }
}

struct Calling<'a>(&'a AtomicUsize);

impl<'a> Calling<'a> {
    fn begin(unanswered: &'a AtomicUsize) -> Option<Self> {
        let calling = Calling(unanswered);
        // The count goes up first and down when `calling` is dropped, so that it never runs below zero.
        (unanswered.fetch_add(1, Ordering::Relaxed) < MAX_UNANSWERED).then_some(calling)
    }
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn spread<T>(answers: Batch<T>, items: usize) -> Vec<Result<T>> {
    let mut answers = match answers {
        Ok(answers) => answers,
        Err(error) => return (0..items).map(|_| Err(error.clone())).collect(),
    };
    answers.truncate(items);
    while answers.len() < items {
        let what = "the store answered fewer items than it was asked";
        answers.push(Err(Error::new(ErrorKind::Internal, what).with_unknown_outcome()));
    }
    answers
}
