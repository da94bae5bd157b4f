//! The verbs of a lease store that are sent in batches.

use std::sync::Arc;
use std::time::Duration;

use futures_core::future::BoxFuture;

use super::contain::contained;
use super::desk::{Desk, Mail};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Attempt, Batch, Claim, Lease, LeaseStore, Released};

/// A verb of the lease store that is sent in batches.
pub(crate) trait Verb: Sized + Send + Sync + 'static {
    type Item: Clone + Send + Sync + 'static;
    type Answer: Send + 'static;
    const DOING: &'static str;
    /// Whether an item may be sent once more after a call that may have been applied.
    const REPEATABLE: bool;

    /// Calls the store. A panic in the store's code is an error of this call.
    fn call(store: Arc<dyn LeaseStore>, items: Vec<Self::Item>) -> BoxFuture<'static, Batch<Self::Answer>>;

    /// The same for a lone item, which needs no vector.
    fn call_one(store: Arc<dyn LeaseStore>, item: Self::Item) -> BoxFuture<'static, Batch<Self::Answer>>;

    /// How long the store keeps, at the longest, what this brings about.
    fn expiry(item: &Self::Item) -> Duration;

    /// An answer came that no caller awaits.
    fn orphaned(desk: &Desk, item: Self::Item, answer: Result<Self::Answer>);
}

#[derive(Debug)]
pub(crate) struct AcquireVerb;

impl Verb for AcquireVerb {
    type Item = Claim;
    type Answer = Attempt;
    const DOING: &'static str = "acquire";
    /// The store recognises a claim by its lock id.
    const REPEATABLE: bool = true;

    fn call(store: Arc<dyn LeaseStore>, items: Vec<Claim>) -> BoxFuture<'static, Batch<Attempt>> {
        Box::pin(
            async move { contained(&*store, Self::DOING, async { store.try_acquire(&items).await }).await },
        )
    }

    fn call_one(store: Arc<dyn LeaseStore>, item: Claim) -> BoxFuture<'static, Batch<Attempt>> {
        Box::pin(async move {
            let items = std::slice::from_ref(&item);
            contained(&*store, Self::DOING, async { store.try_acquire(items).await }).await
        })
    }

    fn expiry(claim: &Claim) -> Duration {
        claim.lasts()
    }

    fn orphaned(desk: &Desk, claim: Claim, answer: Result<Attempt>) {
        let leaves_something = match answer {
            Ok(Attempt::Granted { .. }) => true,
            Ok(Attempt::Busy { .. }) => claim.waiting.is_some(),
            Err(error) => error.is_outcome_unknown(),
        };
        if leaves_something {
            desk.post(Mail::Withdraw(claim));
        }
    }
}

#[derive(Debug)]
pub(crate) struct ReleaseVerb;

impl Verb for ReleaseVerb {
    type Item = Lease;
    type Answer = Released;
    const DOING: &'static str = "release";
    /// A lease that was released by the first call would be told as lost.
    const REPEATABLE: bool = false;

    fn call(store: Arc<dyn LeaseStore>, items: Vec<Lease>) -> BoxFuture<'static, Batch<Released>> {
        Box::pin(async move { contained(&*store, Self::DOING, async { store.release(&items).await }).await })
    }

    fn call_one(store: Arc<dyn LeaseStore>, item: Lease) -> BoxFuture<'static, Batch<Released>> {
        Box::pin(async move {
            let items = std::slice::from_ref(&item);
            contained(&*store, Self::DOING, async { store.release(items).await }).await
        })
    }

    fn expiry(lease: &Lease) -> Duration {
        lease.expiry
    }

    /// A caller that gives up a release posts the lease to the engine's task, which sees it through.
    fn orphaned(_: &Desk, _: Lease, _: Result<Released>) {}
}

/// The store did not answer in this time. The request is still in flight.
pub(crate) fn silent<V: Verb>(after: Duration) -> Error {
    Error::new(ErrorKind::Unavailable, format!("no answer within {after:?}"))
        .doing(V::DOING)
        .with_unknown_outcome()
        .with_request_in_flight()
        .advise("check that the store runs and can be reached from here")
}

/// One answer for each item: the error of a whole batch is that of each item, and a store that answers too few items is
/// told apart from one that is down.
pub(super) fn spread<T>(answers: Batch<T>) -> Box<dyn Iterator<Item = Result<T>> + Send>
where
    T: Send + 'static,
{
    match answers {
        Ok(answers) => Box::new(answers.into_iter().chain(std::iter::repeat_with(|| Err(too_few())))),
        Err(error) => Box::new(std::iter::repeat_with(move || Err(error.clone()))),
    }
}

pub(super) fn too_few() -> Error {
    Error::new(ErrorKind::Internal, "the store answered fewer items than it was asked").with_unknown_outcome()
}
