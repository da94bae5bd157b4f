//! The commands, one file each.

pub(crate) mod bench;
pub(crate) mod break_lock;
pub(crate) mod completions;
pub(crate) mod doctor;
pub(crate) mod ls;
pub(crate) mod run;
pub(crate) mod schema;
pub(crate) mod show;
mod watch;

use std::future::Future;

use crate::exit::Failure;

/// Runs the async work of a command; `run` and `bench` have their own runtime.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(crate::exit::UNAVAILABLE, format!("cannot start: {error}")))?;
    crate::warnings::show();
    let result = runtime.block_on(work);
    // Dropping the runtime would wait for the blocking threads of the store.
    runtime.shutdown_background();
    result
}
