//! The store: sends each verb to the record it is about.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use distlock_core::store::support::batch;
use distlock_core::store::{
    Attempt, Batch, Capabilities, Claim, Finding, Holder, Inbox, Lease, LeaseStore, Query, Record, Released,
    Renewal, Store, WakeStream,
};
use distlock_core::{RecordKind, Resource, Result};

use super::acquire::acquire;
use super::{LeaseState, inspect, locked_rows, verbs};
use crate::batch::{Item, Key};
use crate::doctor;
use crate::rows::holder;
use crate::sweep;

/// Locks in tables of a MySQL or MariaDB database. Cheap to clone; clones share their connections.
///
/// ```no_run
/// use distlock_core::Locks;
/// use distlock_core::store::{Backend, StoreUrl};
/// use distlock_mysql::{MysqlConfig, MysqlStore};
///
/// # async fn example() -> distlock_core::Result<()> {
/// let url = StoreUrl::parse("mysql://app:secret@db.example/orders?ssl-mode=VERIFY_IDENTITY")?;
/// let store = MysqlStore::connect(MysqlConfig::from_url(&url)?).await?;
/// let locks = Locks::new(Backend::lease(store))?;
/// let guard = locks.mutex("orders/42").acquire().await?;
/// # drop(guard); Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct MysqlStore {
    state: Arc<LeaseState>,
    location: Arc<str>,
}

impl MysqlStore {
    pub(super) fn new(state: Arc<LeaseState>, location: String) -> Self {
        MysqlStore { state, location: location.into() }
    }

    #[cfg(feature = "bench")]
    pub(crate) fn state(&self) -> &Arc<LeaseState> {
        &self.state
    }

    /// Deletes what was not used for the whole retention time, and returns the number of rows. A background task does this
    /// too, in one process at a time; while another process does it this returns 0.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the rest for later.
    pub async fn sweep(&self) -> Result<u64> {
        sweep::once(&self.state).await
    }

    /// How many requests were sent so far, each one round trip.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.state.connections.requests()
    }
}

/// What the server cannot do.
const REASONS: &[(&str, &str)] =
    &[("wake-ups", "MySQL and MariaDB have no messages between sessions; waiters ask again")];

#[async_trait]
impl Store for MysqlStore {
    fn describe(&self) -> String {
        self.location.to_string()
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::all();
        capabilities.push = false;
        capabilities.max_batch = 500;
        capabilities.reasons = REASONS;
        capabilities
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Record>> {
        inspect::inspect(&self.state, query).await
    }

    async fn break_lock(&self, resource: &Resource) -> Result<Vec<Holder>> {
        let text = self.state.verbs.break_lock(resource.kind().record(), &Key::of(resource));
        let rows = locked_rows::execute_patiently(&self.state, &text, Instant::now()).await;
        rows.map_err(|failure| failure.error.about(resource))?.iter().map(holder).collect()
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        doctor::examine_lease(&self.state).await
    }
}

#[async_trait]
impl LeaseStore for MysqlStore {
    async fn try_acquire(&self, claims: &[Claim]) -> Batch<Attempt> {
        let state = &self.state;
        batch::by_record_kind(
            claims,
            |claims| acquire(state, RecordKind::Lock, claims),
            |claims| batch::with_possible_weights(claims, |claims| acquire(state, RecordKind::Pool, claims)),
        )
        .await
    }

    async fn renew(&self, leases: &[Lease]) -> Batch<Renewal> {
        let renew = |record, leases: Vec<_>| {
            each(&self.state, self.state.verbs.renew(record), leases, verbs::renewal)
        };
        batch::by_record_kind(leases, |l| renew(RecordKind::Lock, l), |l| renew(RecordKind::Pool, l)).await
    }

    async fn release(&self, leases: &[Lease]) -> Batch<Released> {
        let release = |record, leases: Vec<_>| {
            each(&self.state, self.state.verbs.release(record), leases, verbs::released)
        };
        batch::by_record_kind(leases, |l| release(RecordKind::Lock, l), |l| release(RecordKind::Pool, l))
            .await
    }

    async fn subscribe(&self, _: &Inbox) -> Result<WakeStream> {
        Err(self.capabilities().unsupported("wake-ups"))
    }
}

async fn each<A>(
    state: &LeaseState,
    verb: &verbs::Verb,
    leases: Vec<&Lease>,
    answer: fn(Option<&verbs::Found>) -> Result<A>,
) -> Batch<A> {
    let items = leases.iter().enumerate().map(|(n, lease)| Item::of_lease(n, lease)).collect();
    locked_rows::run(state, verb, items, |_, found| answer(found)).await
}
