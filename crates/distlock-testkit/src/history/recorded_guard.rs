//! A guard whose states are recorded.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use distlock_core::{Guard, LossReason, ReleaseError};

use super::event::{EventKind, ReleaseOutcome, now};
use super::record::Recorder;

/// A guard and the log of its states. Dropping it records the drop, then drops the guard.
#[derive(Debug)]
pub struct RecordedGuard {
    guard: Option<Guard>,
    recorder: Arc<Recorder>,
    request: u64,
    loss_recorded: AtomicBool,
}

impl RecordedGuard {
    pub(super) fn new(guard: Guard, recorder: Arc<Recorder>, request: u64) -> Self {
        RecordedGuard { guard: Some(guard), recorder, request, loss_recorded: AtomicBool::new(false) }
    }

    /// Whether the guard is held; records the answer.
    pub fn check_held(&self) -> bool {
        let at = now();
        match self.loss() {
            None => {
                self.recorder.record(at, self.request, EventKind::Held);
                true
            }
            Some(reason) => {
                self.record_loss(&reason);
                false
            }
        }
    }

    /// Waits until the guard is lost and records the loss.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn wait_for_loss(&self) -> LossReason {
        let reason = self.lost().await;
        self.record_loss(&reason);
        reason
    }

    fn record_loss(&self, reason: &LossReason) {
        if !self.loss_recorded.swap(true, Ordering::SeqCst) {
            self.recorder.record(now(), self.request, EventKind::Lost { reason: reason.to_string() });
        }
    }

    fn record_releasing(&self, guard: &Guard) {
        let (at, held) = (now(), !guard.is_lost());
        self.recorder.record(at, self.request, EventKind::Releasing { held });
    }

    /// Releases the lock and records the outcome.
    ///
    /// # Errors
    /// Those of the release.
    ///
    /// # Cancel safety
    /// As for [`Guard::release`].
    pub async fn release(mut self) -> Result<(), ReleaseError> {
        let Some(guard) = self.guard.take() else { return Ok(()) };
        self.record_releasing(&guard);
        let released = guard.release().await;
        let outcome = ReleaseOutcome::of(&released);
        self.recorder.record(now(), self.request, EventKind::Released { outcome });
        released
    }

    /// The guard itself. Its further states are not recorded.
    ///
    /// # Panics
    /// Never: the guard is present until this value is consumed.
    pub fn into_guard(mut self) -> Guard {
        self.guard.take().expect("present until this value is consumed")
    }
}

impl ReleaseOutcome {
    /// The outcome of this result of a release.
    #[must_use]
    pub fn of(released: &Result<(), ReleaseError>) -> Self {
        match released {
            Ok(()) => ReleaseOutcome::Clean,
            Err(ReleaseError::Lost { .. }) => ReleaseOutcome::Lost,
            Err(_) => ReleaseOutcome::Unknown,
        }
    }
}

impl Deref for RecordedGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        self.guard.as_ref().expect("present until this value is consumed")
    }
}

impl Drop for RecordedGuard {
    fn drop(&mut self) {
        if let Some(guard) = self.guard.take() {
            self.record_releasing(&guard);
        }
    }
}
