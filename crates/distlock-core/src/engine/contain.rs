//! Panics in a store's code: each is an error of the one call that panicked, and in a batch of the one item.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};

use futures_core::future::BoxFuture;
use futures_util::FutureExt;

use super::verbs::too_few;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Batch, LeaseStore, Store};

/// A verb of a lease store.
type Call<I, T> = for<'a> fn(&'a dyn LeaseStore, &'a [I]) -> BoxFuture<'a, Batch<T>>;

/// A call of a store. If it panics, that is an error of this call: the engine's task, and every guard that depends on
/// it, goes on. `call` must be an async block around the store's method: the method itself may panic before it has made
/// its future.
pub(crate) async fn contained<T>(
    store: &dyn Store,
    doing: &'static str,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    // What the panic left behind in the store is the store's affair: it is called again like after any other error.
    AssertUnwindSafe(call).catch_unwind().await.unwrap_or_else(|_| Err(panicked(store, doing)))
}

/// A call of a verb that may be repeated. If it panics, it is repeated with the first and the second half of its items,
/// and so on: the items that are in one batch by chance do not fail with the one that the driver cannot stand.
pub(super) async fn contained_batch<I, T>(
    store: &dyn LeaseStore,
    doing: &'static str,
    items: &[I],
    call: Call<I, T>,
) -> Batch<T> {
    let caught = |part| AssertUnwindSafe(async move { call(store, part).await }).catch_unwind();
    match caught(items).await {
        Ok(answers) => return answers,
        Err(_) if items.len() <= 1 => return Err(panicked(store, doing)),
        Err(_) => {}
    }
    let (first, second) = items.split_at(items.len() / 2);
    let mut parts = vec![second, first];
    let mut answers = Vec::with_capacity(items.len());
    while let Some(part) = parts.pop() {
        let end = answers.len() + part.len();
        match caught(part).await {
            Ok(Ok(answered)) => {
                answers.extend(answered.into_iter().take(part.len()));
                answers.resize_with(end, || Err(too_few()));
            }
            Ok(Err(error)) => answers.resize_with(end, || Err(error.clone())),
            Err(_) if part.len() > 1 => {
                let (first, second) = part.split_at(part.len() / 2);
                parts.extend([second, first]);
            }
            Err(_) => answers.push(Err(panicked(store, doing))),
        }
    }
    Ok(answers)
}

/// The panic hook has reported the message, which may contain anything, a password included: it stays out of the error.
fn panicked(store: &dyn Store, doing: &'static str) -> Error {
    let error = Error::new(ErrorKind::Internal, "the driver of the store panicked")
        .doing(doing)
        .with_unknown_outcome()
        .advise("report it with the message of the panic: this is a defect");
    match catch_unwind(AssertUnwindSafe(|| store.describe())) {
        Ok(name) => error.on(name),
        Err(_) => error,
    }
}
