//! The mutex: one lock file, and the kernel's lock on it.
//!
//! The holder keeps one descriptor, open for writing, with the exclusive kernel lock. A waiter keeps one descriptor for as
//! long as it waits: closing a descriptor that was open for writing wakes all waiters, so a waiter must not open and close
//! the file for each attempt. A single attempt first reads through a descriptor that is open for reading only.
//!
//! Lock files are never unlinked. If another program unlinks one, the next client that locks it finds another file at the
//! path and starts again, and the holder's session ends.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::File;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use distlock_core::store::{Claim, Session};
use distlock_core::{FencingToken, Result};
use tokio_util::sync::CancellationToken;

use crate::backoff::{Backoff, PauseEnd};
use crate::error::{io_error, unreadable_owner};
use crate::folder::Folder;
use crate::format::{Owner, OwnerBlock};
use crate::holds::HeldMutex;
use crate::layout::{FileId, split};
use crate::lock_file::{CountedToken, LockFile, is_locked, is_marked_free, mark_free, read_owner};
use crate::names;
use crate::store::StoreState;
use crate::tokens::{BootId, LastToken};
use crate::waiter_files::WaiterFile;
use crate::watch::{FileWatch, WatchScope};

/// How long a single attempt retries while a free lock is only inspected. An inspection locks the file for microseconds,
/// unless the inspecting process is paused just then.
const INSPECTION_LIMIT: Duration = Duration::from_millis(200);

/// How often a waiter looks at a lock that is kept for a minimum hold time.
const KEPT_CHECK: Duration = Duration::from_millis(200);

/// A held mutex. Dropping it releases it, but for the rest of its minimum hold time: then the owner block stays. A process may
/// have many of them, so its size matters.
#[derive(Debug)]
pub(crate) struct MutexHold {
    file: File,
    /// It has a minimum hold time, which ends later than the hold unless it was released.
    is_kept: bool,
    /// Whether the last token counts until this kernel ends.
    has_boot: bool,
    /// See [`CountedToken`].
    ahead: Option<NonZeroU32>,
    token: FencingToken,
    device: u32,
    inode: u64,
    name: Arc<str>,
    pub(crate) session: Session,
}

