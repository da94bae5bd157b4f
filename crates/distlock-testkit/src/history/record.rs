//! Recording events.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use distlock_core::{Error, Guard, Locks};

use super::event::{Event, EventKind, now};
use super::lock_spec::LockSpec;
use super::recorded_guard::RecordedGuard;

/// The extension of log files.
const EXTENSION: &str = "jsonl";

/// The log of one actor. Every event is written at once with one system call, so it survives a kill of the process.
#[derive(Debug)]
pub struct Recorder {
    actor: String,
    file: Mutex<File>,
    next: AtomicU64,
}

impl Recorder {
    /// Creates the log of this actor in a folder.
    ///
    /// # Panics
    /// If the file cannot be created, or the actor already has a log there.
    #[must_use]
    pub fn create(folder: &Path, actor: &str) -> Arc<Self> {
        let path = folder.join(format!("{actor}.{EXTENSION}"));
        let file = OpenOptions::new().append(true).create_new(true).open(&path);
        let file = file.unwrap_or_else(|error| panic!("cannot create the log {}: {error}", path.display()));
        Arc::new(Recorder { actor: actor.to_owned(), file: Mutex::new(file), next: AtomicU64::new(1) })
    }

    /// The logs in a folder.
    pub(super) fn logs(folder: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder)
            .unwrap_or_else(|error| panic!("cannot read the logs in {}: {error}", folder.display()));
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.extension().is_some_and(|extension| extension == EXTENSION)).collect()
    }

    /// Writes an event of another actor, or one that concerns no request.
    pub fn write(&self, event: &Event) {
        let mut line = serde_json::to_string(event).expect("an event can be serialised");
        line.push('\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(line.as_bytes()).expect("cannot write to the log");
    }

    /// Writes an event of this actor. The caller reads the clock, because `at` must precede the observation.
    pub(super) fn record(&self, at: u64, request: u64, kind: EventKind) {
        self.write(&Event { at, actor: self.actor.clone(), request, kind });
    }

    /// Records a request. Call this before the request can reach the store.
    #[must_use]
    pub fn request(self: &Arc<Self>, spec: &LockSpec) -> RecordedRequest {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (resource, weight, capacity) = (spec.resource(), spec.weight(), spec.capacity());
        self.record(now(), number, EventKind::Requested { resource, weight, capacity });
        RecordedRequest { recorder: Arc::clone(self), number, answered: false }
    }

    /// Acquires a lock, waiting for it, and records the result.
    ///
    /// # Errors
    /// Those of the acquisition.
    ///
    /// # Cancel safety
    /// That of the acquisition. The log then says that it was cancelled.
    pub async fn acquire(self: &Arc<Self>, locks: &Locks, spec: &LockSpec) -> Result<RecordedGuard, Error> {
        let request = self.request(spec);
        request.finish(spec.acquire(locks).await)
    }

    /// [`acquire`](Self::acquire) with a time limit.
    ///
    /// # Errors
    /// Those of the acquisition.
    pub async fn acquire_within(
        self: &Arc<Self>,
        locks: &Locks,
        spec: &LockSpec,
        limit: std::time::Duration,
    ) -> Result<RecordedGuard, Error> {
        let request = self.request(spec);
        request.finish(spec.acquire(locks).timeout(limit).await)
    }

    /// Makes one attempt; `None` if the lock is busy.
    ///
    /// # Errors
    /// Those of the attempt.
    pub async fn try_acquire(
        self: &Arc<Self>,
        locks: &Locks,
        spec: &LockSpec,
    ) -> Result<Option<RecordedGuard>, Error> {
        let request = self.request(spec);
        match spec.try_acquire(locks).await {
            Ok(Some(guard)) => Ok(Some(request.granted(guard))),
            Ok(None) => {
                request.refused("busy");
                Ok(None)
            }
            Err(error) => request.finish(Err(error)).map(Some),
        }
    }
}

/// A recorded request. Dropping it before it is answered records a cancellation.
#[derive(Debug)]
pub struct RecordedRequest {
    recorder: Arc<Recorder>,
    number: u64,
    answered: bool,
}

impl RecordedRequest {
    /// Records the grant.
    #[must_use]
    pub fn granted(mut self, guard: Guard) -> RecordedGuard {
        self.answered = true;
        let (lock_id, token) = (guard.lock_id().to_string(), guard.token().get());
        let (at, held) = (now(), !guard.is_lost());
        self.recorder.record(at, self.number, EventKind::Granted { lock_id, token, held });
        RecordedGuard::new(guard, Arc::clone(&self.recorder), self.number)
    }

    /// Records that the request ended without a grant.
    pub fn refused(mut self, reason: impl Into<String>) {
        self.answered = true;
        self.recorder.record(now(), self.number, EventKind::Refused { reason: reason.into() });
    }

    /// Records the result of the acquisition.
    ///
    /// # Errors
    /// The error of the acquisition.
    pub fn finish(self, result: Result<Guard, Error>) -> Result<RecordedGuard, Error> {
        match result {
            Ok(guard) => Ok(self.granted(guard)),
            Err(error) => {
                self.refused(format!("{:?}: {error}", error.kind()));
                Err(error)
            }
        }
    }
}

impl Drop for RecordedRequest {
    fn drop(&mut self) {
        if !self.answered {
            self.recorder.record(now(), self.number, EventKind::Cancelled);
        }
    }
}
