//! The store: [`Store`] and [`SessionStore`].

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use distlock_core::store::{
    Capabilities, Claim, Fairness, Finding, Holder, Lease, Query, Record, SessionHold, SessionStore, Store,
};
use distlock_core::{CancellationToken, Clock, Error, FencingToken, Resource, Result};

use crate::acquire;
use crate::client::Client;
use crate::config::EtcdConfig;
use crate::sessions::Sessions;
use crate::{doctor, inspect};

/// Locks on an etcd cluster. Clones share the connections and the sessions.
#[derive(Clone)]
pub struct EtcdStore(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) client: Client,
    pub(crate) config: EtcdConfig,
    sessions: Sessions,
}

impl EtcdStore {
    pub(crate) fn new(client: Client, config: EtcdConfig) -> Self {
        let sessions = Sessions::new(client.clone(), config.keys.clone());
        EtcdStore(Arc::new(Shared { client, config, sessions }))
    }
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EtcdStore").field(&self.0.config).finish()
    }
}

#[async_trait]
impl Store for EtcdStore {
    fn describe(&self) -> String {
        format!("etcd {}", self.0.client.addresses().collect::<Vec<_>>().join(","))
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::all();
        capabilities.fairness = Fairness::Native;
        capabilities.minimum_hold = false;
        capabilities.reasons = &[("minimum hold times", "the lock ends with the session of its holder")];
        capabilities
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Record>> {
        let found = inspect::records(&self.0, query).await;
        found.map_err(|error| error.doing("inspect").on(self.describe()))
    }

    async fn break_lock(&self, resource: &Resource) -> Result<Vec<Holder>> {
        let broken = inspect::break_lock(&self.0, resource).await;
        broken.map_err(|error| error.doing("break").about(resource).on(self.describe()))
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        doctor::examine(self).await.map_err(|error| error.doing("examine").on(self.describe()))
    }

    fn use_clock(&self, clock: Arc<dyn Clock>) {
        self.0.sessions.use_clock(clock);
    }
}

#[async_trait]
impl SessionStore for EtcdStore {
    async fn acquire(&self, claim: &Claim, withdraw: &CancellationToken) -> Result<Option<SessionHold>> {
        let complete = |error: Error| error.doing("acquire").about(&claim.resource).on(self.describe());
        claim.check_weight().map_err(complete)?;
        let acquired = acquire::acquire(&self.0.sessions, &self.0.config.keys, claim, withdraw).await;
        let Some(entry) = acquired.map_err(complete)? else { return Ok(None) };
        // Revisions are positive.
        let token = FencingToken::new(u64::try_from(entry.revision).unwrap_or(0));
        let hold = SessionHold { token, session: entry.life.clone() };
        entry.keep();
        Ok(Some(hold))
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        let key = self.0.config.keys.claim(&lease.resource, &lease.lock_id);
        let Some(deletion) = self.0.sessions.take_claim(key) else { return Ok(()) };
        // If this fails, the session deletes the key as soon as it can, and otherwise the lease ends.
        let released = deletion.run().await;
        released.map_err(|error| error.doing("release").about(&lease.resource).on(self.describe()))
    }
}
