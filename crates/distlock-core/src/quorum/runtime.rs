//! The runtime that a quorum uses. Its calls outlive their callers: a failed attempt is undone, and failed releases are
//! retried, also when the caller's runtime has ended.

use std::future::Future;
use std::sync::{Mutex, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, ErrorKind};
use crate::store::Batch;

/// The runtime that the quorum was created on. If there was none, or it has ended, the first one that uses the quorum.
#[derive(Debug, Default)]
pub(super) struct QuorumRuntime(Mutex<Option<WatchedRuntime>>);

#[derive(Debug)]
struct WatchedRuntime {
    runtime: Handle,
    /// Cancelled when that runtime ends.
    ended: CancellationToken,
    /// Ends the task that watches the runtime when the quorum is dropped.
    _watch: oneshot::Sender<()>,
}

impl WatchedRuntime {
    fn on(runtime: Handle) -> Self {
        let (watch, quorum_dropped) = oneshot::channel();
        let ended = CancellationToken::new();
        let cancel_on_drop = ended.clone().drop_guard();
        // A runtime that ends drops its tasks.
        runtime.spawn(async move {
            let _cancel_on_drop = cancel_on_drop;
            let _ = quorum_dropped.await;
        });
        WatchedRuntime { runtime, ended, _watch: watch }
    }
}

impl QuorumRuntime {
    /// Uses the current runtime, if there is one.
    pub(super) fn new() -> Self {
        QuorumRuntime(Mutex::new(Handle::try_current().ok().map(WatchedRuntime::on)))
    }

    /// The quorum's runtime, if it is not the current one. Without a live runtime, the quorum uses the current one.
    pub(super) fn other_than_current(&self) -> Option<OtherRuntime> {
        let current = Handle::try_current().ok();
        let mut own = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if own.as_ref().is_none_or(|watched| watched.ended.is_cancelled()) {
            *own = current.map(WatchedRuntime::on);
            return None;
        }
        let watched = own.as_ref()?;
        let is_current = current.is_some_and(|current| current.id() == watched.runtime.id());
        (!is_current).then(|| OtherRuntime(watched.runtime.clone()))
    }
}

/// The quorum's runtime, which is not the current one.
pub(super) struct OtherRuntime(Handle);

impl OtherRuntime {
    /// Runs the work there to completion, whether or not its result is awaited.
    pub(super) async fn run<T: Send + 'static>(
        self,
        work: impl Future<Output = Batch<T>> + Send + 'static,
    ) -> Batch<T> {
        let (reply, answer) = oneshot::channel();
        self.0.spawn(async move {
            let _ = reply.send(work.await);
        });
        answer.await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Unavailable, "the runtime that the quorum was created on has ended")
                .with_unknown_outcome()
                .advise("create the quorum on the runtime that is in use"))
        })
    }
}
