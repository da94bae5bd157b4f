//! The mutex: one lock file, and the kernel's lock on it.
//!
//! The holder keeps one descriptor, open for writing, with the exclusive kernel lock. A waiter keeps one of its own for
//! as long as it waits: closing a descriptor that was open for writing wakes all the others, so a waiter must not open
//! and close with each attempt. A single attempt looks first through a descriptor that is open for reading only.
//!
//! Nobody removes a lock file, so the lock cannot be lost to unlinking. If somebody else does, whoever locks it finds
//! that its path stands for another file and begins again, and whoever holds it loses his session.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use distlock_core::store::{Claim, Session};
use distlock_core::{FencingToken, Result};
use tokio_util::sync::CancellationToken;

use crate::failure::{failure, garbled};
use crate::lockfile::{LockFile, is_locked, read_note, says_free};
use crate::record::Note;
use crate::shared::{Shared, blocking};
use crate::wait::{Pace, Pause};
use crate::waiting::Announcement;
use crate::watch::{HeldFile, Kept, Scope, Watch};

/// How long a single attempt goes on if nobody holds the lock and somebody looks at it. To look takes
/// microseconds, unless the one who looks is stopped just then.
const PATIENCE: Duration = Duration::from_millis(200);

/// A mutex that is held.
#[derive(Debug)]
pub(crate) struct MutexHold {
    file: LockFile,
    kept: Option<Kept>,
    pub(crate) token: FencingToken,
    pub(crate) session: Session,
}

impl MutexHold {
    pub(crate) fn file(&self) -> &File {
        self.file.file()
    }
}

impl Drop for MutexHold {
    fn drop(&mut self) {
        self.kept = None;
        self.file.clear_note();
        // First unlock, then close (which wakes the waiters): so they find it free. And should another process have a
        // copy of the descriptor, the lock is free nevertheless.
        self.file.unlock();
    }
}

/// Everything an attempt needs; goes to the threads where files are worked on.
#[derive(Clone)]
struct Attempt {
    shared: Arc<Shared>,
    claim: Claim,
    path: PathBuf,
}

pub(crate) async fn acquire(
    shared: &Arc<Shared>,
    claim: &Claim,
    withdraw: &CancellationToken,
) -> Result<Option<MutexHold>> {
    let path = shared.layout.mutex(claim.resource.name());
    let attempt = Attempt { shared: Arc::clone(shared), claim: claim.clone(), path };
    if withdraw.is_cancelled() {
        return blocking(move || attempt.once()).await;
    }
    let mut file = {
        let attempt = attempt.clone();
        match blocking(move || attempt.first()).await? {
            Tried::Granted(hold) => return Ok(Some(hold)),
            Tried::Busy(file) => file,
        }
    };
    let shown = {
        let attempt = attempt.clone();
        blocking(move || Ok(Announcement::make(&attempt.shared, &attempt.claim))).await?
    };
    let mut pace = Pace::new();
    let mut watched: Option<(PathBuf, Option<Watch>)> = None;
    let mut seen = None;
    loop {
        if file.try_lock()? {
            let attempt = attempt.clone();
            match blocking(move || attempt.grant(file)).await? {
                Tried::Granted(hold) => return Ok(Some(hold)),
                Tried::Busy(another) => file = another,
            }
            watched = None;
            continue;
        }
        if !file.is_in_place()? {
            file = LockFile::open(&shared.layout, &attempt.path)?;
            watched = None;
            continue;
        }
        if watched.as_ref().is_none_or(|(path, _)| path != file.path()) {
            // Only the first waiters watch the lock file: see `waiting`. Once we do, we go on.
            let behind = shown.as_ref().and_then(|shown| shown.behind().ok()).flatten();
            let target = behind.unwrap_or_else(|| file.path().to_owned());
            if watched.as_ref().is_none_or(|(path, _)| *path != target) {
                let watch = shared.watcher.watch(&target, Scope::File);
                watched = Some((target, watch));
                // What happened before the watch began would not be told.
                continue;
            }
        }
        // Woken, and busy all the same: if the note names another holder than before, somebody was faster. If it
        // names the same one, he may be dying just now, and it is worth trying again at once.
        let note = file.note().and_then(|note| note.token);
        if note != seen {
            pace.relax();
            seen = note;
        }
        let watch = watched.as_ref().and_then(|(_, watch)| watch.as_ref());
        if pace.pause(watch, withdraw).await == Pause::Withdrawn {
            return Ok(None);
        }
    }
}

/// What came of an attempt to lock.
enum Tried {
    Granted(MutexHold),
    /// Somebody has it; to wait with.
    Busy(LockFile),
}

impl Attempt {
    fn open(&self) -> Result<LockFile> {
        LockFile::open(&self.shared.layout, &self.path)
    }

    /// The first attempt of somebody who would wait.
    fn first(&self) -> Result<Tried> {
        let file = self.open()?;
        if file.try_lock()? { self.grant(file) } else { Ok(Tried::Busy(file)) }
    }

    /// The only attempt of somebody who would not wait. It says "busy" only if somebody held the lock: not if
    /// somebody only looked at it, as `distlock ls` does.
    fn once(&self) -> Result<Option<MutexHold>> {
        if self.is_held()? {
            return Ok(None);
        }
        let give_up = Instant::now() + PATIENCE;
        let mut file = self.open()?;
        loop {
            if file.try_lock()? {
                match self.grant(file)? {
                    Tried::Granted(hold) => return Ok(Some(hold)),
                    Tried::Busy(another) => file = another,
                }
                continue;
            }
            if !file.is_in_place()? {
                file = self.open()?;
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

    /// Whether the mutex is held.
    fn is_held(&self) -> Result<bool> {
        let looked = self.shared.layout.look(&self.path);
        let held = looked.and_then(|file| file.map_or(Ok(false), |file| is_locked(&file)));
        held.map_err(|error| failure(error, "look at the lock file", &self.path))
    }

    /// Makes a locked file a hold. `Busy` with another file if this one was removed or replaced.
    fn grant(&self, file: LockFile) -> Result<Tried> {
        let file = file.raised(&self.shared.watcher);
        if !file.is_in_place()? {
            return self.open().map(Tried::Busy);
        }
        let note = |token| self.shared.note(&self.claim, Some(token)).block();
        let token = file.count(self.claim.resource.name(), note)?;
        let session = Session::new();
        let held = HeldFile { path: file.path().to_owned(), id: file.id(), session: session.clone() };
        let kept = self.shared.watcher.keep(&Arc::new(held));
        let hold = MutexHold { file, kept: Some(kept), token, session };
        // Once more, now that it is watched: what happened before the watch began would not be told.
        if hold.file.is_in_place()? { Ok(Tried::Granted(hold)) } else { self.open().map(Tried::Busy) }
    }
}

/// Who holds the mutex of a lock file that was opened only to look. A note that a dead holder left is not shown.
pub(crate) fn holder(file: &File, path: &Path) -> Result<Option<Note>> {
    // The lock is asked for only if somebody claims to hold: a free lock is not even touched. And the note is
    // read again, since the one read first may have been of the holder before.
    let failed = |error| failure(error, "look at the lock file", path);
    if says_free(file) || !is_locked(file).map_err(failed)? {
        return Ok(None);
    }
    match read_note(file) {
        Some(note) => Ok(Some(note)),
        // Released just now, or written by another program.
        None if says_free(file) || !is_locked(file).map_err(failed)? => Ok(None),
        None => Err(garbled(path)),
    }
}
