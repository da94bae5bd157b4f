//! Panics in a store's code: each is an error of the one call that panicked.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};

use futures_util::FutureExt;

use crate::error::{Error, ErrorKind, Result};
use crate::store::Store;

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