impl MutexHold {
    pub(crate) fn token(&self) -> FencingToken {
        self.token
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// What the watcher needs to know.
    pub(crate) fn held_mutex(&self) -> HeldMutex {
        let id = FileId { device: self.device, inode: self.inode };
        HeldMutex { name: Arc::clone(&self.name), id, session: self.session.clone() }
    }

    /// Releases it at once.
    pub(crate) fn free(mut self) {
        self.is_kept = false;
    }
}

impl Drop for MutexHold {
    fn drop(&mut self) {
        if !(self.is_kept && read_owner(&self.file).is_some_and(|owner| owner.kept_for().is_some())) {
            let boot = BootId::current().filter(|_| self.has_boot);
            let counted = CountedToken { token: self.token, ahead: self.ahead };
            mark_free(&self.file, counted.last(boot).as_ref());
        }
        // Unlock before closing, which wakes the waiters: they must find the lock free. The lock is then also free if
        // another process has a copy of the descriptor.
        let _ = self.file.unlock();
    }
}

/// One acquisition; cloned into the threads that work on files.
#[derive(Clone)]
struct MutexClaim {
    state: Arc<StoreState>,
    claim: Claim,
    path: PathBuf,
}

/// The outcome of one attempt to lock.
enum MutexAttempt {
    Granted(MutexHold),
    /// Held by another client; the open file to wait with.
    Busy(LockFile),
    /// Not locked, but its last holder keeps it for this long. The file is not locked any more.
    Kept(LockFile, Duration),
}

/// The outcome of an attempt that waits for no disk.
enum QuickAttempt {
    Granted(MutexHold),
    /// Held by another client; the open file to wait with.
    Busy(LockFile),
    /// Held by another client, and the claim does not wait.
    Held,
    /// Locked by us; the grant may have to wait for the disk.
    Locked(LockFile),
    /// The usual attempt is needed.
    Undecided,
}

/// The outcome of a grant that waits for no disk.
enum QuickGrant {
    Granted(MutexHold),
    /// It needs the disk, or the file is not in place, or its last holder keeps it.
    Unfinished(LockFile),
}

/// How many claims a thread serves before it lets other tasks run. A free lock is granted without waiting for anything, so a task
/// that acquires in a loop would keep its thread to itself. Measured with 256 tasks: 16 give the same rate, and a 99th percentile
/// three times as high; one gives a lower rate.
const IN_A_ROW: u32 = 4;

/// Lets other tasks run from time to time.
async fn pace() {
    thread_local!(static SERVED: Cell<u32> = const { Cell::new(0) });
    let served = SERVED.get() + 1;
    SERVED.set(served % IN_A_ROW);
    if served == IN_A_ROW {
        tokio::task::yield_now().await;
    }
}

/// Acquires a mutex; `None` if the claim was withdrawn. A claim that is withdrawn from the start makes a single attempt.
///
/// A free lock is granted in the calling thread: that takes a few system calls, none of which waits for a disk. What may wait runs
/// on a thread that may block.
pub(crate) async fn acquire(
    state: &Arc<StoreState>,
    claim: &Claim,
    withdraw: &CancellationToken,
) -> Result<Option<MutexHold>> {
    pace().await;
    let path = state.layout.mutex(claim.resource.name());
    let mutex = MutexClaim { state: Arc::clone(state), claim: claim.clone(), path };
    let once = withdraw.is_cancelled();
    let first = match mutex.attempt_quickly(once)? {
        QuickAttempt::Granted(hold) => return Ok(Some(hold)),
        QuickAttempt::Held => return Ok(None),
        QuickAttempt::Busy(file) => Some(MutexAttempt::Busy(file)),
        QuickAttempt::Locked(file) => {
            let mutex = mutex.clone();
            Some(state.threads.run(move || mutex.grant(file)).await?)
        }
        QuickAttempt::Undecided => None,
    };
    let first = match first {
        Some(MutexAttempt::Granted(hold)) => return Ok(Some(hold)),
        Some(MutexAttempt::Kept(..)) if once => return Ok(None),
        _ if once => return state.threads.run(move || mutex.attempt_once()).await,
        Some(first) => first,
        None => {
            let mutex = mutex.clone();
            state.threads.run(move || mutex.attempt_first()).await?
        }
    };
    let mut file = match first {
        MutexAttempt::Granted(hold) => return Ok(Some(hold)),
        MutexAttempt::Busy(file) | MutexAttempt::Kept(file, _) => file,
    };
    let waiter_file = {
        let mutex = mutex.clone();
        state.threads.run(move || Ok(WaiterFile::create(&mutex.state, &mutex.claim))).await?
    };
    let mut backoff = Backoff::new();
    let mut watched: Option<(PathBuf, Option<FileWatch>)> = None;
    let mut last_holder = None;
    loop {
        if file.try_lock()? {
            match mutex.grant_locked(file).await? {
                MutexAttempt::Granted(hold) => {
                    // Both take system calls that wake other threads, so they end when the caller has its lock.
                    state.watcher.drop_soon((waiter_file, watched));
                    return Ok(Some(hold));
                }
                MutexAttempt::Busy(reopened) => file = reopened,
                MutexAttempt::Kept(same, left) => {
                    file = same;
                    // In pieces: another program may remove the file.
                    let pause = tokio::time::sleep(left.min(KEPT_CHECK));
                    tokio::select! {
                        biased;
                        () = withdraw.cancelled() => return Ok(None),
                        () = pause => {}
                    }
                }
            }
            watched = None;
            continue;
        }
        if !file.is_in_place()? {
            file = mutex.reopen()?;
            watched = None;
            continue;
        }
        if watched.as_ref().is_none_or(|(path, _)| path != file.path()) {
            // Only the first waiters watch the lock file: see `waiter_files`. A waiter that does keeps doing so.
            let predecessor = waiter_file.as_ref().and_then(|waiter| waiter.predecessor().ok()).flatten();
            let target = predecessor.unwrap_or_else(|| file.path().to_owned());
            if watched.as_ref().is_none_or(|(path, _)| *path != target) {
                let watch = state.watcher.watch(&target, WatchScope::File);
                watched = Some((target, watch));
                // Try again: changes before the watch began are not reported.
                continue;
            }
        }
        // Woken and still busy. If the file names a new holder, another client was faster. If it names the same one, that
        // process may be dying right now, and a quick retry pays.
        let holder = file.owner().and_then(|owner| owner.token);
        if holder != last_holder {
            backoff.relax();
            last_holder = holder;
        }
        let watch = watched.as_ref().and_then(|(_, watch)| watch.as_ref());
        if backoff.pause(watch, withdraw).await == PauseEnd::Withdrawn {
            return Ok(None);
        }
    }
}

impl MutexClaim {
    /// Opens the file. It may not be in place.
    fn open(&self) -> Result<LockFile> {
        LockFile::open_mutex(&self.state.layout, &self.path)
    }

