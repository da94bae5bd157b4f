//! The thread that the engine of the blocking API runs on.

use std::future::Future;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio_util::sync::CancellationToken;

use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};

/// How long the last handle waits for releases in flight when it is dropped.
const DRAIN: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Blocking {
    /// Both are there until the drop.
    parts: Option<(crate::Locks, Runtime)>,
}

fn refuse_inside_a_runtime() -> Result<()> {
    let what = match Handle::try_current() {
        Ok(_) => "the blocking API was called inside an async runtime",
        Err(error) if error.is_thread_local_destroyed() => {
            "the blocking API was called by a thread that is ending"
        }
        Err(_) => return Ok(()),
    };
    Err(Error::new(ErrorKind::InvalidInput, what).advise("use the async API there, or a thread of your own"))
}

/// Where nothing may block.
fn inside_a_runtime() -> bool {
    Handle::try_current().is_ok()
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

    /// Leaves work to the engine's thread, and blocks until it is done, this long at most. Inside an async runtime, where
    /// nothing may block, it does not wait.
    ///
    /// It enters no runtime: a guard may be dropped by a thread-local, after those of the runtime are gone.
    pub(super) fn wait_in_background(
        &self,
        engine: &Engine,
        limit: Duration,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        let done = Arc::new(Done::default());
        let tell = TellDone(Arc::clone(&done));
        engine.leave(Box::pin(async move {
            let _tell = tell;
            work.await;
        }));
        if !inside_a_runtime() {
            done.wait(limit);
        }
    }
}

impl Drop for Blocking {
    fn drop(&mut self) {
        let Some((locks, runtime)) = self.parts.take() else { return };
        let shared = locks.started().map(|engine| Arc::clone(&engine.shared));
        drop(locks);
        if let Some(shared) = shared.filter(|_| !inside_a_runtime()) {
            // The engine's task ends when everything that was dropped has been released.
            shared.wait_for_end(DRAIN);
        }
        runtime.shutdown_background();
    }
}

/// How the calls of a handle wait: on which runtime, and what cancels them.
#[derive(Clone, Debug)]
pub(super) struct Waits {
    pub(super) blocking: Arc<Blocking>,
    cancel: Option<CancellationToken>,
}

impl Waits {
    pub(super) fn new(blocking: Arc<Blocking>) -> Self {
        Waits { blocking, cancel: None }
    }

    pub(super) fn cancelled_by(self, token: &CancellationToken) -> Self {
        Waits { cancel: Some(token.clone()), ..self }
    }

    /// Blocks the thread until the future is done, or until the wait is cancelled: then the future is dropped.
    pub(super) fn wait<T>(&self, future: impl Future<Output = Result<T>>) -> Result<T> {
        let Some(cancel) = &self.cancel else { return self.blocking.wait(future)? };
        self.blocking.wait(async {
            tokio::select! {
                biased;
                outcome = future => outcome,
                () = cancel.cancelled() => Err(Error::new(ErrorKind::Cancelled, "the wait was cancelled")
                    .doing("acquire")
                    .on(self.blocking.locks().store().to_owned())),
            }
        })?
    }
}

/// Told when work is done, or dropped unfinished with the engine's runtime.
#[derive(Debug, Default)]
struct Done {
    done: Mutex<bool>,
    told: Condvar,
}

impl Done {
    fn wait(&self, limit: Duration) {
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.told.wait_timeout_while(done, limit, |done| !*done);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

struct TellDone(Arc<Done>);

impl Drop for TellDone {
    fn drop(&mut self) {
        *self.0.done.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.told.notify_all();
    }
}
