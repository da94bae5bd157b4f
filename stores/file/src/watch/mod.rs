//! Being told when a file is closed, removed or replaced.
//!
//! One inotify instance and one thread for each store, made when the first lock is held or waited for. (A user may
//! have 128 instances by default, so one for each waiter would not do.) A thread of its own, not a task: it needs no
//! I/O driver in the user's runtime, and it notices a replaced file also while that runtime is busy.
//!
//! What is told is a hint and never a grant. It may be missing: there may be no inotify at all, it may run out of
//! watches, and it does not see what another machine does on a network file system. So waiters look again from time
//! to time whatever happens, and the thread looks after held files at every tick.
//!
//! A held file is watched only after it was held for a moment: most locks are held for less, and an instance that
//! ever had a watch costs a process 10 to 20 ms when it ends.

#[cfg(target_os = "linux")]
#[path = "inotify.rs"]
mod kernel;
#[cfg(not(target_os = "linux"))]
#[path = "none.rs"]
mod kernel;

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::Thread;
use std::time::{Duration, Instant};

use distlock_core::store::{LossReason, Session};
use tokio::sync::Notify;

use crate::layout::FileId;
use kernel::{Event, Kernel};

/// How often held files are looked after when the kernel tells, and when it does not.
const TICK: Duration = Duration::from_secs(5);
const TICK_ALONE: Duration = Duration::from_millis(500);

/// How long a file is held before it is watched.
const FRESH: Duration = Duration::from_millis(20);

/// After it failed, how long before asking the kernel for an instance again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// What to watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// A file: that it is closed by somebody who had it open for writing, moved or removed.
    File,
    /// A folder: that a file in it is closed by somebody who had it open for writing.
    Folder,
}

/// A file on which a held lock depends: if its path comes to stand for another file, the lock excludes nobody
/// any more, and the session of the hold ends.
#[derive(Debug)]
pub(crate) struct HeldFile {
    pub(crate) path: PathBuf,
    pub(crate) id: FileId,
    pub(crate) session: Session,
}

impl HeldFile {
    fn check(&self) {
        // An error says nothing about the file, and the next tick looks again.
        if FileId::at(&self.path).is_ok_and(|there| there != Some(self.id)) {
            let why = format!("its lock file {} was removed or replaced", self.path.display());
            self.session.end(LossReason::SessionEnded(why.into()));
        }
    }
}

#[derive(Debug)]
enum Listener {
    Waiter(Arc<Notify>),
    Hold(Arc<HeldFile>),
}

#[derive(Debug, Default)]
struct State {
    kernel: Option<Arc<Kernel>>,
    /// When the kernel refused an instance the last time.
    refused: Option<Instant>,
    thread: Option<Thread>,
    watches: HashMap<i32, Vec<(u64, Listener)>>,
    /// What is held, and its watch if it has one yet.
    holds: HashMap<u64, (Arc<HeldFile>, Option<i32>)>,
    /// Holds that may have no watch yet, by age.
    fresh: VecDeque<(Instant, u64)>,
    last_number: u64,
}

#[derive(Debug)]
struct Inner {
    kernel_tells: bool,
    state: Mutex<State>,
}

/// The watcher of a store.
#[derive(Clone, Debug)]
pub(crate) struct Watcher(Arc<Inner>);

/// Somebody who waits for a file to change. Dropping it ends the watch.
#[derive(Debug)]
pub(crate) struct Watch {
    inner: Arc<Inner>,
    number: u64,
    key: i32,
    notify: Arc<Notify>,
}

/// A held file that is looked after. Dropping it ends that.
#[derive(Debug)]
pub(crate) struct Kept {
    inner: Arc<Inner>,
    number: u64,
}

impl Watcher {
    /// `kernel_tells`: whether to use the kernel's notifications.
    pub(crate) fn new(kernel_tells: bool) -> Self {
        let state = Mutex::new(State::default());
        Watcher(Arc::new(Inner { kernel_tells, state }))
    }

    /// Watches a path. `None`: the kernel cannot tell; poll.
    pub(crate) fn watch(&self, path: &Path, scope: Scope) -> Option<Watch> {
        let mut state = self.started();
        let key = state.kernel.as_ref()?.add(path, scope).ok()?;
        let (number, notify) = (state.next(), Arc::new(Notify::new()));
        state.watches.entry(key).or_default().push((number, Listener::Waiter(Arc::clone(&notify))));
        Some(Watch { inner: Arc::clone(&self.0), number, key, notify })
    }

    /// Makes a file that is to be held one of the first that the kernel gives up if we die; see `inotify.rs`.
    pub(crate) fn raise(&self, file: File) -> File {
        match &self.started().kernel {
            Some(kernel) => kernel.raise(file),
            None => file,
        }
    }

    /// Looks after a held file from now on.
    pub(crate) fn keep(&self, held: &Arc<HeldFile>) -> Kept {
        let mut state = self.started();
        let number = state.next();
        state.holds.insert(number, (Arc::clone(held), None));
        state.fresh.push_back((Instant::now(), number));
        if state.fresh.len() == 1 {
            state.wake_thread();
        }
        Kept { inner: Arc::clone(&self.0), number }
    }

