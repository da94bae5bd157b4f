//! The parts of the engine that only one kind of store needs: each has its batchers.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::batcher::{self, Batcher};
use super::command_channel::CommandChannel;
use super::local_wakeups::LocalWakeups;
use super::renewal;
use super::session_batches::{SessionAttemptOperation, SessionReleaseOperation};
use super::store_call::{AcquireOperation, ReleaseOperation};
use super::wakeups::Wakeups;
use crate::store::{Capabilities, LeaseStore, SessionStore};

/// For lease stores.
pub(super) struct LeaseSide {
    pub(super) store: Arc<dyn LeaseStore>,
    pub(super) acquire: Arc<Batcher<AcquireOperation>>,
    pub(super) release: Arc<Batcher<ReleaseOperation>>,
    pub(super) wakeups: Arc<Wakeups>,
    /// Limits how many renewal batches are in flight.
    pub(super) renewing: Semaphore,
    pub(super) local_wakeups: Arc<LocalWakeups>,
}

impl LeaseSide {
    pub(super) fn new(
        store: &Arc<dyn LeaseStore>,
        commands: &Arc<CommandChannel>,
        capabilities: &Capabilities,
        request_timeout: Duration,
        wakeups: Arc<Wakeups>,
    ) -> Self {
        let (acquire, release) = batcher::pair(store, commands, capabilities, request_timeout);
        LeaseSide {
            store: Arc::clone(store),
            acquire,
            release,
            wakeups,
            renewing: Semaphore::new(renewal::MAX_IN_FLIGHT),
            local_wakeups: Arc::default(),
        }
    }
}

/// For session stores whose sessions hold many locks.
pub(super) struct SessionSide {
    pub(super) attempt: Arc<Batcher<SessionAttemptOperation>>,
    pub(super) release: Arc<Batcher<SessionReleaseOperation>>,
}

impl SessionSide {
    pub(super) fn new(
        store: &Arc<dyn SessionStore>,
        commands: &Arc<CommandChannel>,
        capabilities: &Capabilities,
        request_timeout: Duration,
    ) -> Self {
        let (attempt, release) = batcher::pair(store, commands, capabilities, request_timeout);
        SessionSide { attempt, release }
    }
}
