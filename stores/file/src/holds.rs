//! The locks that a store holds, by lock id, and which of them the watcher has yet to look after.
//!
//! A mutex whose file is unlinked or replaced excludes nobody any more, so the watcher checks held files. It begins with a file
//! that is held for a while: most locks are held for less. The registry hands out each mutex once, when it is that old.

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use distlock_core::LockId;
use distlock_core::store::support::compact_lock_id::{CompactLockId, CompactLockIds, LockIdMap};
use distlock_core::store::{LossReason, Session, SessionHold};

use crate::layout::{FileId, Layout};
use crate::mutex::MutexHold;
use crate::pool::PoolHold;

/// Tasks on several threads seldom meet in one of so many parts.
const SHARDS: usize = 16;

/// A lock that this store holds. Dropping it releases it, but for the rest of its minimum hold time.
#[derive(Debug)]
pub(crate) enum HeldLock {
    Mutex(MutexHold),
    /// Boxed: it is larger.
    Pool(Box<PoolHold>),
}

impl HeldLock {
    pub(crate) fn session_hold(&self) -> SessionHold {
        let (token, session) = match self {
            HeldLock::Mutex(hold) => (hold.token(), &hold.session),
            HeldLock::Pool(hold) => (hold.token, &hold.session),
        };
        SessionHold { token, session: session.clone() }
    }

    /// Releases it at once.
    pub(crate) fn free(self) {
        match self {
            HeldLock::Mutex(hold) => hold.free(),
            HeldLock::Pool(hold) => hold.free(),
        }
    }

    fn file(&self) -> &File {
        match self {
            HeldLock::Mutex(hold) => hold.file(),
            HeldLock::Pool(hold) => hold.file(),
        }
    }
}

/// The file of a held lock. If its path leads to another file, the lock no longer excludes other clients, and the session of
/// the hold ends.
#[derive(Debug)]
pub(crate) struct HeldMutex {
    pub(crate) name: Arc<str>,
    pub(crate) id: FileId,
    pub(crate) session: Session,
}

impl HeldMutex {
    pub(crate) fn check(&self, layout: &Layout) {
        let path = layout.mutex(&self.name);
        // An error says nothing about the file; the next tick checks again.
        if FileId::at(&path).is_ok_and(|there| there != Some(self.id)) {
            let reason = format!("its lock file {} was removed or replaced", path.display());
            self.session.end(LossReason::SessionEnded(reason.into()));
        }
    }
}

#[derive(Debug, Default)]
struct Shard {
    locks: LockIdMap<HeldLock>,
    /// Mutexes that were acquired since the last step of the watcher. Some may be released since.
    young: Vec<CompactLockId>,
    /// Those of the step before.
    older: Vec<CompactLockId>,
}

/// The locks of one store.
#[derive(Debug)]
pub(crate) struct Holds {
    shards: [Mutex<Shard>; SHARDS],
    ids: CompactLockIds,
    /// The watcher takes steps.
    has_young: AtomicBool,
}

