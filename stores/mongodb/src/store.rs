//! The store: sends each verb to the record it is about.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use distlock_core::store::support::batch;
use distlock_core::store::{
    Attempt, Batch, Capabilities, Claim, Finding, Holder, Inbox, Lease, LeaseStore, Query, Record, Released,
    Renewal, Store, WakeStream,
};
use distlock_core::{RecordKind, Resource, Result};

use crate::connect::with_timeout;
use crate::state::StoreState;
use crate::{change_stream, doctor, indexes, inspect, mutex, pool};

/// How long a request of an operator may take, such as reading a large collection.
pub(crate) const OPERATOR_TIMEOUT: Duration = Duration::from_secs(30);

/// Locks in a MongoDB database. Cheap to clone; clones share the connection.
///
/// ```no_run
/// use distlock_core::Locks;
/// use distlock_core::store::{Backend, StoreUrl};
/// use distlock_mongodb::{MongoConfig, MongoStore};
///
/// # async fn example() -> distlock_core::Result<()> {
/// let url = StoreUrl::parse("mongodb://db1,db2,db3/app?replicaSet=rs0")?;
/// let store = MongoStore::connect(MongoConfig::from_url(&url)?).await?;
/// let locks = Locks::new(Backend::lease(store))?;
/// let guard = locks.mutex("orders/42").acquire().await?;
/// # drop(guard); Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct MongoStore {
    state: Arc<StoreState>,
    location: Arc<str>,
}

impl MongoStore {
    pub(crate) fn new(state: Arc<StoreState>, location: String) -> Self {
        MongoStore { state, location: location.into() }
    }

    #[cfg(feature = "bench")]
    pub(crate) fn state(&self) -> &Arc<StoreState> {
        &self.state
    }
}

const STANDALONE: &[(&str, &str)] =
    &[("wake-ups", "a standalone MongoDB has no change streams; a replica set of one member has")];

#[async_trait]
impl Store for MongoStore {
    fn describe(&self) -> String {
        self.location.to_string()
    }

    fn capabilities(&self) -> Capabilities {
        let has_change_streams = self.state.topology.has_change_streams();
        let mut capabilities = Capabilities::all();
        capabilities.push = has_change_streams;
        // Without change streams mutexes have no wait queues.
        capabilities.shows_waiters = has_change_streams;
        capabilities.reasons = if has_change_streams { &[] } else { STANDALONE };
        capabilities
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Record>> {
        let (state, query) = (Arc::clone(&self.state), query.clone());
        with_timeout(OPERATOR_TIMEOUT, async move { inspect::inspect(&state, &query).await }).await
    }

    async fn break_lock(&self, resource: &Resource) -> Result<Vec<Holder>> {
        let (state, resource) = (Arc::clone(&self.state), resource.clone());
        with_timeout(OPERATOR_TIMEOUT, async move {
            match resource.kind().record() {
                RecordKind::Lock => mutex::break_lock(&state, resource.name()).await,
                RecordKind::Pool => pool::break_lock(&state, &resource).await,
            }
        })
        .await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        let state = Arc::clone(&self.state);
        with_timeout(OPERATOR_TIMEOUT, async move { doctor::examine(&state).await }).await
    }
}

#[async_trait]
impl LeaseStore for MongoStore {
    async fn try_acquire(&self, claims: &[Claim]) -> Batch<Attempt> {
        indexes::ensure(&self.state, &self.location);
        let state = &self.state;
        let locks = |claims| mutex::try_acquire(state, claims);
        batch::by_record_kind(claims, locks, |claims| pool::try_acquire(state, claims)).await
    }

    async fn renew(&self, leases: &[Lease]) -> Batch<Renewal> {
        let state = &self.state;
        batch::by_record_kind(
            leases,
            |leases| mutex::renew(state, leases),
            |leases| pool::renew(state, leases),
        )
        .await
    }

    async fn release(&self, leases: &[Lease]) -> Batch<Released> {
        let state = &self.state;
        let locks = |leases| mutex::release(state, leases);
        batch::by_record_kind(leases, locks, |leases| pool::release(state, leases)).await
    }

    async fn subscribe(&self, inbox: &Inbox) -> Result<WakeStream> {
        change_stream::subscribe(&self.state, inbox).await
    }
}
