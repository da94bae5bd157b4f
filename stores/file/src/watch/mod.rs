//! Being told when a file is closed, removed or replaced.
//!
//! One inotify instance and one thread for each store, made when the first lock is held or waited for. (A user may
//! have 128 instances by default, so one for each waiter would not do.) A thread of its own, not a task: it needs no
//! I/O driver in the user's runtime, and it notices a replaced file also while that runtime is busy.
//!
//! What is told is a hint and never a grant. It may be missing: there may be no inotify at all, it may run out of
//! watches, and it does not see what another machine does on a network file system. So waiters look again from time
//! to time whatever happens, and the thread looks after held files at every tick.

#[cfg(target_os = "linux")]
#[path = "inotify.rs"]
mod kernel;
#[cfg(not(target_os = "linux"))]
#[path = "none.rs"]
mod kernel;

use std::collections::HashMap;
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
    /// On the folder of the store: taking it away wakes the thread.
    sentinel: Option<i32>,
    watches: HashMap<i32, Vec<(u64, Listener)>>,
    holds: HashMap<u64, Arc<HeldFile>>,
    last_number: u64,
}

#[derive(Debug)]
struct Inner {
    base: PathBuf,
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
    key: Option<i32>,
}

impl Watcher {
    /// `kernel_tells`: whether to use the kernel's notifications.
    pub(crate) fn new(base: &Path, kernel_tells: bool) -> Self {
        let state = Mutex::new(State::default());
        Watcher(Arc::new(Inner { base: base.to_owned(), kernel_tells, state }))
    }

    /// Watches a path. `None`: the kernel cannot tell; poll.
    pub(crate) fn watch(&self, path: &Path, scope: Scope) -> Option<Watch> {
        let mut state = self.started();
        let key = state.kernel.as_ref()?.add(path, scope).ok()?;
        let (number, notify) = (state.next(), Arc::new(Notify::new()));
        state.watches.entry(key).or_default().push((number, Listener::Waiter(Arc::clone(&notify))));
        Some(Watch { inner: Arc::clone(&self.0), number, key, notify })
    }

    /// Looks after a held file from now on.
    pub(crate) fn keep(&self, held: &Arc<HeldFile>) -> Kept {
        let mut state = self.started();
        let number = state.next();
        let key = state.kernel.as_ref().and_then(|kernel| kernel.add(&held.path, Scope::File).ok());
        if let Some(key) = key {
            state.watches.entry(key).or_default().push((number, Listener::Hold(Arc::clone(held))));
        }
        state.holds.insert(number, Arc::clone(held));
        Kept { inner: Arc::clone(&self.0), number, key }
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
                    state.sentinel = kernel.add(&self.0.base, Scope::Folder).ok();
                    state.kernel = Some(Arc::new(kernel));
                    if let Some(thread) = &state.thread {
                        thread.unpark();
                    }
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
        state.holds.remove(&self.number);
        if let Some(key) = self.key {
            state.forget(key, self.number);
        }
    }
}

impl State {
    fn next(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
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
                Some(key) if Some(key) != state.sentinel => {
                    state.watches.get(&key).into_iter().flatten().collect()
                }
                _ => state.watches.values().flatten().collect(),
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
        let holds: Vec<Arc<HeldFile>> = self.lock().holds.values().cloned().collect();
        holds.iter().for_each(|held| held.check());
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Either way the thread wakes up, finds us gone and ends.
        if let (Some(kernel), Some(sentinel)) = (&state.kernel, state.sentinel) {
            kernel.remove(sentinel);
        }
        if let Some(thread) = &state.thread {
            thread.unpark();
        }
    }
}

fn run(inner: &Weak<Inner>) {
    let mut last_tick = Instant::now();
    loop {
        let Some(kernel) = inner.upgrade().map(|inner| inner.lock().kernel.clone()) else { return };
        let tick = if kernel.is_some() { TICK } else { TICK_ALONE };
        let left = tick.saturating_sub(last_tick.elapsed());
        let events = match kernel {
            Some(kernel) => kernel.wait(left),
            None => {
                std::thread::park_timeout(left);
                Vec::new()
            }
        };
        let Some(inner) = inner.upgrade() else { return };
        inner.tell(&events);
        if last_tick.elapsed() >= tick {
            inner.tick();
            last_tick = Instant::now();
        }
    }
}
