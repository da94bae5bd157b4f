//! How a lock can be taken from its holder.

use distlock_core::Locks;

use super::fixture::Fixture;
use super::harness::Harness;
use crate::actors::Terms;
use crate::history::{LockSpec, RecordedGuard};

/// A way in which a holder loses its lock.
#[derive(Clone, Copy, Debug)]
pub(super) enum LossCause {
    /// Its lease is not extended and ends.
    Expiry,
    /// An operator breaks it.
    Break,
}

impl LossCause {
    /// Those that a store has. A session store without forced release has none: there only the end of the session
    /// takes a lock away.
    pub(super) async fn all<F: Fixture>(harness: &Harness<F>) -> Vec<LossCause> {
        let mut ways = Vec::new();
        if harness.has_leases().await {
            ways.push(LossCause::Expiry);
        }
        if harness.locks().await.capabilities().forced_release {
            ways.push(LossCause::Break);
        }
        if ways.is_empty() {
            println!("nothing but the end of a session takes a lock from its holder here");
        }
        ways
    }

    /// The terms on which a lock can be lost like this.
    pub(super) fn terms<F: Fixture>(self, harness: &Harness<F>) -> Terms {
        match self {
            LossCause::Expiry => Terms { auto_extend: false, ..harness.expiring() },
            LossCause::Break => harness.attentive(),
        }
    }

    /// Sees to it that the lock is lost, soon.
    pub(super) async fn begin<F: Fixture>(self, harness: &Harness<F>, operator: &Locks, spec: &LockSpec) {
        if matches!(self, LossCause::Break) {
            harness.break_lock(operator, spec).await;
        }
    }

    /// Sees to it that the lock is lost, and waits until its guard says so.
    pub(super) async fn lose<F: Fixture>(
        self,
        harness: &Harness<F>,
        operator: &Locks,
        spec: &LockSpec,
        held: &RecordedGuard,
    ) {
        self.begin(harness, operator, spec).await;
        harness.within(format!("the loss of {spec:?} by {self:?}"), held.wait_for_loss()).await;
    }
}
