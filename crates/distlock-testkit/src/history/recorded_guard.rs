//! A guard whose life is written down.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use distlock_core::{Guard, LossReason, ReleaseError};

use super::event::{What, now};
use super::record::{Recorder, outcome_of};

/// A guard beside the log that tells of it. Dropping it drops the guard, and the log says so.
#[derive(Debug)]
pub struct RecordedGuard {
    guard: Option<Guard>,
    recorder: Arc<Recorder>,
    ask: u64,
    told: AtomicBool,
}

impl RecordedGuard {
    pub(super) fn new(guard: Guard, recorder: Arc<Recorder>, ask: u64) -> Self {
        RecordedGuard { guard: Some(guard), recorder, ask, told: AtomicBool::new(false) }
    }

    /// Asks the guard whether it is held and writes the answer down.
    pub fn look(&self) -> bool {
        let at = now();
        match self.loss() {
            None => {
                self.recorder.note(at, self.ask, What::Kept);
                true
            }
            Some(reason) => {
                self.told(&reason);
                false
            }
        }
    }

    /// Waits until the guard is lost and writes it down.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn wait_for_loss(&self) -> LossReason {
        let reason = self.lost().await;
        self.told(&reason);
        reason
    }

    fn told(&self, reason: &LossReason) {
        if !self.told.swap(true, Ordering::SeqCst) {
            self.recorder.note(now(), self.ask, What::Lost { reason: reason.to_string() });
        }
    }

    fn giving_back(&self, guard: &Guard) {
        let (at, held) = (now(), !guard.is_lost());
        self.recorder.note(at, self.ask, What::GivingBack { held });
    }

    /// Releases it and writes down how that ended.
    ///
    /// # Errors
    /// Those of the release.
    ///
    /// # Cancel safety
    /// As for [`Guard::release`].
    pub async fn release(mut self) -> Result<(), ReleaseError> {
        let Some(guard) = self.guard.take() else { return Ok(()) };
        self.giving_back(&guard);
        let released = guard.release().await;
        self.recorder.note(now(), self.ask, What::GivenBack { outcome: outcome_of(&released) });
        released
    }

    /// The guard, whose end is not written down any more.
    ///
    /// # Panics
    /// Never: a guard leaves only with this value.
    pub fn into_guard(mut self) -> Guard {
        self.guard.take().expect("it leaves only with this value")
    }
}

impl Deref for RecordedGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        self.guard.as_ref().expect("it leaves only with this value")
    }
}

impl Drop for RecordedGuard {
    fn drop(&mut self) {
        if let Some(guard) = self.guard.take() {
            self.giving_back(&guard);
        }
    }
}
