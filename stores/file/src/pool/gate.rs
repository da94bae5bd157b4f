//! The gate of a pool: a short kernel lock, and the counter of its tokens.

use std::time::{Duration, Instant};

use distlock_core::{FencingToken, Result};

use super::Paths;
use crate::layout::Layout;
use crate::lockfile::LockFile;
use crate::record::Note;

/// To be inside. Dropping it leaves.
#[derive(Debug)]
pub(super) struct Gate(LockFile);

impl Gate {
    /// Passes the gate, trying for at most this long: a process that is stopped in there must not stop others for
    /// longer than they want to wait. `None`: it stays shut.
    pub(super) fn enter(layout: &Layout, paths: &Paths, patience: Duration) -> Result<Option<Gate>> {
        let give_up = Instant::now() + patience;
        let mut nap = Duration::from_micros(50);
        let mut file = LockFile::open(layout, &paths.gate)?;
        loop {
            let locked = file.try_lock()?;
            // Both matter: who locked a file that is gone excludes nobody, and who waits for one waits for ever.
            if !file.is_in_place()? {
                file = LockFile::open(layout, &paths.gate)?;
            } else if locked {
                return Ok(Some(Gate(file)));
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
        self.0.count(name, |_| Note::blank())
    }

    /// Whether nobody removed or replaced it. If somebody did, others may have passed a new one while we were in.
    pub(super) fn is_in_place(&self) -> Result<bool> {
        self.0.is_in_place()
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.0.unlock();
    }
}