    /// Opens the file again, because it was not in place.
    fn reopen(&self) -> Result<LockFile> {
        self.state.layout.forget_mutexes();
        self.open()
    }

    /// An attempt that waits for no disk, if the lock was used before and its folder is on a local file system.
    fn attempt_quickly(&self, once: bool) -> Result<QuickAttempt> {
        self.state.watcher.start();
        let layout = &self.state.layout;
        let Some(folder) = layout.known_mutexes().filter(|_| self.state.boot.is_some()) else {
            return Ok(QuickAttempt::Undecided);
        };
        if once {
            match self.is_held_in(&folder) {
                Some(true) => return Ok(QuickAttempt::Held),
                Some(false) => {}
                None => return Ok(QuickAttempt::Undecided),
            }
        }
        // It may be missing, and so may the folder.
        let Ok(file) = LockFile::open_existing(layout, &folder, &self.path) else {
            return Ok(QuickAttempt::Undecided);
        };
        if file.try_lock()? {
            return Ok(match self.grant_quickly(file)? {
                QuickGrant::Granted(hold) => QuickAttempt::Granted(hold),
                QuickGrant::Unfinished(file) => QuickAttempt::Locked(file),
            });
        }
        Ok(if once { QuickAttempt::Undecided } else { QuickAttempt::Busy(file) })
    }

    /// Whether the lock is held, by its file in this folder. `None`: the file is missing or not in place.
    fn is_held_in(&self, folder: &Folder) -> Option<bool> {
        let file = folder.open_read_only(split(&self.path).ok()?.1, &self.path).ok()?;
        let is_held = is_locked(&file).ok()?;
        (!is_held || FileId::at(&self.path).ok()? == FileId::of(&file).ok()).then_some(is_held)
    }

    /// The first attempt of a claim that may wait.
    fn attempt_first(&self) -> Result<MutexAttempt> {
        let file = self.open()?;
        if file.try_lock()? { self.grant(file) } else { Ok(MutexAttempt::Busy(file)) }
    }

    /// The only attempt of a claim that does not wait. `None` only if the lock is held: an inspection, as by `distlock ls`,
    /// does not count.
    fn attempt_once(&self) -> Result<Option<MutexHold>> {
        if self.is_held()? {
            return Ok(None);
        }
        let give_up = Instant::now() + INSPECTION_LIMIT;
        let mut file = self.open()?;
        loop {
            if file.try_lock()? {
                match self.grant(file)? {
                    MutexAttempt::Granted(hold) => return Ok(Some(hold)),
                    MutexAttempt::Busy(reopened) => file = reopened,
                    MutexAttempt::Kept(..) => return Ok(None),
                }
                continue;
            }
            if !file.is_in_place()? {
                file = self.reopen()?;
                continue;
            }
            let held = !file.try_lock_shared()?;
            if held || Instant::now() >= give_up {
                return Ok(None);
            }
            file.unlock();
            std::thread::sleep(Duration::from_micros(fastrand::u64(20..200)));
        }
    }

