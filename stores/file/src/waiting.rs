//! Waiters for a mutex show themselves: one small file each, locked by its owner for as long as he waits.
//!
//! It is for people (`distlock show`) and decides nothing. So a failure here is not one of the wait, and files of
//! waiters that died are cleaned away by whoever comes across them.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use distlock_core::store::Claim;

use crate::layout::{Layout, list, look};
use crate::lockfile::{could_lock, is_locked, read_note_at};
use crate::names::short_hash;
use crate::record::Note;
use crate::shared::Shared;

/// A file is made under a name with this in front, then locked, then renamed: so whoever finds one without it that
/// is not locked knows that its owner is dead.
const UNFINISHED: &str = "new-";

/// The time after which an unfinished one is certainly left over.
const STALE: Duration = Duration::from_secs(60);

/// A waiter that shows itself. Dropping it ends that.
#[derive(Debug)]
pub(crate) struct Announcement {
    /// Kept open for its lock.
    file: fs::File,
    path: PathBuf,
}

impl Announcement {
    /// Shows that this claim waits, if that can be done.
    pub(crate) fn make(shared: &Shared, claim: &Claim) -> Option<Announcement> {
        let made = Announcement::try_make(shared, claim);
        made.map_err(|error| tracing::debug!(%error, resource = %claim.resource, "a waiter cannot be shown"))
            .ok()
    }

    fn try_make(shared: &Shared, claim: &Claim) -> io::Result<Announcement> {
        let dir = shared.layout.waiting();
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
        let name = format!(
            "{}-{since:020}-{}",
            short_hash(claim.resource.name()),
            short_hash(claim.lock_id.as_str())
        );
        let unfinished = dir.join(format!("{UNFINISHED}{name}"));
        let file = shared.layout.create(&unfinished)?;
        // From here on, dropping removes it, whichever name it has then.
        let mut made = Announcement { file, path: unfinished };
        if !could_lock(made.file.try_lock())? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        made.file.write_all_at(&shared.note(claim, None).block(), 0)?;
        let path = dir.join(name);
        fs::rename(&made.path, &path)?;
        made.path = path;
        Ok(made)
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Everybody who waits for a mutex: the short hash of its name, and who. In the order in which they came.
pub(crate) fn waiters(layout: &Layout) -> io::Result<Vec<(String, Note)>> {
    let dir = layout.waiting();
    let mut names = list(&dir)?;
    names.sort();
    let mut found = Vec::new();
    for name in names {
        let path = dir.join(&name);
        if name.starts_with(UNFINISHED) {
            remove_if_stale(&path);
            continue;
        }
        let Some(file) = look(&path)? else { continue };
        if !is_locked(&file)? {
            let _ = fs::remove_file(&path);
            continue;
        }
        if let (Some((hash, _)), Some(note)) = (name.split_once('-'), read_note_at(&file, 0)) {
            found.push((hash.to_owned(), note));
        }
    }
    Ok(found)
}

fn remove_if_stale(path: &Path) {
    let age = fs::metadata(path).and_then(|meta| meta.modified()).ok().and_then(|at| at.elapsed().ok());
    if age.is_some_and(|age| age > STALE) {
        let _ = fs::remove_file(path);
    }
}
