//! The folders of a pool, opened for one step.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use distlock_core::Result;

use super::Paths;
use super::slot::SlotName;
use crate::failure::failure;
use crate::folder::Folder;
use crate::layout::{Layout, present, split};
use crate::lockfile::is_locked;

/// The pool's folder and the two in it.
#[derive(Debug)]
pub(super) struct Rooms {
    pub(super) dir: Folder,
    pub(super) queue: Room,
    pub(super) hold: Room,
}

/// A folder of slots.
#[derive(Debug)]
pub(super) struct Room {
    /// `None`: it was not there yet.
    pub(super) folder: Option<Folder>,
    pub(super) path: PathBuf,
}

impl Rooms {
    /// Opens those of a pool. `None`: it was never used.
    pub(super) fn find(layout: &Layout, paths: &Paths) -> io::Result<Option<Self>> {
        match present(layout.folder(&paths.dir))? {
            Some(dir) => Rooms::within(layout, paths, dir).map(Some),
            None => Ok(None),
        }
    }

    /// Those in the pool's folder. Only for the one who has the gate may the answer be relied on.
    pub(super) fn within(layout: &Layout, paths: &Paths, dir: Folder) -> io::Result<Self> {
        let room = |path: &Path| {
            let folder = present(layout.sub(&dir, path))?;
            Ok::<_, io::Error>(Room { folder, path: path.to_owned() })
        };
        let (queue, hold) = (room(&paths.queue)?, room(&paths.hold)?);
        Ok(Rooms { dir, queue, hold })
    }
}

impl Room {
    /// The slots in it, in their order.
    pub(super) fn slots(&self) -> Result<Vec<SlotName>> {
        let names = self.folder.as_ref().map_or_else(|| Ok(Vec::new()), present_list);
        let names = names.map_err(|error| failure(error, "list the slots", &self.path))?;
        let mut slots: Vec<SlotName> = names.iter().filter_map(|name| SlotName::parse(name)).collect();
        slots.sort();
        Ok(slots)
    }

    /// Opens a slot only to look. A slot that is not there any more is `None`.
    pub(super) fn look(&self, slot: &SlotName) -> Result<Option<File>> {
        let path = slot.path(&self.path);
        let Some(folder) = &self.folder else { return Ok(None) };
        let looked = split(&path).and_then(|(_, name)| present(folder.look(name, &path)));
        looked.map_err(|error| failure(error, "look at a slot", &path))
    }

    /// Whether the owner of a slot lives.
    pub(super) fn is_alive(&self, slot: &SlotName) -> Result<bool> {
        let Some(file) = self.look(slot)? else { return Ok(false) };
        is_locked(&file).map_err(|error| failure(error, "look at a slot", &slot.path(&self.path)))
    }

    /// Takes the slot of a dead owner away. Only for the one who has the gate.
    pub(super) fn clear(&self, slot: &SlotName) -> Result<()> {
        match &self.folder {
            Some(folder) => clear(folder, &slot.path(&self.path)),
            None => Ok(()),
        }
    }
}

fn present_list(folder: &Folder) -> io::Result<Vec<String>> {
    present(folder.list()).map(Option::unwrap_or_default)
}

/// Removes a file that may be gone already.
pub(super) fn clear(folder: &Folder, path: &Path) -> Result<()> {
    match split(path).and_then(|(_, name)| folder.remove(name)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failure(error, "clear a slot", path)),
        _ => Ok(()),
    }
}
