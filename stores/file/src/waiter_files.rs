//! The waiters of a mutex: one small file for each, locked for as long as its owner waits.
//!
//! The files tell people who waits, and waiters what to watch. A mutex has no queue, and any client that finds it free may
//! take it; but if a release woke every waiter, the cost of a handoff would grow with their number. So only the first two
//! watch the lock file, and each waiter behind them watches the file two places before its own. (Two, because one may be
//! paused; if both are, the waiters behind them poll.)
//!
//! Nothing here decides who holds the lock. So an error here does not fail the wait, and any client removes the file of a
//! dead waiter.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use distlock_core::Error;
use distlock_core::store::Claim;

use crate::error::io_error;
use crate::folder::Folder;
use crate::format::{Owner, time_of_day};
use crate::layout::{Layout, if_present, is_absent, split};
use crate::lock_file::{could_lock, is_locked, read_owner_at};
use crate::names::short_hash;
use crate::store::StoreState;

/// A file is created with this prefix, locked, then renamed. So a file without the prefix that is not locked belongs to a
/// dead waiter.
const UNFINISHED: &str = "new-";

/// The age at which a file with the prefix is certainly abandoned.
const ABANDONED: Duration = Duration::from_secs(60);

/// How many waiters watch the lock file itself.
const LOCK_FILE_WATCHERS: usize = 2;

/// The file of a waiter of this process. Dropping it removes the file.
#[derive(Debug)]
pub(crate) struct WaiterFile {
    /// Open for its lock.
    file: File,
    path: PathBuf,
    layout: Arc<Layout>,
}

impl WaiterFile {
    /// Creates the file of a claim, if possible.
    pub(crate) fn create(state: &StoreState, claim: &Claim) -> Option<WaiterFile> {
        // The last waiter removes the folder, possibly just now.
        let mut created = WaiterFile::try_create(state, claim);
        for _ in 0..5 {
            match created {
                Err(error) if is_absent(&error) => created = WaiterFile::try_create(state, claim),
                _ => break,
            }
        }
        created
            .map_err(
                |error| tracing::debug!(%error, resource = %claim.resource, "cannot create a waiter file"),
            )
            .ok()
    }

    fn try_create(state: &StoreState, claim: &Claim) -> io::Result<WaiterFile> {
        let layout = &state.layout;
        let dir = layout.waiters(claim.resource.name());
        let folder = layout.create_folder(&dir)?;
        let since = time_of_day().as_nanos();
        let name = format!("{since:020}-{}", short_hash(claim.lock_id.as_str()));
        let unfinished = dir.join(format!("{UNFINISHED}{name}"));
        let file = layout.create_in(&folder, &unfinished)?;
        // From here on, dropping removes the file, whichever of its two names it has.
        let mut created = WaiterFile { file, path: unfinished, layout: Arc::clone(layout) };
        if !could_lock(created.file.try_lock())? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        created.file.write_all_at(&state.owner(claim, None).block(), 0)?;
        let path = dir.join(name);
        folder.rename(split(&created.path)?.1, &folder, split(&path)?.1)?;
        created.path = path;
        Ok(created)
    }

    /// The waiter file to watch; `None`: watch the lock file itself.
    pub(crate) fn predecessor(&self) -> io::Result<Option<PathBuf>> {
        let Some(dir) = self.path.parent() else { return Ok(None) };
        let folder = WaiterFolder::open(&self.layout, dir)?;
        let mut before = folder.names()?;
        before.retain(|name| Some(name.as_ref()) < self.path.file_name());
        let mut alive = 0;
        for path in before.iter().rev().map(|name| dir.join(name)) {
            if folder.open_live(&path)?.is_some() {
                alive += 1;
                if alive == LOCK_FILE_WATCHERS {
                    return Ok(Some(path));
                }
            }
        }
        Ok(None)
    }
}

impl Drop for WaiterFile {
    fn drop(&mut self) {
        // The file is closed next, which wakes the waiter that watches it.
        remove(&self.layout, &self.path);
    }
}

/// The waiters of a mutex in order of arrival. An unreadable file is skipped and its error added to `unreadable`.
pub(crate) fn waiters(layout: &Layout, name: &str, unreadable: &mut Vec<Error>) -> io::Result<Vec<Owner>> {
    let dir = layout.waiters(name);
    let folder = WaiterFolder::open(layout, &dir)?;
    let mut owners = Vec::new();
    for name in folder.names()? {
        let path = dir.join(name);
        match folder.open_live(&path) {
            Ok(file) => owners.extend(file.and_then(|file| read_owner_at(&file, 0))),
            Err(error) => unreadable.push(io_error(error, "read a waiter file", &path)),
        }
    }
    Ok(owners)
}

/// The folder of the waiter files of one mutex.
struct WaiterFolder<'a> {
    layout: &'a Layout,
    dir: &'a Path,
    /// `None`: there are no waiters.
    folder: Option<Folder>,
}

impl<'a> WaiterFolder<'a> {
    fn open(layout: &'a Layout, dir: &'a Path) -> io::Result<Self> {
        Ok(WaiterFolder { layout, dir, folder: if_present(layout.folder(dir))? })
    }

    /// The names of the waiter files, in order of arrival.
    fn names(&self) -> io::Result<Vec<String>> {
        let Some(folder) = &self.folder else { return Ok(Vec::new()) };
        let mut names = if_present(folder.list())?.unwrap_or_default();
        names.retain(|name| {
            let finished = !name.starts_with(UNFINISHED);
            if !finished {
                self.remove_if_abandoned(folder, name);
            }
            finished
        });
        names.sort();
        Ok(names)
    }

    /// Opens the file of a live waiter. That of a dead one is removed.
    fn open_live(&self, path: &Path) -> io::Result<Option<File>> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let Some(file) = if_present(folder.open_read_only(split(path)?.1, path))? else { return Ok(None) };
        if is_locked(&file)? {
            return Ok(Some(file));
        }
        remove(self.layout, path);
        Ok(None)
    }

    fn remove_if_abandoned(&self, folder: &Folder, name: &str) {
        let modified = folder.stat(Path::new(name)).ok().and_then(|stat| u64::try_from(stat.st_mtime).ok());
        if modified.is_some_and(|at| time_of_day() > Duration::from_secs(at) + ABANDONED) {
            remove(self.layout, &self.dir.join(name));
        }
    }
}

/// Removes a waiter file, and the folders above it if they are empty then.
fn remove(layout: &Layout, path: &Path) {
    let _ = layout.remove(path);
    for dir in path.ancestors().skip(1).take(2) {
        if layout.remove_dir(dir).is_err() {
            break;
        }
    }
}