    /// Whether the kernel tells at present; for `doctor`.
    pub(crate) fn is_told(&self) -> bool {
        self.started().kernel.is_some()
    }

    fn started(&self) -> MutexGuard<'_, State> {
        let mut state = self.0.lock();
        let due = state.refused.is_none_or(|at| at.elapsed() >= ASK_AGAIN);
        if self.0.kernel_tells && state.kernel.is_none() && due {
            match Kernel::new() {
                Ok(kernel) => {
                    state.wake_thread();
                    state.kernel = Some(Arc::new(kernel));
                }
                Err(error) => {
                    tracing::debug!(%error, "no inotify: waiting by polling (see fs.inotify.max_user_instances)");
                    state.refused = Some(Instant::now());
                }
            }
        }
        if state.thread.is_none() {
            let inner = Arc::downgrade(&self.0);
            let thread = std::thread::Builder::new().name("distlock-watch".into());
            match thread.spawn(move || run(&inner)) {
                Ok(handle) => state.thread = Some(handle.thread().clone()),
                Err(error) => {
                    tracing::warn!(%error, "no thread to watch lock files: waiting by polling");
                    state.kernel = None;
                    state.refused = Some(Instant::now());
                }
            }
        }
        state
    }
}

impl Watch {
    /// Resolves when something changed since the last time, or since the watch began.
    ///
    /// # Cancel safety
    /// Cancel safe: a change that nobody was told of stays to be told.
    pub(crate) async fn changed(&self) {
        self.notify.notified().await;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.inner.lock().forget(self.key, self.number);
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let mut state = self.inner.lock();
        if let Some((_, Some(key))) = state.holds.remove(&self.number) {
            state.forget(key, self.number);
        }
    }
}

impl State {
    fn next(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn wake_thread(&self) {
        match (&self.kernel, &self.thread) {
            (Some(kernel), _) => kernel.interrupt(),
            (None, Some(thread)) => thread.unpark(),
            (None, None) => {}
        }
    }

    /// Begins to watch what was held long enough, and returns it: it may have been replaced before.
    fn watch_holds(&mut self) -> Vec<Arc<HeldFile>> {
        let mut begun = Vec::new();
        while self.fresh.front().is_some_and(|(since, _)| since.elapsed() >= FRESH) {
            let Some((_, number)) = self.fresh.pop_front() else { break };
            let Some((held, key)) = self.holds.get_mut(&number) else { continue };
            *key = self.kernel.as_ref().and_then(|kernel| kernel.add(&held.path, Scope::File).ok());
            if let Some(key) = key {
                self.watches.entry(*key).or_default().push((number, Listener::Hold(Arc::clone(held))));
            }
            begun.push(Arc::clone(held));
        }
        begun
    }

    fn forget(&mut self, key: i32, number: u64) {
        let Some(listeners) = self.watches.get_mut(&key) else { return };
        listeners.retain(|(other, _)| *other != number);
        if listeners.is_empty() {
            self.watches.remove(&key);
            if let Some(kernel) = &self.kernel {
                kernel.remove(key);
            }
        }
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, events: &[Event]) {
        let mut suspects = Vec::new();
        let mut state = self.lock();
        for event in events {
            let told: Vec<&(u64, Listener)> = match event.key {
                Some(key) => state.watches.get(&key).into_iter().flatten().collect(),
                None => state.watches.values().flatten().collect(),
            };
            for (_, listener) in told {
                match listener {
                    Listener::Waiter(notify) => notify.notify_one(),
                    Listener::Hold(held) if event.is_move => suspects.push(Arc::clone(held)),
                    Listener::Hold(_) => {}
                }
            }
            if let (true, Some(key)) = (event.is_end, event.key) {
                // The kernel took the watch away with the file. Its number is not used again.
                state.watches.remove(&key);
            }
        }
        drop(state);
        suspects.iter().for_each(|held| held.check());
    }

    fn tick(&self) {
        let holds: Vec<Arc<HeldFile>> =
            self.lock().holds.values().map(|(held, _)| Arc::clone(held)).collect();
        holds.iter().for_each(|held| held.check());
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The thread wakes up, finds us gone and ends.
        self.state.get_mut().unwrap_or_else(PoisonError::into_inner).wake_thread();
    }
}

fn run(inner: &Weak<Inner>) {
    let mut last_tick = Instant::now();
    loop {
        let Some((kernel, fresh)) = inner.upgrade().map(|inner| {
            let state = inner.lock();
            (state.kernel.clone(), state.fresh.front().map(|(since, _)| *since))
        }) else {
            return;
        };
        let tick = if kernel.is_some() { TICK } else { TICK_ALONE };
        let until_tick = tick.saturating_sub(last_tick.elapsed());
        let until_fresh = fresh.map_or(tick, |since| FRESH.saturating_sub(since.elapsed()));
        let nap = until_tick.min(until_fresh);
        let events = match kernel {
            Some(kernel) => kernel.wait(nap),
            None => {
                std::thread::park_timeout(nap);
                Vec::new()
            }
        };
        let Some(inner) = inner.upgrade() else { return };
        inner.tell(&events);
        let begun = inner.lock().watch_holds();
        begun.iter().for_each(|held| held.check());
        if last_tick.elapsed() >= tick {
            inner.tick();
            last_tick = Instant::now();
        }
    }
}