impl Holds {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Holds {
            shards: Default::default(),
            ids: CompactLockIds::default(),
            has_young: AtomicBool::new(false),
        })
    }

    fn shard(&self, id: &CompactLockId) -> MutexGuard<'_, Shard> {
        let last = match id {
            // It rises.
            CompactLockId::Number(number) => number.get(),
            CompactLockId::Text(text) => text.as_str().bytes().rev().take(2).map(u64::from).sum(),
        };
        lock(&self.shards[(last % SHARDS as u64) as usize])
    }

    /// Adds a lock. True if the watcher takes no steps and must be told to.
    #[must_use]
    pub(crate) fn insert(&self, lock_id: &LockId, held: HeldLock) -> bool {
        let is_mutex = matches!(held, HeldLock::Mutex(_));
        let id = self.ids.of(lock_id);
        let mut shard = self.shard(&id);
        if is_mutex {
            shard.young.push(id.clone());
        }
        let replaced = shard.locks.insert(id, held);
        // Dropped without the lock: that releases it.
        drop(shard);
        drop(replaced);
        is_mutex && !self.has_young.load(Ordering::SeqCst) && !self.has_young.swap(true, Ordering::SeqCst)
    }

    /// A lock is about to be granted to a waiter: the watcher takes steps from now on, so `insert` need not wake it.
    pub(crate) fn expect(&self) {
        self.has_young.store(true, Ordering::SeqCst);
    }

    pub(crate) fn remove(&self, lock_id: &LockId) -> Option<HeldLock> {
        let id = self.ids.of(lock_id);
        let mut shard = self.shard(&id);
        if shard.young.last() == Some(&id) {
            // A lock that is released at once leaves nothing behind.
            shard.young.pop();
        }
        shard.locks.remove(&id)
    }

    /// Releases all locks, but for the rest of their minimum hold times.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let locks = std::mem::take(&mut *lock(shard));
            drop(locks);
        }
    }

    /// A copy of the open file that the kernel lock belongs to.
    pub(crate) fn descriptor(&self, lock_id: &LockId) -> Option<OwnedFd> {
        let id = self.ids.of(lock_id);
        let shard = self.shard(&id);
        shard.locks.get(&id)?.file().as_fd().try_clone_to_owned().ok()
    }

    /// Whether the watcher is to take steps.
    pub(crate) fn has_young(&self) -> bool {
        self.has_young.load(Ordering::SeqCst)
    }

    /// A step of the watcher: returns the mutexes that are held since the step before the last one, each once. Some may be released
    /// since: see [`mutex`](Holds::mutex).
    pub(crate) fn step(&self) -> Vec<CompactLockId> {
        let mut grown = Vec::new();
        let mut are_left = false;
        for shard in &self.shards {
            let mut shard = lock(shard);
            let Shard { locks, young, older } = &mut *shard;
            let mut due = std::mem::replace(older, std::mem::take(young));
            are_left |= !older.is_empty();
            due.retain(|id| matches!(locks.get(id), Some(HeldLock::Mutex(_))));
            drop(shard);
            grown.append(&mut due);
        }
        if !are_left {
            self.has_young.store(false, Ordering::SeqCst);
            // One that was added since its shard was looked at found the watcher taking steps.
            if self.shards.iter().any(|shard| !lock(shard).young.is_empty()) {
                self.has_young.store(true, Ordering::SeqCst);
            }
        }
        grown
    }

    /// This mutex, if it is still held.
    pub(crate) fn mutex(&self, id: &CompactLockId) -> Option<HeldMutex> {
        held_mutex(self.shard(id).locks.get(id)?)
    }

    pub(crate) fn has_mutexes(&self) -> bool {
        let is_mutex = |held: &HeldLock| matches!(held, HeldLock::Mutex(_));
        self.shards.iter().any(|shard| lock(shard).locks.values().any(is_mutex))
    }

    /// Passes the held mutexes to `visit`; only those with these files, if there are any. No lock of this registry is held meanwhile,
    /// and what `visit` is passed is copied in small parts: a copy of all takes half as much memory as the holds.
    pub(crate) fn visit_mutexes(
        &self,
        layout: &Layout,
        files: Option<&HashSet<Vec<u8>>>,
        mut visit: impl FnMut(&HeldMutex),
    ) {
        let is_wanted = |held: &HeldMutex| {
            files.is_none_or(|files| {
                layout
                    .mutex(&held.name)
                    .file_name()
                    .is_some_and(|name| files.contains(name.as_encoded_bytes()))
            })
        };
        let mut found = Vec::new();
        for shard in &self.shards {
            found.extend(lock(shard).locks.values().filter_map(held_mutex));
            found.drain(..).filter(is_wanted).for_each(|held| visit(&held));
        }
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

fn held_mutex(held: &HeldLock) -> Option<HeldMutex> {
    match held {
        HeldLock::Mutex(hold) => Some(hold.held_mutex()),
        HeldLock::Pool(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With the number of its lock id, eight bytes more. Larger is not wrong, but it is to be noticed.
    #[test]
    fn a_held_mutex_is_small() {
        assert!(size_of::<HeldLock>() <= 56, "{}", size_of::<HeldLock>());
    }
}
