//! The gate of a pool: a short kernel lock, and the counter of its tokens.

use std::io;
use std::time::{Duration, Instant};

use distlock_core::{FencingToken, Result};

use super::Paths;
use super::rooms::Rooms;
use crate::failure::failure;
use crate::folder::Folder;
use crate::layout::Layout;
use crate::lockfile::LockFile;
use crate::record::Note;

/// How often in a row a folder may be removed under us.
const REMADE: u32 = 20;

/// To be inside. Dropping it leaves.
#[derive(Debug)]
pub(super) struct Gate {
    file: LockFile,
    pub(super) rooms: Rooms,
}

impl Gate {
    /// Passes the gate, trying for at most this long: a process that is stopped in there must not stop others for
    /// longer than they want to wait. `None`: it stays shut.
    pub(super) fn enter(layout: &Layout, paths: &Paths, patience: Duration) -> Result<Option<Gate>> {
        let give_up = Instant::now() + patience;
        let mut nap = Duration::from_micros(50);
        let (mut dir, mut file) = open(layout, paths)?;
        loop {
            let locked = file.try_lock()?;
            // Both matter: who locked a file that is gone excludes nobody, and who waits for one waits for ever.
            if !file.is_in_place()? {
                (dir, file) = open(layout, paths)?;
            } else if locked {
                // Not before: who had the gate until now may have made the folders that we look for.
                let rooms = Rooms::within(layout, paths, dir);
                let rooms = rooms.map_err(|error| failure(error, "open the pool", &paths.dir))?;
                return Ok(Some(Gate { file, rooms }));
            } else if Instant::now() >= give_up {
                return Ok(None);
            } else {
                std::thread::sleep(nap.mul_f64(0.5 + fastrand::f64()));
                nap = (nap * 2).min(Duration::from_millis(2));
            }
        }
    }

    /// The next token, durably counted.
    pub(super) fn count(&self, name: &str) -> Result<FencingToken> {
        self.file.count(name, |_| Note::blank())
    }

    /// Whether nobody removed or replaced it. If somebody did, others may have passed a new one while we were in.
    pub(super) fn is_in_place(&self) -> Result<bool> {
        self.file.is_in_place()
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.file.unlock();
    }
}

/// The pool's folder and the gate in it. A folder that is removed meanwhile is made again.
fn open(layout: &Layout, paths: &Paths) -> Result<(Folder, LockFile)> {
    let open = || -> io::Result<(Folder, LockFile)> {
        let dir = layout.make_dir(&paths.dir)?;
        let file = LockFile::open_in(layout, &dir, &paths.gate)?;
        Ok((dir, file))
    };
    let mut opened = open();
    for _ in 0..REMADE {
        match &opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => opened = open(),
            _ => break,
        }
    }
    opened.map_err(|error| failure(error, "open the lock file", &paths.gate))
}
