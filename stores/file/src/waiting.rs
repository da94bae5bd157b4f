//! Waiters for a mutex show themselves: one small file each, locked by its owner for as long as he waits.
//!
//! It tells people who waits, and waiters what to watch. A mutex has no queue, and whoever finds it free may take it;
//! but if a release woke everybody, the cost of a hand-over would grow with the number of waiters. So only the first two
//! watch the lock file, and each one behind them watches the one two places before it. (Two, because one may be stopped;
//! if both are, those behind come by polling.)
//!
//! Nothing here decides who holds. So a failure here is not one of the wait, and whoever comes across the file of a dead
//! waiter removes it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use distlock_core::Error;
use distlock_core::store::Claim;

use crate::failure::failure;
use crate::folder::Folder;
use crate::layout::{Layout, is_absent, present, split};
use crate::lockfile::{could_lock, is_locked, read_note_at};
use crate::names::short_hash;
use crate::record::{Note, since_1970};
use crate::shared::Shared;

/// A file is made under a name with this in front, then locked, then renamed: so whoever finds one without it that
/// is not locked knows that its owner is dead.
const UNFINISHED: &str = "new-";

/// The time after which an unfinished one is certainly left over.
const STALE: Duration = Duration::from_secs(60);

/// How many waiters watch the lock file itself.
const WATCHERS: usize = 2;

/// A waiter that shows itself. Dropping it ends that.
#[derive(Debug)]
pub(crate) struct Announcement {
    /// Kept open for its lock.
    file: File,
    path: PathBuf,
    layout: Arc<Layout>,
}

impl Announcement {
    /// Shows that this claim waits, if that can be done.
    pub(crate) fn make(shared: &Shared, claim: &Claim) -> Option<Announcement> {
        // The folder goes with the last waiter, so it may go just when we come.
        let mut made = Announcement::try_make(shared, claim);
        for _ in 0..5 {
            match made {
                Err(error) if is_absent(&error) => made = Announcement::try_make(shared, claim),
                _ => break,
            }
        }
        made.map_err(|error| tracing::debug!(%error, resource = %claim.resource, "a waiter cannot be shown"))
            .ok()
    }

    fn try_make(shared: &Shared, claim: &Claim) -> io::Result<Announcement> {
        let layout = &shared.layout;
        let dir = layout.waiting(claim.resource.name());
        let folder = layout.make_dir(&dir)?;
        let since = since_1970().as_nanos();
        let name = format!("{since:020}-{}", short_hash(claim.lock_id.as_str()));
        let unfinished = dir.join(format!("{UNFINISHED}{name}"));
        let file = layout.create_in(&folder, &unfinished)?;
        // From here on, dropping removes it, whichever name it has then.
        let mut made = Announcement { file, path: unfinished, layout: Arc::clone(layout) };
        if !could_lock(made.file.try_lock())? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        made.file.write_all_at(&shared.note(claim, None).block(), 0)?;
        let path = dir.join(name);
        folder.rename(split(&made.path)?.1, &folder, split(&path)?.1)?;
        made.path = path;
        Ok(made)
    }

    /// The announcement to watch; `None`: the lock file itself.
    pub(crate) fn behind(&self) -> io::Result<Option<PathBuf>> {
        let Some(dir) = self.path.parent() else { return Ok(None) };
        let line = Line::open(&self.layout, dir)?;
        let mut before = line.names()?;
        before.retain(|name| Some(name.as_ref()) < self.path.file_name());
        let mut alive = 0;
        for path in before.iter().rev().map(|name| dir.join(name)) {
            if line.is_waiting(&path)?.is_some() {
                alive += 1;
                if alive == WATCHERS {
                    return Ok(Some(path));
                }
            }
        }
        Ok(None)
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        // Closing, which follows, wakes the one who watches us.
        remove(&self.layout, &self.path);
    }
}

/// The waiters of a mutex, in the order in which they came. A file that cannot be read is left out, and
/// `unreadable` is told of it.
pub(crate) fn waiters(layout: &Layout, name: &str, unreadable: &mut Vec<Error>) -> io::Result<Vec<Note>> {
    let dir = layout.waiting(name);
    let line = Line::open(layout, &dir)?;
    let mut notes = Vec::new();
    for name in line.names()? {
        let path = dir.join(name);
        match line.is_waiting(&path) {
            Ok(file) => notes.extend(file.and_then(|file| read_note_at(&file, 0))),
            Err(error) => unreadable.push(failure(error, "look at a waiter", &path)),
        }
    }
    Ok(notes)
}

/// The folder of those who wait for one mutex.
struct Line<'a> {
    layout: &'a Layout,
    dir: &'a Path,
    /// `None`: there are no waiters.
    folder: Option<Folder>,
}

impl<'a> Line<'a> {
    fn open(layout: &'a Layout, dir: &'a Path) -> io::Result<Self> {
        Ok(Line { layout, dir, folder: present(layout.folder(dir))? })
    }

    /// The announcements in it, in their order.
    fn names(&self) -> io::Result<Vec<String>> {
        let Some(folder) = &self.folder else { return Ok(Vec::new()) };
        let mut names = present(folder.list())?.unwrap_or_default();
        names.retain(|name| {
            let finished = !name.starts_with(UNFINISHED);
            if !finished {
                self.remove_if_stale(folder, name);
            }
            finished
        });
        names.sort();
        Ok(names)
    }

    /// The file of a waiter who lives. That of a dead one is removed.
    fn is_waiting(&self, path: &Path) -> io::Result<Option<File>> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let Some(file) = present(folder.look(split(path)?.1, path))? else { return Ok(None) };
        if is_locked(&file)? {
            return Ok(Some(file));
        }
        remove(self.layout, path);
        Ok(None)
    }

    fn remove_if_stale(&self, folder: &Folder, name: &str) {
        let modified = folder.stat(Path::new(name)).ok().and_then(|stat| u64::try_from(stat.st_mtime).ok());
        let stale = modified.is_some_and(|at| since_1970() > Duration::from_secs(at) + STALE);
        if stale {
            remove(self.layout, &self.dir.join(name));
        }
    }
}

/// Removes an announcement, and the folders above it if it was the last one: a folder that is not empty stays.
fn remove(layout: &Layout, path: &Path) {
    let _ = layout.remove(path);
    for dir in path.ancestors().skip(1).take(2) {
        if layout.remove_dir(dir).is_err() {
            break;
        }
    }
}
