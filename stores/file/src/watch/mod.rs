//! Notifications when a file is closed, removed or replaced.
//!
//! Each store has one inotify instance and one thread, started when the first lock is held or waited for. (A user may have
//! 128 instances by default, so one for each waiter is too many.) It is a thread, not a task: it needs no I/O driver in the
//! user's runtime, and it detects a replaced file also while that runtime is busy.
//!
//! A notification is a hint and never a grant. It may be missing: inotify may not exist, may run out of watches, and does
//! not see what another machine does on a network file system. So waiters also poll, and the thread checks held files at
//! every tick.
//!
//! For the files of mutexes that are held, one watch on their folder is enough: it reports the names that are removed or
//! replaced. The base folder is watched too: another one may take its place. The thread looks after them in steps: see `holds`.
//!
//! A user has a limited number of watches. While one for a hold is refused, the thread checks held files as if it had no inotify.
//!
//! Nothing is watched for a hold before it is 20 ms old: most locks are held for less, and an instance that ever had a watch
//! delays the exit of its process by 10 to 20 ms.

#[cfg(target_os = "linux")]
mod inotify;
#[cfg(not(target_os = "linux"))]
#[path = "none.rs"]
mod inotify;

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::Thread;
use std::time::{Duration, Instant};

use distlock_core::store::{LossReason, Session};
use tokio::sync::Notify;

use crate::holds::Holds;
use crate::layout::{FileId, Layout};
use inotify::Inotify;

/// How often held files are checked with notifications, and without.
const TICK: Duration = Duration::from_secs(5);
const TICK_POLLING: Duration = Duration::from_millis(500);

/// How long a file is held at least before it is watched, and how often files that are not yet watched are looked at: twice
/// that later at most, they are.
const UNWATCHED: Duration = Duration::from_millis(20);

/// How long after a failure the kernel is asked for an instance again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// After this long the thread drops what waiters have left behind. They have their locks by then, and their successors are not
/// kept waiting: two waiters watch a lock file.
const DROPPED_AFTER: Duration = Duration::from_millis(1);

/// What to watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchScope {
    /// A file: it is moved or removed, or closed after it was open for writing.
    File,
    /// A folder: a file in it is closed after it was open for writing.
    Folder,
    /// A folder: a name in it is removed, or leads to another file.
    Names,
    /// A folder: it is moved or removed.
    Place,
}

/// A notification of the kernel.
#[derive(Debug)]
struct WatchEvent {
    /// The watch; `None`: events were lost, it may concern any watch.
    key: Option<i32>,
    /// The path may lead to another file now.
    is_move: bool,
    /// The kernel removed the watch.
    is_end: bool,
    /// The name in the folder that is watched for names; `None`: the folder itself.
    name: Option<Vec<u8>>,
}

/// The slot of a holder of a pool. If its path leads to another file, the lock no longer excludes other clients, and the session
/// of the hold ends.
#[derive(Debug)]
pub(crate) struct HeldFile {
    pub(crate) path: PathBuf,
    pub(crate) id: FileId,
    pub(crate) session: Session,
}

impl HeldFile {
    fn check(&self) {
        // An error says nothing about the file; the next tick checks again.
        if FileId::at(&self.path).is_ok_and(|there| there != Some(self.id)) {
            let reason = format!("its lock file {} was removed or replaced", self.path.display());
            self.session.end(LossReason::SessionEnded(reason.into()));
        }
    }
}

#[derive(Debug)]
enum Listener {
    Waiter(Arc<Notify>),
    Hold(Arc<HeldFile>),
}

#[derive(Debug, Default)]
struct WatcherState {
    inotify: Option<Arc<Inotify>>,
    /// When the kernel last refused an instance.
    refused: Option<Instant>,
    thread: Option<Thread>,
    watches: HashMap<i32, Vec<(u64, Listener)>>,
    /// The watches on the base folder and the folder of the mutexes: one on each, or more after a folder was replaced.
    mutex_folders: HashSet<i32>,
    /// A watch for a hold was refused.
    is_blind: bool,
    /// The held files, and their watches if they have one.
    holds: HashMap<u64, (Arc<HeldFile>, Option<i32>)>,
    /// What waiters have left behind.
    spent: Spent,
    /// Holds without a watch, by age.
    unwatched: VecDeque<(Instant, u64)>,
    last_number: u64,
}

#[derive(Debug)]
struct WatcherInner {
    use_inotify: bool,
    layout: Arc<Layout>,
    holds: Weak<Holds>,
    state: Mutex<WatcherState>,
    /// The thread was started.
    is_started: AtomicBool,
    /// The descriptor of the instance, or -1.
    instance: AtomicI32,
}

