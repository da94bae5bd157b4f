//! The folders of a pool, and the short kernel lock for changing them.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use distlock_core::{FencingToken, Result};

use super::PoolPaths;
use super::slot::SlotName;
use crate::error::io_error;
use crate::folder::Folder;
use crate::format::Owner;
use crate::layout::{Layout, if_present, recreating, split};
use crate::lock_file::{LockFile, is_locked, read_owner_at};
use crate::tokens::BootId;

/// The pool lock: the locked `gate` file, which also counts the tokens. Dropping it unlocks.
#[derive(Debug)]
pub(super) struct PoolLock {
    file: LockFile,
    pub(super) folders: PoolFolders,
}

impl PoolLock {
    /// Takes the pool lock within the time limit. `None`: it stayed locked. A process that is paused while it has the lock
    /// must not block others for longer than they want to wait.
    pub(super) fn acquire(layout: &Layout, paths: &PoolPaths, limit: Duration) -> Result<Option<PoolLock>> {
        let give_up = Instant::now() + limit;
        let mut pause = Duration::from_micros(50);
        let (mut dir, mut file) = open(layout, paths)?;
        loop {
            let locked = file.try_lock()?;
            // Checked in both cases: an unlinked file excludes no other client, and waiting for it would never end.
            if !file.is_in_place()? {
                (dir, file) = open(layout, paths)?;
            } else if locked {
                // Not before: the previous owner of the lock may have created the folders.
                let folders = PoolFolders::within(layout, paths, dir);
                let folders = folders.map_err(|error| io_error(error, "open the pool", &paths.dir))?;
                return Ok(Some(PoolLock { file, folders }));
            } else if Instant::now() >= give_up {
                return Ok(None);
            } else {
                std::thread::sleep(pause.mul_f64(0.5 + fastrand::f64()));
                pause = (pause * 2).min(Duration::from_millis(2));
            }
        }
    }

    /// Counts the next token.
    pub(super) fn next_token(&self, name: &str, boot: Option<BootId>) -> Result<FencingToken> {
        let content = self.file.content()?;
        Ok(self.file.next_token(name, &content, boot, |_, last| Owner::free_block(last))?.token)
    }

    /// Whether the `gate` file is still in place. After an unlink or a replacement, other clients may have taken the lock of
    /// the new file at the same time.
    pub(super) fn is_in_place(&self) -> Result<bool> {
        self.file.is_in_place()
    }
}

impl Drop for PoolLock {
    fn drop(&mut self) {
        self.file.unlock();
    }
}

/// Opens the pool's folder and its `gate` file. A folder that is removed meanwhile is created again.
fn open(layout: &Layout, paths: &PoolPaths) -> Result<(Folder, LockFile)> {
    let opened = recreating(|| {
        let dir = layout.create_folder(&paths.dir)?;
        let file = LockFile::open_in(layout, &dir, &paths.gate)?;
        Ok((dir, file))
    });
    opened.map_err(|error| io_error(error, "open the lock file", &paths.gate))
}

/// The pool's folder and the two in it.
#[derive(Debug)]
pub(super) struct PoolFolders {
    pub(super) dir: Folder,
    pub(super) queue: SlotFolder,
    pub(super) hold: SlotFolder,
}

/// A folder of slots.
#[derive(Debug)]
pub(super) struct SlotFolder {
    /// `None`: it does not exist yet.
    pub(super) folder: Option<Folder>,
    pub(super) path: PathBuf,
}

impl PoolFolders {
    /// Opens the folders of a pool. `None`: it was never used.
    pub(super) fn find(layout: &Layout, paths: &PoolPaths) -> io::Result<Option<Self>> {
        match if_present(layout.folder(&paths.dir))? {
            Some(dir) => PoolFolders::within(layout, paths, dir).map(Some),
            None => Ok(None),
        }
    }

    /// Opens the two folders in the pool's folder. The result stays true only while the caller has the pool lock.
    fn within(layout: &Layout, paths: &PoolPaths, dir: Folder) -> io::Result<Self> {
        let open = |path: &Path| {
            let folder = if_present(layout.sub(&dir, path))?;
            Ok::<_, io::Error>(SlotFolder { folder, path: path.to_owned() })
        };
        let (queue, hold) = (open(&paths.queue)?, open(&paths.hold)?);
        Ok(PoolFolders { dir, queue, hold })
    }
}

impl SlotFolder {
    /// The slots in it, in order.
    pub(super) fn slots(&self) -> Result<Vec<SlotName>> {
        let names = match &self.folder {
            Some(folder) => if_present(folder.list()).map(Option::unwrap_or_default),
            None => Ok(Vec::new()),
        };
        let names = names.map_err(|error| io_error(error, "list the slots", &self.path))?;
        let mut slots: Vec<SlotName> = names.iter().filter_map(|name| SlotName::parse(name)).collect();
        slots.sort();
        Ok(slots)
    }

    /// Opens the slot of a live owner for reading. `None` if it is gone or its owner is dead and keeps it no longer.
    pub(super) fn open_live(&self, slot: &SlotName) -> Result<Option<File>> {
        let path = slot.path(&self.path);
        let Some(folder) = &self.folder else { return Ok(None) };
        let opened = split(&path).and_then(|(_, name)| if_present(folder.open_read_only(name, &path)));
        let live = opened.and_then(|file| match file {
            Some(file) => {
                let is_kept = || read_owner_at(&file, 0).is_some_and(|owner| owner.kept_for().is_some());
                Ok((is_locked(&file)? || is_kept()).then_some(file))
            }
            None => Ok(None),
        });
        live.map_err(|error| io_error(error, "read a slot", &path))
    }

    /// Removes the slot of a dead owner. The caller must have the pool lock.
    pub(super) fn remove(&self, slot: &SlotName) -> Result<()> {
        match &self.folder {
            Some(folder) => remove_slot(folder, &slot.path(&self.path)),
            None => Ok(()),
        }
    }
}

/// Removes a file that may be gone already.
pub(super) fn remove_slot(folder: &Folder, path: &Path) -> Result<()> {
    match split(path).and_then(|(_, name)| folder.remove(name)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error(error, "remove a slot", path)),
        _ => Ok(()),
    }
}
