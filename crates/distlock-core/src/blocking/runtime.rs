//! The thread that the engine of the blocking API runs on.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};

use crate::error::{Error, ErrorKind, Result};

/// How long the last handle waits for releases that are under way when it is dropped.
const DRAIN: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Blocking {
    /// Both are there until the drop.
    parts: Option<(crate::Locks, Runtime)>,
}

fn refuse_inside_a_runtime() -> Result<()> {
    if Handle::try_current().is_ok() {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            "the blocking API was called inside an async runtime",
        )
        .advise("use the async API there, or a thread of your own"));
    }
    Ok(())
}

impl Blocking {
    pub(super) fn start(connecting: impl Future<Output = Result<crate::Locks>>) -> Result<Self> {
        refuse_inside_a_runtime()?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("distlock")
            .enable_all()
            .build()
            .map_err(|error| {
                Error::new(ErrorKind::Exhausted, "no background thread can be started").caused_by(error)
            })?;
        let locks = runtime.block_on(connecting)?;
        Ok(Blocking { parts: Some((locks, runtime)) })
    }

    fn parts(&self) -> &(crate::Locks, Runtime) {
        match &self.parts {
            Some(parts) => parts,
            None => unreachable!("taken only by the drop"),
        }
    }

    pub(super) fn locks(&self) -> &crate::Locks {
        &self.parts().0
    }

    /// Blocks the thread until the future is done.
    pub(super) fn wait<F: Future>(&self, future: F) -> Result<F::Output> {
        refuse_inside_a_runtime()?;
        Ok(self.parts().1.block_on(future))
    }
}

impl Drop for Blocking {
    fn drop(&mut self) {
        let Some((locks, runtime)) = self.parts.take() else { return };
        let shared = Arc::clone(&locks.engine.shared);
        drop(locks);
        if Handle::try_current().is_err() {
            // The engine's task ends when everything that was dropped has been released.
            let _ = runtime.block_on(async { tokio::time::timeout(DRAIN, shared.ended()).await });
        }
        runtime.shutdown_background();
    }
}