/// The watcher of a store.
#[derive(Clone, Debug)]
pub(crate) struct Watcher(Arc<WatcherInner>);

/// What the thread drops at a moment. While there is one, the thread need not be woken for more.
#[derive(Default)]
struct Spent {
    at: Option<Instant>,
    things: Vec<Box<dyn Send>>,
}

impl fmt::Debug for Spent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spent").field("at", &self.at).field("things", &self.things.len()).finish()
    }
}

impl Spent {
    /// There may soon be something. False if that was known.
    fn expect(&mut self) -> bool {
        let is_new = self.at.is_none();
        self.at.get_or_insert_with(|| Instant::now() + DROPPED_AFTER);
        is_new
    }

    fn take_due(&mut self) -> Vec<Box<dyn Send>> {
        match self.at.take_if(|at| *at <= Instant::now()) {
            Some(_) => std::mem::take(&mut self.things),
            None => Vec::new(),
        }
    }
}

/// The watch of a waiter. Dropping it ends the watch.
#[derive(Debug)]
pub(crate) struct FileWatch {
    inner: Arc<WatcherInner>,
    number: u64,
    key: i32,
    notify: Arc<Notify>,
}

/// The watch of a held file. Dropping it ends the watch.
#[derive(Debug)]
pub(crate) struct HoldWatch {
    inner: Arc<WatcherInner>,
    number: u64,
}

impl Watcher {
    pub(crate) fn new(use_inotify: bool, layout: &Arc<Layout>, holds: &Arc<Holds>) -> Self {
        Watcher(Arc::new(WatcherInner {
            use_inotify,
            layout: Arc::clone(layout),
            holds: Arc::downgrade(holds),
            state: Mutex::default(),
            is_started: AtomicBool::new(false),
            instance: AtomicI32::new(-1),
        }))
    }

    /// Starts the thread, if it was not started. Before the first lock file is opened, so that the instance has a lower
    /// descriptor; see `inotify.rs`.
    pub(crate) fn start(&self) {
        if !self.0.is_started.load(Ordering::Acquire) {
            drop(self.started());
        }
    }

    /// Wakes the thread: there are holds to look after in steps.
    pub(crate) fn wake(&self) {
        self.started().wake_thread();
    }

    /// Watches a path. `None`: there are no notifications, poll.
    pub(crate) fn watch(&self, path: &Path, scope: WatchScope) -> Option<FileWatch> {
        let mut state = self.started();
        let key = state.inotify.as_ref()?.add(path, scope).ok()?;
        let (number, notify) = (state.next_number(), Arc::new(Notify::new()));
        state.watches.entry(key).or_default().push((number, Listener::Waiter(Arc::clone(&notify))));
        Some(FileWatch { inner: Arc::clone(&self.0), number, key, notify })
    }

    /// Moves a file to a descriptor that the kernel closes early if this process dies; see `inotify.rs`.
    pub(crate) fn raise_descriptor(&self, file: File) -> File {
        self.start();
        let least: RawFd = self.0.instance.load(Ordering::Relaxed) + 1;
        if file.as_raw_fd() >= least {
            return file;
        }
        // The lock belongs to the open file, not to the descriptor. Without a free descriptor, it stays as it is.
        rustix::io::fcntl_dupfd_cloexec(&file, least).map_or(file, File::from)
    }

    /// Drops what a waiter leaves behind, on the thread of the watcher.
    pub(crate) fn drop_soon(&self, spent: impl Send + 'static) {
        let mut state = self.0.lock();
        if state.thread.is_none() {
            drop(state);
            return drop(spent);
        }
        state.spent.things.push(Box::new(spent));
        if state.spent.expect() {
            state.wake_thread();
        }
    }

    /// Checks a held file from now on.
    pub(crate) fn watch_hold(&self, held: &Arc<HeldFile>) -> HoldWatch {
        let mut state = self.started();
        let number = state.next_number();
        state.holds.insert(number, (Arc::clone(held), None));
        state.unwatched.push_back((Instant::now(), number));
        if state.unwatched.len() == 1 {
            state.wake_thread();
        }
        HoldWatch { inner: Arc::clone(&self.0), number }
    }

    /// Whether there are notifications; for `doctor`.
    pub(crate) fn is_notified(&self) -> bool {
        self.started().inotify.is_some()
    }

