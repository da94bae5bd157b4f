//! A slot: the file of one waiter or holder of a pool.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use distlock_core::{Error, Result};

use super::PoolPaths;
use super::folders::{PoolFolders, SlotFolder, remove_slot};
use crate::error::{io_error, unreadable_owner};
use crate::folder::Folder;
use crate::format::Owner;
use crate::layout::{FileId, Layout, split};
use crate::lock_file::{could_lock, read_owner_at};
use crate::store::StoreState;

/// The name of a slot: its place in the order of arrival, its weight and the capacity it expects. The tag keeps names unique
/// if places are counted from 1 again, so no owner ever removes the file of another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SlotName {
    pub(super) place: u64,
    pub(super) weight: u32,
    pub(super) capacity: u32,
    pub(super) tag: String,
}

impl fmt::Display for SlotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SlotName { place, weight, capacity, tag } = self;
        write!(f, "{place:020}-{weight}-{capacity}-{tag}")
    }
}

impl SlotName {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(4, '-');
        Some(SlotName {
            place: parts.next()?.parse().ok()?,
            weight: parts.next()?.parse().ok()?,
            capacity: parts.next()?.parse().ok()?,
            tag: parts.next()?.to_owned(),
        })
    }

    pub(super) fn path(&self, dir: &Path) -> PathBuf {
        dir.join(self.to_string())
    }
}

/// A slot of this process. Dropping it removes the file.
#[derive(Debug)]
pub(super) struct Slot {
    /// Open for its lock.
    file: File,
    path: PathBuf,
    name: SlotName,
    id: FileId,
    layout: Arc<Layout>,
    /// A hold with a minimum hold time was released, or never had one.
    is_freed: bool,
}

impl Slot {
    /// Creates a slot in `queue` or `hold`. The caller must have the pool lock.
    pub(super) fn create(
        state: &StoreState,
        paths: &PoolPaths,
        folders: &PoolFolders,
        into: &SlotFolder,
        name: SlotName,
        owner: &Owner,
    ) -> Result<Self> {
        let layout = &state.layout;
        // Created and locked outside the two folders, then moved: so a slot that is not locked belongs to a dead owner. A
        // process that died here may have left its file.
        let unfinished = paths.dir.join("new");
        remove_slot(&folders.dir, &unfinished)?;
        let failed = |error| io_error(error, "create a slot", &into.path);
        let file = layout.create_in(&folders.dir, &unfinished).map_err(failed)?;
        let file = state.watcher.raise_descriptor(file);
        let id = FileId::of(&file).map_err(failed)?;
        // From here on, dropping removes the file, whichever of its two names it has.
        let mut slot = Slot { file, path: unfinished, name, id, layout: Arc::clone(layout), is_freed: false };
        if !could_lock(slot.file.try_lock()).map_err(failed)? {
            return Err(failed(io::ErrorKind::WouldBlock.into()));
        }
        slot.file.write_all_at(&owner.block(), 0).map_err(failed)?;
        let moved = match &into.folder {
            Some(folder) => slot.move_to(&folders.dir, folder, &into.path),
            None => Err(io::ErrorKind::NotFound.into()),
        };
        match moved {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let created =
                    layout.create_folder(&paths.hold).and_then(|_| layout.create_folder(&paths.queue));
                let folder = created.and_then(|_| layout.sub(&folders.dir, &into.path)).map_err(failed)?;
                slot.move_to(&folders.dir, &folder, &into.path).map_err(failed)?;
            }
            moved => moved.map_err(failed)?,
        }
        Ok(slot)
    }

    fn move_to(&mut self, from: &Folder, to: &Folder, dir: &Path) -> io::Result<()> {
        let path = self.name.path(dir);
        from.rename(split(&self.path)?.1, to, split(&path)?.1)?;
        self.path = path;
        Ok(())
    }

    /// Turns a waiter into a holder. The caller must have the pool lock.
    pub(super) fn promote(&mut self, folders: &PoolFolders, owner: &Owner) -> Result<()> {
        let moved = self.file.write_all_at(&owner.block(), 0).and_then(|()| {
            match (&folders.queue.folder, &folders.hold.folder) {
                (Some(queue), Some(hold)) => self.move_to(queue, hold, &folders.hold.path),
                _ => Err(io::ErrorKind::NotFound.into()),
            }
        });
        moved.map_err(|error| io_error(error, "move a slot", &folders.hold.path))
    }

    /// Dropping it removes it, even if its minimum hold time has not passed.
    pub(super) fn free(&mut self) {
        self.is_freed = true;
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn name(&self) -> &SlotName {
        &self.name
    }

    pub(super) fn id(&self) -> FileId {
        self.id
    }

    /// Whether the file was neither removed nor replaced.
    pub(super) fn is_in_place(&self) -> Result<bool> {
        let there = FileId::at(&self.path).map_err(|error| io_error(error, "check a slot", &self.path))?;
        Ok(there == Some(self.id))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let is_kept =
            !self.is_freed && read_owner_at(&self.file, 0).is_some_and(|owner| owner.kept_for().is_some());
        if !is_kept && self.is_in_place().unwrap_or(false) {
            let _ = self.layout.remove(&self.path);
        }
        // The file is closed next, which wakes the watchers. Unlocking frees the lock also if another process has a copy of
        // the descriptor.
        let _ = self.file.unlock();
    }
}

/// The holders of a pool, and its waiters in order. Read-only, without the pool lock. An unreadable slot is skipped and its
/// error added to `unreadable`.
pub(crate) fn holders_and_waiters(
    layout: &Layout,
    paths: &PoolPaths,
    unreadable: &mut Vec<Error>,
) -> Result<(Vec<Owner>, Vec<Owner>)> {
    let found = PoolFolders::find(layout, paths);
    let found = found.map_err(|error| io_error(error, "open the pool", &paths.dir))?;
    let Some(folders) = found else { return Ok((Vec::new(), Vec::new())) };
    // The queue first: a waiter that is granted meanwhile is then seen twice, not never.
    let mut waiters = owners(&folders.queue, unreadable)?;
    let holders = owners(&folders.hold, unreadable)?;
    waiters.retain(|waiter| holders.iter().all(|holder| holder.lock_id != waiter.lock_id));
    Ok((holders, waiters))
}

fn owners(folder: &SlotFolder, unreadable: &mut Vec<Error>) -> Result<Vec<Owner>> {
    let mut owners = Vec::new();
    for slot in folder.slots()? {
        match folder.open_live(&slot) {
            Ok(Some(file)) => match read_owner_at(&file, 0) {
                Some(owner) => owners.push(owner),
                None => unreadable.push(unreadable_owner(&slot.path(&folder.path))),
            },
            Ok(None) => {}
            Err(error) => unreadable.push(error),
        }
    }
    Ok(owners)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_names_is_the_order_of_arrival() {
        let name = |place, weight| SlotName { place, weight, capacity: 10, tag: "ab-cd".into() };
        let names = [name(2, 900), name(10, 1), name(u64::MAX, 5)];
        let mut texts: Vec<String> = names.iter().map(ToString::to_string).collect();
        texts.sort();
        let read: Vec<SlotName> = texts.iter().map(|text| SlotName::parse(text).unwrap()).collect();
        assert_eq!(read, names);
        for foreign in ["", "new", "1-2-3", "x-1-1-a", ".swp"] {
            assert_eq!(SlotName::parse(foreign), None, "{foreign}");
        }
    }
}
