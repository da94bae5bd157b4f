//! The runtime that a quorum works on. Its calls outlive their callers: an attempt that failed is undone, and nodes that do
//! not give back are asked again, also when the runtime of the caller has ended.

use std::future::Future;
use std::sync::{Mutex, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, ErrorKind};
use crate::store::Batch;

/// The runtime that the quorum was made on; if there was none or it has ended, the first one that uses the quorum.
#[derive(Debug, Default)]
pub(super) struct QuorumRuntime(Mutex<Option<WatchedRuntime>>);

#[derive(Debug)]
struct WatchedRuntime {
    runtime: Handle,
    /// Cancelled when that runtime ends.
    ended: CancellationToken,
    /// Dropped with the quorum: ends the task that watches the runtime.
    _watch: oneshot::Sender<()>,
}

impl WatchedRuntime {
    fn on(runtime: Handle) -> Self {
        let (watch, gone) = oneshot::channel();
        let ended = CancellationToken::new();
        let notice = ended.clone().drop_guard();
        // A runtime that ends drops its tasks.
        runtime.spawn(async move {
            let _notice = notice;
            let _ = gone.await;
        });
        WatchedRuntime { runtime, ended, _watch: watch }
    }
}

impl QuorumRuntime {
    /// Settles on the current runtime, if there is one.
    pub(super) fn new() -> Self {
        QuorumRuntime(Mutex::new(Handle::try_current().ok().map(WatchedRuntime::on)))
    }

    /// The home, if that is another runtime than the current one. Settles on the current one if there is no home.
    pub(super) fn other_than_current(&self) -> Option<OtherRuntime> {
        let current = Handle::try_current().ok();
        let mut home = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if home.as_ref().is_none_or(|settled| settled.ended.is_cancelled()) {
            *home = current.map(WatchedRuntime::on);
            return None;
        }
        let settled = home.as_ref()?;
        let is_current = current.is_some_and(|current| current.id() == settled.runtime.id());
        (!is_current).then(|| OtherRuntime(settled.runtime.clone()))
    }
}

/// A home that is not the current runtime.
pub(super) struct OtherRuntime(Handle);

impl OtherRuntime {
    /// Does the work there, to its end, whether or not the answer is awaited.
    pub(super) async fn run<T: Send + 'static>(
        self,
        work: impl Future<Output = Batch<T>> + Send + 'static,
    ) -> Batch<T> {
        let (reply, answer) = oneshot::channel();
        self.0.spawn(async move {
            let _ = reply.send(work.await);
        });
        answer.await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Unavailable, "the runtime that the quorum was made on has ended")
                .with_unknown_outcome()
                .advise("make the quorum on the runtime that is in use"))
        })
    }
}
