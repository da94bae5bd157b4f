//! The pool: weighted holders and a first-come queue. It serves reader-writer locks, semaphores, and the queue of a fair
//! mutex.
//!
//! The state of a pool is the content of two folders, `hold` and `queue`: one file (a *slot*) for each claim, locked by its
//! owner for as long as it lives. The name of a slot has its place in the order, its weight and the capacity. No other
//! record could contradict it. A claim is granted if its weight and the weights in `hold` fit the capacity and no live
//! waiter is before it in `queue`.
//!
//! Creating a slot, moving one from `queue` to `hold` and removing that of a dead owner needs the *pool lock*: a short
//! kernel lock on the file `gate`, never held while waiting. Owners remove their own slots without it, since that only frees.
//!
//! Only the queue head watches the holders; every other waiter watches its predecessor. So a release wakes one waiter,
//! however many there are.

mod claim;
mod folders;
mod local_fifo;
mod slot;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use distlock_core::store::{Claim, Session};
use distlock_core::{Error, ErrorKind, FencingToken, Result};
use tokio_util::sync::CancellationToken;

use crate::backoff::{Backoff, PauseEnd};
use crate::store::StoreState;
use crate::watch::{FileWatch, HoldWatch, WatchScope};
use claim::{Advanced, Blocker, Joined, PoolClaim};
pub(crate) use local_fifo::LocalFifo;
use slot::Slot;
pub(crate) use slot::holders_and_waiters;

/// How long a step waits for the pool lock before it checks whether the claim was withdrawn.
const POOL_LOCK_LIMIT: Duration = Duration::from_millis(50);

/// How long a single attempt waits for the pool lock. A step takes one disk write; the lock stays taken for this long only
/// if a process is paused while it has it.
const POOL_LOCK_LIMIT_ONCE: Duration = Duration::from_secs(2);

/// After how long a waiter logs that it cannot take the pool lock.
const WARN_AFTER: Duration = Duration::from_secs(5);

/// The paths of a pool.
#[derive(Clone, Debug)]
pub(crate) struct PoolPaths {
    dir: PathBuf,
    gate: PathBuf,
    queue: PathBuf,
    hold: PathBuf,
}

impl PoolPaths {
    pub(crate) fn new(dir: PathBuf) -> Self {
        PoolPaths { gate: dir.join("gate"), queue: dir.join("queue"), hold: dir.join("hold"), dir }
    }

    pub(crate) fn gate(&self) -> &Path {
        &self.gate
    }
}

/// A held part of a pool. Dropping it releases it.
#[derive(Debug)]
pub(crate) struct PoolHold {
    // Dropped in this order: the slot must not be watched while it is removed.
    _hold_watch: HoldWatch,
    slot: Slot,
    pub(crate) token: FencingToken,
    pub(crate) session: Session,
}

impl PoolHold {
    /// Releases it at once.
    pub(crate) fn free(mut self) {
        self.slot.free();
    }

    pub(crate) fn file(&self) -> &File {
        self.slot.file()
    }
}

/// Acquires a part of a pool; `None` if the claim was withdrawn. A claim that is withdrawn from the start makes a single
/// attempt.
pub(crate) async fn acquire(
    state: &Arc<StoreState>,
    claim: &Claim,
    withdraw: &CancellationToken,
) -> Result<Option<PoolHold>> {
    let once = withdraw.is_cancelled();
    let paths = PoolPaths::new(state.layout.pool(claim.resource.kind(), claim.resource.name()));
    let pool = PoolClaim { state: Arc::clone(state), claim: claim.clone(), paths: paths.clone() };
    let mut backoff = Backoff::new();
    let mut warning = StuckWarning::new();
    let mut fifo_guard = None;
    loop {
        if !once && fifo_guard.is_none() {
            fifo_guard = state.local_fifo.enter(&paths.dir, withdraw).await;
            if fifo_guard.is_none() {
                return Ok(None);
            }
        }
        let joined = {
            let pool = pool.clone();
            let limit = if once { POOL_LOCK_LIMIT_ONCE } else { POOL_LOCK_LIMIT };
            state.threads.run(move || pool.join(!once, limit)).await?
        };
        match joined {
            Joined::Granted(hold) => return Ok(Some(hold)),
            Joined::Busy => return Ok(None),
            Joined::Queued(slot) => {
                fifo_guard = None;
                match wait(&pool, slot, &mut warning, withdraw).await? {
                    WaitEnd::Granted(hold) => return Ok(Some(hold)),
                    WaitEnd::Withdrawn => return Ok(None),
                    // Another program removed our slot: join again.
                    WaitEnd::Displaced => {}
                }
            }
            Joined::LockStuck if once => return Err(stuck(&paths.gate)),
            Joined::LockStuck => {
                warning.log_if_due(&paths.gate);
                if backoff.pause(None, withdraw).await == PauseEnd::Withdrawn {
                    return Ok(None);
                }
            }
        }
    }
}

enum WaitEnd {
    Granted(PoolHold),
    Withdrawn,
    Displaced,
}

async fn wait(
    pool: &PoolClaim,
    mut slot: Slot,
    warning: &mut StuckWarning,
    withdraw: &CancellationToken,
) -> Result<WaitEnd> {
    let mut backoff = Backoff::new();
    let mut watched: Option<(Blocker, Option<FileWatch>)> = None;
    loop {
        let advanced = {
            let (pool, threads) = (pool.clone(), &pool.state.threads);
            threads.run(move || pool.advance(slot, POOL_LOCK_LIMIT)).await?
        };
        match advanced {
            Advanced::Granted(hold) => return Ok(WaitEnd::Granted(hold)),
            Advanced::Displaced => return Ok(WaitEnd::Displaced),
            Advanced::LockStuck(same) => {
                slot = same;
                warning.log_if_due(&pool.paths.gate);
                backoff.hurry();
            }
            Advanced::Blocked(same, blocker) => {
                slot = same;
                warning.reset();
                if watched.as_ref().is_none_or(|(watched, _)| *watched != blocker) {
                    let watcher = &pool.state.watcher;
                    let watch = match &blocker {
                        Blocker::Predecessor(path) => watcher.watch(path, WatchScope::File),
                        Blocker::Holders => watcher.watch(&pool.paths.hold, WatchScope::Folder),
                    };
                    watched = Some((blocker, watch));
                    // Try again: changes before the watch began are not reported.
                    continue;
                }
            }
        }
        let watch = watched.as_ref().and_then(|(_, watch)| watch.as_ref());
        if backoff.pause(watch, withdraw).await == PauseEnd::Withdrawn {
            return Ok(WaitEnd::Withdrawn);
        }
    }
}

/// Warns once if the pool lock stays taken: since when it is, or `None` after the warning.
struct StuckWarning(Option<Instant>);

impl StuckWarning {
    fn new() -> Self {
        StuckWarning(Some(Instant::now()))
    }

    fn reset(&mut self) {
        self.0 = Some(Instant::now());
    }

    fn log_if_due(&mut self, gate: &Path) {
        if self.0.is_some_and(|since| since.elapsed() > WARN_AFTER) {
            tracing::warn!(gate = %gate.display(), "the lock of a pool stays taken: is the process that has it paused?");
            self.0 = None;
        }
    }
}

fn stuck(gate: &Path) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{} stays locked by another process", gate.display())).advise(
        "that process is paused in the middle of a step (find it with fuser or lsof): resume it or end it",
    )
}
