//! Panics in a store's code: each is an error of the one call that panicked.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};

use futures_util::FutureExt;

use super::verbs::too_few;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Batch, Lease, LeaseStore, Renewal, Store};

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

/// Renews leases. If that panics, it is repeated with the first and the second half of them, and so on: leases that are in
/// one batch by chance are not lost with the one that the driver cannot stand. A renewal may be repeated: it never takes
/// what is not held.
pub(super) async fn contained_renewal(store: &dyn LeaseStore, leases: &[Lease]) -> Batch<Renewal> {
    let mut parts = vec![leases];
    let mut answers = Vec::new();
    while let Some(part) = parts.pop() {
        let end = answers.len() + part.len();
        match contained(store, "extend", async { store.renew(part).await }).await {
            Err(error) if error.is_panic() && part.len() > 1 => {
                let (first, second) = part.split_at(part.len() / 2);
                parts.extend([second, first]);
            }
            answered if part.len() == leases.len() => return answered,
            Ok(answered) => {
                answers.extend(answered.into_iter().take(part.len()));
                answers.resize_with(end, || Err(too_few()));
            }
            Err(error) => answers.resize_with(end, || Err(error.clone())),
        }
    }
    Ok(answers)
}

/// The panic hook has reported the message, which may contain anything, a password included: it stays out of the error.
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
