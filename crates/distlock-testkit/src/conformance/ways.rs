//! How a lock can be taken from its holder.

use distlock_core::Locks;

use super::fixture::Fixture;
use super::stage::Stage;
use crate::actors::Terms;
use crate::history::{Taken, Want};

/// A way in which a holder loses its lock.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    /// Its lease is not extended and ends.
    Expiry,
    /// An operator breaks it.
    Break,
}

impl Way {
    /// Those that a store has. A session store without forced release has none: there only the end of the session
    /// takes a lock away.
    pub(super) async fn all<F: Fixture>(stage: &Stage<F>) -> Vec<Way> {
        let mut ways = Vec::new();
        if stage.has_leases().await {
            ways.push(Way::Expiry);
        }
        if stage.locks().await.capabilities().forced_release {
            ways.push(Way::Break);
        }
        if ways.is_empty() {
            println!("nothing but the end of a session takes a lock from its holder here");
        }
        ways
    }

    /// The terms on which a lock can be lost like this.
    pub(super) fn terms<F: Fixture>(self, stage: &Stage<F>) -> Terms {
        match self {
            Way::Expiry => Terms { auto_extend: false, ..stage.expiring() },
            Way::Break => stage.attentive(),
        }
    }

    /// Sees to it that the lock is lost, soon.
    pub(super) async fn begin<F: Fixture>(self, stage: &Stage<F>, operator: &Locks, want: &Want) {
        if matches!(self, Way::Break) {
            stage.break_lock(operator, want).await;
        }
    }

    /// Sees to it that the lock is lost, and waits until its guard says so.
    pub(super) async fn lose<F: Fixture>(
        self,
        stage: &Stage<F>,
        operator: &Locks,
        want: &Want,
        held: &Taken,
    ) {
        self.begin(stage, operator, want).await;
        stage.within(format!("the loss of {want:?} by {self:?}"), held.wait_for_loss()).await;
    }
}
