//! Writing down what is seen.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use distlock_core::{Error, Guard, Locks, ReleaseError};

use super::event::{Event, Outcome, What, now};
use super::lock_spec::LockSpec;
use super::recorded_guard::RecordedGuard;

/// How the logs of a folder end.
const EXTENSION: &str = "jsonl";

/// The log of one actor. Every line is written at once and in one piece, so that it is there although the process
/// is killed in the next moment.
#[derive(Debug)]
pub struct Recorder {
    actor: String,
    file: Mutex<File>,
    next: AtomicU64,
}

impl Recorder {
    /// Begins the log of this actor in a folder.
    ///
    /// # Panics
    /// If the file cannot be made, or the actor has a log there already.
    #[must_use]
    pub fn create(folder: &Path, actor: &str) -> Arc<Self> {
        let path = folder.join(format!("{actor}.{EXTENSION}"));
        let file = OpenOptions::new().append(true).create_new(true).open(&path);
        let file = file.unwrap_or_else(|error| panic!("cannot make the log {}: {error}", path.display()));
        Arc::new(Recorder { actor: actor.to_owned(), file: Mutex::new(file), next: AtomicU64::new(1) })
    }

    /// The logs that a folder has.
    pub(super) fn logs(folder: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder)
            .unwrap_or_else(|error| panic!("cannot read the logs in {}: {error}", folder.display()));
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.extension().is_some_and(|extension| extension == EXTENSION)).collect()
    }

    /// Writes an event of another actor, or one that concerns no request.
    pub fn write(&self, event: &Event) {
        let mut line = serde_json::to_string(event).expect("an event can be written");
        line.push('\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(line.as_bytes()).expect("cannot write to the log");
    }

    /// The time comes from the caller: it must be older than what it testifies to.
    pub(super) fn note(&self, at: u64, ask: u64, what: What) {
        self.write(&Event { at, actor: self.actor.clone(), ask, what });
    }

    /// Writes down that something is asked for. To be called before the store can hear of it.
    #[must_use]
    pub fn asked(self: &Arc<Self>, spec: &LockSpec) -> Asked {
        let ask = self.next.fetch_add(1, Ordering::Relaxed);
        let (resource, weight, capacity) = (spec.resource(), spec.weight(), spec.capacity());
        self.note(now(), ask, What::Asked { resource, weight, capacity });
        Asked { recorder: Arc::clone(self), ask, answered: false }
    }

    /// Takes a lock, waiting, and writes down what comes of it.
    ///
    /// # Errors
    /// Those of the acquisition.
    ///
    /// # Cancel safety
    /// As safe as the acquisition; the log then says that it was given up.
    pub async fn take(self: &Arc<Self>, locks: &Locks, spec: &LockSpec) -> Result<RecordedGuard, Error> {
        let asked = self.asked(spec);
        asked.answered(spec.acquire(locks).await)
    }

    /// The same with a time limit.
    ///
    /// # Errors
    /// Those of the acquisition.
    pub async fn take_within(
        self: &Arc<Self>,
        locks: &Locks,
        spec: &LockSpec,
        limit: std::time::Duration,
    ) -> Result<RecordedGuard, Error> {
        let asked = self.asked(spec);
        asked.answered(spec.acquire(locks).timeout(limit).await)
    }

    /// One attempt; `None` if it is busy.
    ///
    /// # Errors
    /// Those of the attempt.
    pub async fn try_take(
        self: &Arc<Self>,
        locks: &Locks,
        spec: &LockSpec,
    ) -> Result<Option<RecordedGuard>, Error> {
        let asked = self.asked(spec);
        match spec.try_acquire(locks).await {
            Ok(Some(guard)) => Ok(Some(asked.granted(guard))),
            Ok(None) => {
                asked.refused("busy");
                Ok(None)
            }
            Err(error) => asked.answered(Err(error)).map(Some),
        }
    }
}

/// A request that was written down. Dropped without an answer, it was given up.
#[derive(Debug)]
pub struct Asked {
    recorder: Arc<Recorder>,
    ask: u64,
    answered: bool,
}

impl Asked {
    /// It was granted.
    #[must_use]
    pub fn granted(mut self, guard: Guard) -> RecordedGuard {
        self.answered = true;
        let (lock_id, token) = (guard.lock_id().to_string(), guard.token().get());
        let (at, held) = (now(), !guard.is_lost());
        self.recorder.note(at, self.ask, What::Granted { lock_id, token, held });
        RecordedGuard::new(guard, Arc::clone(&self.recorder), self.ask)
    }

    /// It was not.
    pub fn refused(mut self, why: impl Into<String>) {
        self.answered = true;
        self.recorder.note(now(), self.ask, What::Refused { why: why.into() });
    }

    /// Either.
    ///
    /// # Errors
    /// The error that was the answer.
    pub fn answered(self, answer: Result<Guard, Error>) -> Result<RecordedGuard, Error> {
        match answer {
            Ok(guard) => Ok(self.granted(guard)),
            Err(error) => {
                self.refused(format!("{:?}: {error}", error.kind()));
                Err(error)
            }
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if !self.answered {
            self.recorder.note(now(), self.ask, What::Cancelled);
        }
    }
}

pub(super) fn outcome_of(released: &Result<(), ReleaseError>) -> Outcome {
    match released {
        Ok(()) => Outcome::Clean,
        Err(ReleaseError::Lost { .. }) => Outcome::Lost,
        Err(_) => Outcome::Unknown,
    }
}