    fn started(&self) -> MutexGuard<'_, WatcherState> {
        let mut state = self.0.lock();
        let due = state.refused.is_none_or(|at| at.elapsed() >= RETRY_AFTER);
        if self.0.use_inotify && state.inotify.is_none() && due {
            match Inotify::new() {
                Ok(inotify) => {
                    state.wake_thread();
                    self.0.instance.store(inotify.descriptor(), Ordering::Relaxed);
                    state.inotify = Some(Arc::new(inotify));
                }
                Err(error) => {
                    tracing::debug!(%error, "no inotify, polling instead (see fs.inotify.max_user_instances)");
                    state.refused = Some(Instant::now());
                }
            }
        }
        if state.thread.is_none() {
            let inner = Arc::downgrade(&self.0);
            let thread = std::thread::Builder::new().name("distlock-watch".into());
            match thread.spawn(move || run(&inner)) {
                Ok(handle) => {
                    state.thread = Some(handle.thread().clone());
                    self.0.is_started.store(true, Ordering::Release);
                }
                Err(error) => {
                    tracing::warn!(%error, "no thread to watch lock files, polling instead");
                    state.inotify = None;
                    self.0.instance.store(-1, Ordering::Relaxed);
                    state.refused = Some(Instant::now());
                }
            }
        }
        state
    }
}

impl FileWatch {
    /// Resolves when something changed since the last call, or since the watch began.
    ///
    /// # Cancel safety
    /// Cancel safe: an unseen change is reported by the next call.
    pub(crate) async fn changed(&self) {
        self.notify.notified().await;
    }
}

impl Drop for FileWatch {
    fn drop(&mut self) {
        self.inner.lock().remove(self.key, self.number);
    }
}

impl Drop for HoldWatch {
    fn drop(&mut self) {
        let mut state = self.inner.lock();
        if let Some((_, Some(key))) = state.holds.remove(&self.number) {
            state.remove(key, self.number);
        }
    }
}

impl WatcherState {
    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn wake_thread(&self) {
        match (&self.inotify, &self.thread) {
            (Some(inotify), _) => inotify.interrupt(),
            (None, Some(thread)) => thread.unpark(),
            (None, None) => {}
        }
    }

    /// Starts the watches that are due, and returns their files: they may have been replaced before.
    fn start_watches(&mut self) -> Vec<Arc<HeldFile>> {
        let mut started = Vec::new();
        while self.unwatched.front().is_some_and(|(since, _)| since.elapsed() >= UNWATCHED) {
            let Some((_, number)) = self.unwatched.pop_front() else { break };
            let Some((held, key)) = self.holds.get_mut(&number) else { continue };
            *key = self.inotify.as_ref().and_then(|inotify| inotify.add(&held.path, WatchScope::File).ok());
            match key {
                Some(key) => {
                    self.watches.entry(*key).or_default().push((number, Listener::Hold(Arc::clone(held))))
                }
                None => self.is_blind = true,
            }
            started.push(Arc::clone(held));
        }
        started
    }

    /// Watches the folders of held mutexes. Where they are watched already, this changes nothing.
    fn watch_folders(&mut self, layout: &Layout) {
        let Some(inotify) = &self.inotify else { return };
        match inotify.add(&layout.mutexes(), WatchScope::Names) {
            Ok(key) => drop(self.mutex_folders.insert(key)),
            Err(error) => {
                if !self.is_blind {
                    tracing::debug!(%error, "cannot watch the lock folder, polling (see fs.inotify.max_user_watches)");
                }
                self.is_blind = true;
            }
        }
        // A folder that this user may not read cannot be watched; the tick finds out then.
        self.mutex_folders.extend(inotify.add(layout.base(), WatchScope::Place));
    }

    /// Asks again for the watches that were refused.
    fn watch_again(&mut self) {
        self.is_blind = false;
        for (number, (_, key)) in &self.holds {
            if key.is_none() && !self.unwatched.iter().any(|(_, other)| other == number) {
                self.unwatched.push_back((Instant::now(), *number));
            }
        }
    }

    fn remove(&mut self, key: i32, number: u64) {
        let Some(listeners) = self.watches.get_mut(&key) else { return };
        listeners.retain(|(other, _)| *other != number);
        if listeners.is_empty() {
            self.watches.remove(&key);
            if let Some(inotify) = &self.inotify {
                inotify.remove(key);
            }
        }
    }
}

