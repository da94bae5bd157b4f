//! How a holder loses its lock.

use distlock_core::Locks;

use super::fixture::Fixture;
use super::harness::Harness;
use crate::actors::TestOptions;
use crate::history::{LockSpec, RecordedGuard};

/// Why a holder loses its lock.
#[derive(Clone, Copy, Debug)]
pub(super) enum LossCause {
    /// The lease expires without a renewal.
    Expiry,
    /// An operator breaks the lock.
    Break,
}

impl LossCause {
    /// The causes that exist on the store. A session store without forced release has none: there a lock is lost only with
    /// its session.
    pub(super) async fn all<F: Fixture>(harness: &Harness<F>) -> Vec<LossCause> {
        let mut causes = Vec::new();
        if harness.has_leases().await {
            causes.push(LossCause::Expiry);
        }
        if harness.locks().await.capabilities().forced_release {
            causes.push(LossCause::Break);
        }
        if causes.is_empty() {
            println!("not applicable: a lock is lost only with its session here");
        }
        causes
    }

    /// The options under which a lock can be lost for this cause.
    pub(super) fn options<F: Fixture>(self, harness: &Harness<F>) -> TestOptions {
        match self {
            LossCause::Expiry => TestOptions { auto_extend: false, ..harness.short_lease() },
            LossCause::Break => harness.frequent_renewal(),
        }
    }

    /// Triggers the loss.
    pub(super) async fn trigger<F: Fixture>(self, harness: &Harness<F>, operator: &Locks, spec: &LockSpec) {
        if matches!(self, LossCause::Break) {
            harness.break_lock(operator, spec).await;
        }
    }

    /// Triggers the loss and waits until the guard reports it.
    pub(super) async fn trigger_and_wait<F: Fixture>(
        self,
        harness: &Harness<F>,
        operator: &Locks,
        spec: &LockSpec,
        held: &RecordedGuard,
    ) {
        self.trigger(harness, operator, spec).await;
        harness.within(format!("the loss of {spec:?} by {self:?}"), held.wait_for_loss()).await;
    }
}
