//! After a holder that did not release: its session ended, and it may not know. The next one has the lock then, and is granted it when
//! no guard of the holder is left. That is so
//! - when its process has ended, which a process of the same machine learns from the kernel; or
//! - after the time that the row of the lock names.
//!
//! That time (`hold_us`) is how long after its session the guard of the holder lasts, counted by the holder from the
//! sending of its last confirmed heartbeat. A heartbeat is confirmed by a session that exists, and `GET_LOCK` succeeds after
//! that session has ended. So this long after `GET_LOCK` succeeded, by any clock that runs at a normal speed, no guard is left.
//! A client that gives up before writes what it has waited into the row, so that short waits add up.
//!
//! What the server knows is no proof that the process has ended. A proxy, a firewall or an administrator can end all its sessions
//! while it lives. It is not told if it is paused at that moment, or if the network fails.

use std::sync::Arc;
use std::time::Duration;

use distlock_core::store::support::ended_session::{at_least, at_most, wait_until};
use distlock_core::store::support::{errors, process_socket};
use distlock_core::{CancellationToken, Clock, Result};

use super::actor::{Drawn, SessionActor};
use super::statements::{self, Grant, Mark, Release};
use crate::identifier::Tables;
use crate::rows::text;

/// How often the kernel is asked: at first, since a process that ends closes one socket after the other, and at last.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LAST_PAUSE: Duration = Duration::from_millis(100);

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
    pub(super) async fn settle(
        mut self,
        tables: &Tables,
        withdraw: Option<&CancellationToken>,
    ) -> Result<bool> {
        if !self.drawn.pending.is_zero() {
            if !self.wait_for_the_earlier_holder(tables, withdraw).await? {
                self.is_released = true;
                self.session.release(self.release()).await?;
                return Ok(false);
            }
            self.session.settle(statements::settled(tables, &self.grant)).await?;
        }
        if !self.session.is_usable() || self.clock.now() >= self.session.session().deadline() {
            return Err(errors::connection_lost("the session has ended"));
        }
        self.is_released = true;
        Ok(true)
    }

    /// Until no guard of an earlier holder is left, or our session has ended. Returns false if the claim was withdrawn before.
    async fn wait_for_the_earlier_holder(
        &self,
        tables: &Tables,
        withdraw: Option<&CancellationToken>,
    ) -> Result<bool> {
        let until = self.drawn.since.after(at_least(self.drawn.pending));
        let rows = self.session.settle(statements::earlier_process(tables, &self.grant)).await?;
        let process = rows.first().map(|row| text(row, "process")).transpose()?;
        let has_ended = || process.as_deref().is_some_and(process_socket::has_ended);
        let mut pause = FIRST_PAUSE;
        while !has_ended() {
            let now = self.clock.now();
            if now >= until || !self.session.is_usable() {
                break;
            }
            let next = until.min(now.after(pause));
            if !wait_until(&*self.clock, next, self.session.session(), withdraw).await {
                return Ok(false);
            }
            pause = LAST_PAUSE.min(pause * 2);
        }
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