impl WatcherInner {
    fn lock(&self) -> MutexGuard<'_, WatcherState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dispatch(&self, events: &[WatchEvent]) {
        let mut to_check = Vec::new();
        let mut mutexes = MutexesToCheck::default();
        let mut state = self.lock();
        let mut wakes_waiters = false;
        for event in events {
            if event.key.is_none_or(|key| state.mutex_folders.contains(&key)) {
                mutexes.add(event);
            }
            if let (true, Some(key)) = (event.is_end, event.key) {
                state.mutex_folders.remove(&key);
            }
            let concerned: Vec<&(u64, Listener)> = match event.key {
                Some(key) => state.watches.get(&key).into_iter().flatten().collect(),
                None => state.watches.values().flatten().collect(),
            };
            for (_, listener) in concerned {
                match listener {
                    Listener::Waiter(notify) => {
                        wakes_waiters = true;
                        notify.notify_one();
                    }
                    Listener::Hold(held) if event.is_move => to_check.push(Arc::clone(held)),
                    Listener::Hold(_) => {}
                }
            }
            if let (true, Some(key)) = (event.is_end, event.key) {
                // The kernel removed the watch with the file, and does not reuse its number.
                state.watches.remove(&key);
            }
        }
        if wakes_waiters {
            // One of them is about to be granted the lock, and need not wake this thread then.
            state.spent.expect();
        }
        drop(state);
        if wakes_waiters && let Some(holds) = self.holds.upgrade() {
            holds.expect();
        }
        to_check.iter().for_each(|held| held.check());
        match mutexes {
            MutexesToCheck { all: true, .. } => self.check_all(),
            MutexesToCheck { names, .. } if names.is_empty() => {}
            MutexesToCheck { names, .. } => self.check_mutexes(Some(&names)),
        }
    }

    fn check_all(&self) {
        let holds: Vec<Arc<HeldFile>> =
            self.lock().holds.values().map(|(held, _)| Arc::clone(held)).collect();
        holds.iter().for_each(|held| held.check());
        self.check_mutexes(None);
    }

    /// Checks the held mutexes; only those with these file names, if there are any.
    fn check_mutexes(&self, names: Option<&HashSet<Vec<u8>>>) {
        if let Some(holds) = self.holds.upgrade() {
            holds.visit_mutexes(&self.layout, names, |held| held.check(&self.layout));
        }
    }

    /// Asks again for the watches that were refused.
    fn watch_again(&self) {
        let holds_mutexes = self.holds.upgrade().is_some_and(|holds| holds.has_mutexes());
        let mut state = self.lock();
        state.watch_again();
        if holds_mutexes {
            state.watch_folders(&self.layout);
        }
    }

    fn has_young_mutexes(&self) -> bool {
        self.holds.upgrade().is_some_and(|holds| holds.has_young())
    }

    /// Looks after the mutexes that are held for a while now: checks their files, and watches their folder from now on.
    fn step(&self) {
        let Some(holds) = self.holds.upgrade() else { return };
        let grown = holds.step();
        if grown.is_empty() {
            return;
        }
        // Each time: another folder may be in its place.
        self.lock().watch_folders(&self.layout);
        // Not before: changes before the watch began are not reported.
        grown.iter().filter_map(|id| holds.mutex(id)).for_each(|held| held.check(&self.layout));
    }
}

/// What events say about the files of mutexes.
#[derive(Debug, Default)]
struct MutexesToCheck {
    all: bool,
    names: HashSet<Vec<u8>>,
}

impl MutexesToCheck {
    fn add(&mut self, event: &WatchEvent) {
        match &event.name {
            Some(name) => drop(self.names.insert(name.clone())),
            None => self.all = true,
        }
    }
}

impl Drop for WatcherInner {
    fn drop(&mut self) {
        // The thread wakes up, finds the watcher gone and ends.
        self.state.get_mut().unwrap_or_else(PoisonError::into_inner).wake_thread();
    }
}

fn run(inner: &Weak<WatcherInner>) {
    let mut last_tick = Instant::now();
    let mut last_step = Instant::now();
    loop {
        let Some((inotify, are_unwatched, is_blind, drops_at)) = inner.upgrade().map(|inner| {
            let state = inner.lock();
            let are_unwatched = !state.unwatched.is_empty() || inner.has_young_mutexes();
            (state.inotify.clone(), are_unwatched, state.is_blind, state.spent.at)
        }) else {
            return;
        };
        let tick = if inotify.is_some() && !is_blind { TICK } else { TICK_POLLING };
        let until_tick = tick.saturating_sub(last_tick.elapsed());
        let until_step = UNWATCHED.saturating_sub(last_step.elapsed());
        let pause = if are_unwatched { until_tick.min(until_step) } else { until_tick };
        let pause = drops_at.map_or(pause, |at| pause.min(at.saturating_duration_since(Instant::now())));
        let events = match inotify {
            Some(inotify) => inotify.wait(pause),
            None => {
                std::thread::park_timeout(pause);
                Vec::new()
            }
        };
        let Some(inner) = inner.upgrade() else { return };
        inner.dispatch(&events);
        let spent = inner.lock().spent.take_due();
        drop(spent);
        if last_step.elapsed() >= UNWATCHED {
            last_step = Instant::now();
            let started = inner.lock().start_watches();
            started.iter().for_each(|held| held.check());
            inner.step();
        }
        if last_tick.elapsed() >= tick {
            if is_blind {
                inner.watch_again();
            }
            inner.check_all();
            last_tick = Instant::now();
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
