//! After a holder that did not release: its session ended, and it may not know. The next one has the lock then, and is not
//! granted it before the guard of the holder is lost.
//!
//! The row of a lock says how long after its session the guard of its holder lasts (`hold_us`), counted by the holder from the
//! sending of its last confirmed heartbeat. A heartbeat is confirmed by a session that exists, and `GET_LOCK` succeeds after
//! that session has ended. So this long after `GET_LOCK` succeeded, by any clock that runs at a normal speed, no guard is left.
//! A client that gives up before writes what it has waited into the row, so that short waits add up.

use std::sync::Arc;

use distlock_core::store::support::ended_session::{at_least, at_most, wait_until};
use distlock_core::store::support::errors;
use distlock_core::{CancellationToken, Clock, Result};

use super::actor::{Drawn, SessionActor};
use super::statements::{Grant, Mark, Release};

/// A lock that a session has and that is not granted yet. Dropped, it is released.
pub(super) struct Unsettled {
    session: Arc<SessionActor>,
    grant: Grant,
    drawn: Drawn,
    clock: Arc<dyn Clock>,
    is_released: bool,
}

impl Unsettled {
    pub(super) fn new(
        session: &Arc<SessionActor>,
        grant: &Grant,
        drawn: Drawn,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Unsettled { session: Arc::clone(session), grant: grant.clone(), drawn, clock, is_released: false }
    }

    /// Returns true when the lock can be granted, and false if it was withdrawn and released.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock.
    pub(super) async fn settle(mut self, withdraw: Option<&CancellationToken>) -> Result<bool> {
        if !self.drawn.pending.is_zero() {
            let until = self.drawn.since.after(at_least(self.drawn.pending));
            if !wait_until(&*self.clock, until, self.session.session(), withdraw).await {
                self.is_released = true;
                self.session.release(self.release()).await?;
                return Ok(false);
            }
        }
        if !self.session.is_usable() || self.clock.now() >= self.session.session().deadline() {
            return Err(errors::connection_lost("the session has ended"));
        }
        self.is_released = true;
        Ok(true)
    }

    fn release(&self) -> Release {
        let paid = at_most(self.clock.now().since(self.drawn.since));
        Release {
            name: self.grant.name,
            lock_id: self.grant.lock_id.clone(),
            mark: Mark::NotGranted { paid },
        }
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        if !self.is_released {
            self.session.release_later(self.release());
        }
    }
}