    fn is_held(&self) -> Result<bool> {
        let file = self.state.layout.open_read_only(&self.path);
        let held = file.and_then(|file| file.map_or(Ok(false), |file| is_locked(&file)));
        held.map_err(|error| io_error(error, "read the lock file", &self.path))
    }

    /// Turns a locked file into a hold, if that needs no disk.
    fn grant_quickly(&self, file: LockFile) -> Result<QuickGrant> {
        let is_hashed = self.path.file_name().and_then(OsStr::to_str).is_none_or(names::is_hashed);
        if self.state.boot.is_none() || is_hashed {
            return Ok(QuickGrant::Unfinished(file));
        }
        let file = file.with_high_descriptor(&self.state.watcher);
        if !file.is_in_place()? {
            return Ok(QuickGrant::Unfinished(file));
        }
        let content = file.content()?;
        if content.owner.as_ref().and_then(Owner::kept_for).is_some() {
            return Ok(QuickGrant::Unfinished(file));
        }
        let counted = file.next_token_below_ceiling(&content, self.state.boot, self.owner_block())?;
        Ok(match counted {
            Some(counted) => QuickGrant::Granted(self.hold(file, counted)),
            None => QuickGrant::Unfinished(file),
        })
    }

    /// Turns a locked file into a hold, on another thread if that needs the disk.
    async fn grant_locked(&self, file: LockFile) -> Result<MutexAttempt> {
        match self.grant_quickly(file)? {
            QuickGrant::Granted(hold) => Ok(MutexAttempt::Granted(hold)),
            QuickGrant::Unfinished(file) => {
                let mutex = self.clone();
                self.state.threads.run(move || mutex.grant(file)).await
            }
        }
    }

    fn owner_block(&self) -> impl FnOnce(FencingToken, Option<&LastToken>) -> OwnerBlock {
        |token, last| self.state.owner(&self.claim, Some(token)).block_with(last)
    }

    fn hold(&self, file: LockFile, counted: CountedToken) -> MutexHold {
        // A file that was unlinked since it was found in place is noticed by the watcher.
        let (FileId { device, inode }, CountedToken { token, ahead }) = (file.id(), counted);
        MutexHold {
            device,
            inode,
            file: file.into_file(),
            is_kept: !self.claim.hold_at_least.is_zero(),
            has_boot: self.state.boot.is_some(),
            name: self.claim.resource.shared_name(),
            token,
            ahead,
            session: Session::new(),
        }
    }

    /// Turns a locked file into a hold. `Busy` with the new file if this one was unlinked or replaced.
    fn grant(&self, file: LockFile) -> Result<MutexAttempt> {
        let file = file.with_high_descriptor(&self.state.watcher);
        if !file.is_in_place()? {
            return self.reopen().map(MutexAttempt::Busy);
        }
        let content = file.content()?;
        if let Some(left) = content.owner.as_ref().and_then(Owner::kept_for) {
            file.unlock();
            return Ok(MutexAttempt::Kept(file, left));
        }
        let name = self.claim.resource.name();
        let counted = file.next_token(name, &content, self.state.boot, self.owner_block())?;
        Ok(MutexAttempt::Granted(self.hold(file, counted)))
    }
}

/// The holder of a mutex, from its lock file opened read-only. What a dead holder left in the file is not reported.
pub(crate) fn holder(file: &File, path: &Path) -> Result<Option<Owner>> {
    // A lock that is marked free is not touched. The owner is read after the lock was found held: read before, it could be
    // the previous holder.
    let failed = |error| io_error(error, "read the lock file", path);
    if is_marked_free(file) {
        return Ok(None);
    }
    if !is_locked(file).map_err(failed)? {
        return Ok(read_owner(file).filter(|owner| owner.kept_for().is_some()));
    }
    match read_owner(file) {
        Some(owner) => Ok(Some(owner)),
        // Released just now, or locked by another program.
        None if is_marked_free(file) || !is_locked(file).map_err(failed)? => Ok(None),
        None => Err(unreadable_owner(path)),
    }
}
