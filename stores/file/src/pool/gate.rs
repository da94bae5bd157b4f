//! The gate of a pool: a short kernel lock, and the counter of its tokens.

use std::io;
use std::time::{Duration, Instant};

use distlock_core::{FencingToken, Result};

use super::Paths;
use super::rooms::Rooms;
use crate::failure::failure;
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
        let mut gate = Gate::open(layout, paths)?;
        loop {
            let locked = gate.file.try_lock()?;
            // Both matter: who locked a file that is gone excludes nobody, and who waits for one waits for ever.
            if !gate.file.is_in_place()? {
                gate = Gate::open(layout, paths)?;
            } else if locked {
                return Ok(Some(gate));
            } else if Instant::now() >= give_up {
                return Ok(None);
            } else {
                std::thread::sleep(nap.mul_f64(0.5 + fastrand::f64()));
                nap = (nap * 2).min(Duration::from_millis(2));
            }
        }
    }

    /// The folders and the gate in them. A folder that is removed meanwhile is made again.
    fn open(layout: &Layout, paths: &Paths) -> Result<Gate> {
        let open = || -> io::Result<Gate> {
            let rooms = Rooms::make(layout, paths)?;
            Ok(Gate { file: LockFile::open_in(layout, &rooms.dir, &paths.gate)?, rooms })
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
