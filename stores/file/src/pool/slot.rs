//! A place in a pool, waiting or holding: one file.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use distlock_core::{Error, Result};

use super::Paths;
use super::rooms::{Room, Rooms, clear};
use crate::failure::{failure, garbled};
use crate::folder::Folder;
use crate::layout::{FileId, Layout, split};
use crate::lockfile::{could_lock, is_locked, read_note_at};
use crate::record::Note;
use crate::shared::Shared;

/// What the name of a slot says: its place in the order of arrival, its weight and the capacity it counts on. The tag
/// makes it unique also if the count begins again, so that nobody ever removes the file of another one.
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

/// A slot of ours. Dropping it takes it away.
#[derive(Debug)]
pub(super) struct Slot {
    /// Kept open for its lock.
    file: File,
    path: PathBuf,
    name: SlotName,
    id: FileId,
    layout: Arc<Layout>,
}

impl Slot {
    /// Makes a slot in one of the rooms. Only for the one who has the gate.
    pub(super) fn make(
        shared: &Shared,
        paths: &Paths,
        rooms: &Rooms,
        room: &Room,
        name: SlotName,
        note: &Note,
    ) -> Result<Self> {
        let layout = &shared.layout;
        // Made and locked under a name where nobody looks: so whoever finds a slot that is not locked knows that
        // its owner is dead. Somebody who died in here may have left one.
        let unfinished = paths.dir.join("new");
        clear(&rooms.dir, &unfinished)?;
        let failed = |error| failure(error, "make a slot", &room.path);
        let file = shared.watcher.raise(layout.create_in(&rooms.dir, &unfinished).map_err(failed)?);
        let id = FileId::of(&file).map_err(failed)?;
        // From here on, dropping removes it, whichever name it has then.
        let mut slot = Slot { file, path: unfinished, name, id, layout: Arc::clone(layout) };
        if !could_lock(slot.file.try_lock()).map_err(failed)? {
            return Err(failed(io::ErrorKind::WouldBlock.into()));
        }
        slot.file.write_all_at(&note.block(), 0).map_err(failed)?;
        let moved = match &room.folder {
            Some(folder) => slot.move_to(&rooms.dir, folder, &room.path),
            None => Err(io::ErrorKind::NotFound.into()),
        };
        match moved {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let made = layout.make_dir(&paths.hold).and_then(|_| layout.make_dir(&paths.queue));
                let folder = made.and_then(|_| layout.sub(&rooms.dir, &room.path)).map_err(failed)?;
                slot.move_to(&rooms.dir, &folder, &room.path).map_err(failed)?;
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

    /// Turns a waiter into a holder. Only for the one who has the gate.
    pub(super) fn promote(&mut self, rooms: &Rooms, note: &Note) -> Result<()> {
        let moved = self.file.write_all_at(&note.block(), 0).and_then(|()| {
            match (&rooms.queue.folder, &rooms.hold.folder) {
                (Some(queue), Some(hold)) => self.move_to(queue, hold, &rooms.hold.path),
                _ => Err(io::ErrorKind::NotFound.into()),
            }
        });
        moved.map_err(|error| failure(error, "move a slot", &rooms.hold.path))
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

    /// Whether nobody removed or replaced it.
    pub(super) fn is_in_place(&self) -> Result<bool> {
        let there = FileId::at(&self.path).map_err(|error| failure(error, "look at a slot", &self.path))?;
        Ok(there == Some(self.id))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.is_in_place().unwrap_or(false) {
            let _ = self.layout.remove(&self.path);
        }
        // Closing, which follows, wakes those who watch. Should another process have a copy of the descriptor, the lock
        // is free nevertheless.
        let _ = self.file.unlock();
    }
}

/// Who holds and who waits, the latter in their order. Only looks, and needs no gate. A slot that cannot be read is left
/// out, and `unreadable` is told of it.
pub(crate) fn holders_and_waiters(
    layout: &Layout,
    paths: &Paths,
    unreadable: &mut Vec<Error>,
) -> Result<(Vec<Note>, Vec<Note>)> {
    let found = Rooms::find(layout, paths).map_err(|error| failure(error, "look at the pool", &paths.dir))?;
    let Some(rooms) = found else { return Ok((Vec::new(), Vec::new())) };
    // The queue first: one who is granted meanwhile is then seen in both folders, and not in none.
    let mut waiters = notes(&rooms.queue, unreadable)?;
    let holders = notes(&rooms.hold, unreadable)?;
    waiters.retain(|waiter| holders.iter().all(|holder| holder.lock_id != waiter.lock_id));
    Ok((holders, waiters))
}

fn notes(room: &Room, unreadable: &mut Vec<Error>) -> Result<Vec<Note>> {
    let mut notes = Vec::new();
    for slot in room.slots()? {
        let path = slot.path(&room.path);
        let looked = room.look(&slot).and_then(|file| {
            let Some(file) = file else { return Ok(None) };
            let locked = is_locked(&file).map_err(|error| failure(error, "look at a slot", &path))?;
            Ok(locked.then_some(file))
        });
        match looked {
            Ok(Some(file)) => match read_note_at(&file, 0) {
                Some(note) => notes.push(note),
                None => unreadable.push(garbled(&path)),
            },
            Ok(None) => {}
            Err(error) => unreadable.push(error),
        }
    }
    Ok(notes)
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
