//! First come, first served inside one process: claims that may wait join a pool in the order in which they asked, although
//! each works on a thread of its own.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio_util::sync::CancellationToken;

/// One fair mutex for each pool that claims of this process are about to join.
#[derive(Debug, Default)]
pub(crate) struct LocalFifo(Mutex<HashMap<PathBuf, Arc<AsyncMutex<()>>>>);

/// The right to join the pool. Dropping it admits the next claim.
#[derive(Debug)]
pub(super) struct FifoGuard<'a> {
    fifo: &'a LocalFifo,
    pool: &'a Path,
    guard: Option<OwnedMutexGuard<()>>,
}

impl LocalFifo {
    fn lock(&self) -> MutexGuard<'_, HashMap<PathBuf, Arc<AsyncMutex<()>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all earlier claims of this process have joined the pool. `None`: the claim was withdrawn.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    pub(super) async fn enter<'a>(
        &'a self,
        pool: &'a Path,
        withdraw: &CancellationToken,
    ) -> Option<FifoGuard<'a>> {
        let mutex = Arc::clone(self.lock().entry(pool.to_owned()).or_default());
        // Made before the wait, so that a dropped future cleans up too.
        let mut entered = FifoGuard { fifo: self, pool, guard: None };
        tokio::select! {
            biased;
            () = withdraw.cancelled() => None,
            guard = mutex.lock_owned() => {
                entered.guard = Some(guard);
                Some(entered)
            }
        }
    }
}

impl Drop for FifoGuard<'_> {
    fn drop(&mut self) {
        self.guard = None;
        let mut pools = self.fifo.lock();
        // Every claim that waits for the mutex or has it owns a reference.
        if pools.get(self.pool).is_some_and(|mutex| Arc::strong_count(mutex) == 1) {
            pools.remove(self.pool);
        }
    }
}
