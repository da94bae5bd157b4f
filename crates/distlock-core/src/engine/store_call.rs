//! Calls of a store: the operations of lease stores that are batched, and panics in a store's code, each of which is an
//! error of the one call that panicked.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures_core::future::BoxFuture;
use futures_util::FutureExt;

use super::command_channel::{Command, CommandChannel};
use crate::error::{Error, ErrorKind, Result};
use crate::store::support::errors::too_few_answers;
use crate::store::{Attempt, Batch, Claim, Lease, LeaseStore, Released, Renewal, Store};

/// An operation of a store that is sent in batches.
pub(crate) trait StoreOperation: Sized + Send + Sync + 'static {
    type Store: ?Sized + Send + Sync;
    type Item: Clone + Send + Sync + 'static;
    type Outcome: Send + 'static;
    const DOING: &'static str;
    /// Whether an item may be sent again after a call that may have been applied.
    const REPEATABLE: bool;
    /// Whether an item is sent although its caller left before that.
    const OUTLIVES_CALLER: bool = false;

    /// Calls the store. A panic in the store's code is an error of this call.
    fn call(store: Arc<Self::Store>, items: Vec<Self::Item>) -> BoxFuture<'static, Batch<Self::Outcome>>;

    /// The same for a lone item, without a vector.
    fn call_one(store: Arc<Self::Store>, item: Self::Item) -> BoxFuture<'static, Batch<Self::Outcome>>;

    /// How long the store keeps, at most, what this item creates.
    fn lifetime(item: &Self::Item) -> Duration;

    /// Undoes an answer that no caller awaits.
    fn orphaned(commands: &CommandChannel, item: Self::Item, answer: Result<Self::Outcome>);
}

#[derive(Debug)]
pub(crate) struct AcquireOperation;

impl StoreOperation for AcquireOperation {
    type Store = dyn LeaseStore;
    type Item = Claim;
    type Outcome = Attempt;
    const DOING: &'static str = "acquire";
    /// The store recognises a repeated claim by its lock id.
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

    fn lifetime(claim: &Claim) -> Duration {
        claim.lasts()
    }

    fn orphaned(commands: &CommandChannel, claim: Claim, answer: Result<Attempt>) {
        let may_be_stored = match answer {
            Ok(Attempt::Granted { .. }) => true,
            Ok(Attempt::Busy { .. }) => claim.waiting.is_some(),
            Err(error) => error.is_outcome_unknown(),
        };
        if may_be_stored {
            // The caller that left the claim counts it as a pending release already.
            commands.send(Command::Withdraw(claim, None));
        }
    }
}

#[derive(Debug)]
pub(crate) struct ReleaseOperation;

impl StoreOperation for ReleaseOperation {
    type Store = dyn LeaseStore;
    type Item = Lease;
    type Outcome = Released;
    const DOING: &'static str = "release";
    /// A second release of a lease that the first call released would be reported as lost.
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

    fn lifetime(lease: &Lease) -> Duration {
        lease.expiry
    }

    /// Nothing to undo: a caller that cancels a release sends the lease to the background task, which completes it.
    fn orphaned(_: &CommandChannel, _: Lease, _: Result<Released>) {}
}

/// The error of a request without an answer. The request is still in flight.
pub(crate) fn no_answer<O: StoreOperation>(after: Duration) -> Error {
    Error::new(ErrorKind::Unavailable, format!("no answer within {after:?}"))
        .doing(O::DOING)
        .with_unknown_outcome()
        .with_request_in_flight()
        .advise("check that the store runs and can be reached from here")
}

/// One answer for each item. The error of a whole batch is the error of each item; items that the store did not answer
/// get an error of their own.
pub(super) fn per_item<T>(answers: Batch<T>) -> Box<dyn Iterator<Item = Result<T>> + Send>
where
    T: Send + 'static,
{
    match answers {
        Ok(answers) => Box::new(answers.into_iter().chain(std::iter::repeat_with(|| Err(too_few_answers())))),
        Err(error) => Box::new(std::iter::repeat_with(move || Err(error.clone()))),
    }
}

/// Calls a store. A panic is an error of this call, and the background task goes on with every guard that depends on it.
/// `call` must be an async block around the store's method, since the method may panic before it returns its future.
pub(crate) async fn contained<T>(
    store: &dyn Store,
    doing: &'static str,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    // A store must stay usable after a panic, as after any other error, so unwind safety is asserted.
    AssertUnwindSafe(call).catch_unwind().await.unwrap_or_else(|_| Err(panicked(store, doing)))
}

/// Renews leases. If the call panics, it is repeated with each half of them, and so on, so that one lease that the
/// driver cannot handle does not lose the others of its batch. Repeating is safe: a renewal never takes a lock.
pub(super) async fn contained_renewal(store: &dyn LeaseStore, leases: &[Lease]) -> Batch<Renewal> {
    let mut parts = vec![leases];
    let mut answers = Vec::new();
    while let Some(part) = parts.pop() {
        let end = answers.len() + part.len();
        match contained(store, "renew", async { store.renew(part).await }).await {
            Err(error) if error.is_panic() && part.len() > 1 => {
                let (first, second) = part.split_at(part.len() / 2);
                parts.extend([second, first]);
            }
            answered if part.len() == leases.len() => return answered,
            Ok(answered) => {
                answers.extend(answered.into_iter().take(part.len()));
                answers.resize_with(end, || Err(too_few_answers()));
            }
            Err(error) => answers.resize_with(end, || Err(error.clone())),
        }
    }
    Ok(answers)
}

/// The error leaves out the panic message, which may contain a password; the panic hook has already printed it.
fn panicked(store: &dyn Store, doing: &'static str) -> Error {
    let error = Error::new(ErrorKind::Internal, "the driver of the store panicked")
        .doing(doing)
        .with_unknown_outcome()
        .with_panic()
        .advise("report it with the message of the panic: this is a defect");
    match catch_unwind(AssertUnwindSafe(|| store.describe())) {
        Ok(name) => error.on(name),
        Err(_) => error,
    }
}
