//! The door before the gate: those of one process who mean to wait come to the gate in the order in which they asked,
//! though each of them works on a thread of its own.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio_util::sync::CancellationToken;

/// The doors of a store: one for each pool that somebody is about to enter.
#[derive(Debug, Default)]
pub(crate) struct Doors(Mutex<HashMap<PathBuf, Arc<AsyncMutex<()>>>>);

/// To stand in the door. Dropping it lets the next one come.
#[derive(Debug)]
pub(super) struct InDoor<'a> {
    doors: &'a Doors,
    pool: &'a Path,
    door: Option<OwnedMutexGuard<()>>,
}

impl Doors {
    fn lock(&self) -> MutexGuard<'_, HashMap<PathBuf, Arc<AsyncMutex<()>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until those who asked before have passed. `None`: the claim was withdrawn.
    ///
    /// # Cancel safety
    /// Dropping the future gives the place up.
    pub(super) async fn pass<'a>(
        &'a self,
        pool: &'a Path,
        withdraw: &CancellationToken,
    ) -> Option<InDoor<'a>> {
        let door = Arc::clone(self.lock().entry(pool.to_owned()).or_default());
        // Made before the wait, so that whoever gives up tidies up as well.
        let mut place = InDoor { doors: self, pool, door: None };
        tokio::select! {
            biased;
            () = withdraw.cancelled() => None,
            passed = door.lock_owned() => {
                place.door = Some(passed);
                Some(place)
            }
        }
    }
}

impl Drop for InDoor<'_> {
    fn drop(&mut self) {
        self.door = None;
        let mut doors = self.doors.lock();
        // Whoever waits or stands in it has a share of it too.
        if doors.get(self.pool).is_some_and(|door| Arc::strong_count(door) == 1) {
            doors.remove(self.pool);
        }
    }
}
