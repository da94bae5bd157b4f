//! The store: the traits of the core, and the state behind them.

use std::sync::Arc;

use async_trait::async_trait;
use distlock_core::store::support::inspect::select;
use distlock_core::store::{
    Capabilities, Claim, Fairness, Finding, Holder, Lease, Query, Record, SessionHold, SessionStore, Store,
};
use distlock_core::{CancellationToken, Clock, Error, Resource, Result};

use crate::acquire::{Outcome, attempt, is_free};
use crate::config::ZookeeperConfig;
use crate::doctor;
use crate::error::session_ended;
use crate::inspect;
use crate::names::resource_path;
use crate::sessions::Sessions;

/// Locks on a ZooKeeper ensemble. Cheap to clone; see the [crate documentation](crate).
#[derive(Clone, Debug)]
pub struct ZookeeperStore {
    pub(crate) sessions: Arc<Sessions>,
}

impl ZookeeperStore {
    pub(crate) fn from_sessions(sessions: Sessions) -> Self {
        ZookeeperStore { sessions: Arc::new(sessions) }
    }

    pub(crate) fn config(&self) -> &ZookeeperConfig {
        &self.sessions.config
    }

    async fn acquire_queued(
        &self,
        claim: &Claim,
        withdraw: &CancellationToken,
    ) -> Result<Option<SessionHold>> {
        claim.check_weight()?;
        let parent = resource_path(&self.config().chroot, &claim.resource);
        let once = withdraw.is_cancelled();
        loop {
            let session = self.sessions.get(claim.expiry).await?;
            if once && !is_free(&session, &parent, claim).await? {
                return Ok(None);
            }
            let access = self.config().nodes_access();
            match attempt(&session, &parent, access, claim, withdraw).await {
                Ok(Outcome::Granted(hold)) => return Ok(Some(hold)),
                Ok(Outcome::Withdrawn) => return Ok(None),
                Err(error) if !session.has_ended() => return Err(error),
                // Its place in the queue is gone, and a waiter that still wants the lock queues again at the end.
                Ok(Outcome::PlaceLost) | Err(_) if !withdraw.is_cancelled() => {}
                Ok(Outcome::PlaceLost) if !session.has_ended() => {
                    if !once {
                        return Ok(None);
                    }
                }
                Ok(Outcome::PlaceLost) | Err(_) => return Err(session_ended()),
            }
        }
    }
}

#[async_trait]
impl Store for ZookeeperStore {
    fn describe(&self) -> String {
        let config = self.config();
        format!("zookeeper {}{}", config.connect_string(), config.chroot)
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::all();
        capabilities.fairness = Fairness::Native;
        // The server learns of a dead client by the silence of its session.
        capabilities.frees_on_crash = false;
        capabilities.minimum_hold = false;
        capabilities.reasons = &[("minimum hold times", "the lock ends with the session of its holder")];
        capabilities
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Record>> {
        let found = inspect::find(self, query).await;
        Ok(select(found.map_err(|error| error.doing("inspect").on(self.describe()))?, query))
    }

    async fn break_lock(&self, resource: &Resource) -> Result<Vec<Holder>> {
        let complete = |error: Error| error.doing("break").about(resource).on(self.describe());
        inspect::delete_holders(self, resource).await.map_err(complete)
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        doctor::examine(self).await.map_err(|error| error.doing("examine").on(self.describe()))
    }

    fn use_clock(&self, clock: Arc<dyn Clock>) {
        self.sessions.use_clock(clock);
    }
}

#[async_trait]
impl SessionStore for ZookeeperStore {
    async fn acquire(&self, claim: &Claim, withdraw: &CancellationToken) -> Result<Option<SessionHold>> {
        let complete = |error: Error| error.doing("acquire").about(&claim.resource).on(self.describe());
        self.acquire_queued(claim, withdraw).await.map_err(complete)
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        let held = self.sessions.all().into_iter().find_map(|session| {
            let contender = session.take(&lease.lock_id)?;
            Some((session, contender))
        });
        let Some((session, contender)) = held else { return Ok(()) };
        // In a task of its own: it goes on if this future is dropped.
        let removal = tokio::spawn(contender.remove(session));
        match removal.await {
            Ok(removed) => {
                removed.map_err(|error| error.doing("release").about(&lease.resource).on(self.describe()))
            }
            // The runtime ends, and with it the session.
            Err(_) => Ok(()),
        }
    }
}
