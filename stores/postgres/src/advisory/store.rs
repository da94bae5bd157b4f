//! The store: sends each claim to advisory locks or to pool rows.

use std::sync::Arc;

use async_trait::async_trait;
use distlock_core::store::{
    Capabilities, Claim, Finding, Holder, Lease, Query, Record, SessionHold, SessionStore, Store,
};
use distlock_core::{CancellationToken, Clock, Kind, Resource, Result};

use super::state::StoreState;
use super::{advisory_lock, doctor, inspect, pool};
use crate::config::PostgresConfig;
use crate::sweep;

/// Mutexes and reader-writer locks as advisory locks, and semaphores whose permits end with their session.
///
/// One shared connection holds every lock that is granted at once. A claim that has to wait does so on a connection of its
/// own. A connection that waits holds a snapshot of the database, which keeps `VACUUM` from removing rows that changed since:
/// where waits last for hours, the lease table is the better choice. Held locks are entries of the server's lock table, which
/// has room for `max_locks_per_transaction` × `max_connections` of them: beyond that an acquisition fails with
/// [`ErrorKind::Exhausted`](distlock_core::ErrorKind::Exhausted).
///
/// Advisory locks are numbers that all programs on the database share: see [`AdvisoryKey`](crate::AdvisoryKey).
///
/// ```no_run
/// use distlock_core::Locks;
/// use distlock_core::store::{Backend, StoreUrl};
/// use distlock_postgres::{AdvisoryStore, PostgresConfig};
///
/// # async fn example() -> distlock_core::Result<()> {
/// let url = StoreUrl::parse("postgres+advisory://app@db/app")?;
/// let store = AdvisoryStore::connect(PostgresConfig::from_url(&url)?).await?;
/// let locks = Locks::new(Backend::session(store))?;
/// let guard = locks.mutex("orders/42").acquire().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct AdvisoryStore(Arc<StoreState>);

impl AdvisoryStore {
    /// Connects, and creates missing tables.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] or [`ErrorKind::Denied`] if the server cannot be reached or refuses;
    /// [`ErrorKind::Unsupported`] behind a pooler such as PgBouncer, or before PostgreSQL 12.
    ///
    /// [`ErrorKind::Unavailable`]: distlock_core::ErrorKind::Unavailable
    /// [`ErrorKind::Denied`]: distlock_core::ErrorKind::Denied
    /// [`ErrorKind::Unsupported`]: distlock_core::ErrorKind::Unsupported
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind but tables that were created.
    pub async fn connect(config: PostgresConfig) -> Result<Self> {
        let state = Arc::new(StoreState::new(config));
        state.shared().await.map_err(|error| error.on(state.location.clone()))?;
        sweep::start(&state);
        Ok(AdvisoryStore(state))
    }

    /// Connects to the server of a configuration of the driver: its address, login and database are used, and those of
    /// `config` are not.
    ///
    /// The driver's `Client` is one connection that cannot be opened again, so the store cannot use one of yours.
    ///
    /// # Errors
    /// As for [`connect`](AdvisoryStore::connect).
    ///
    /// # Cancel safety
    /// As for [`connect`](AdvisoryStore::connect).
    pub async fn with_client(client: tokio_postgres::Config, config: PostgresConfig) -> Result<Self> {
        AdvisoryStore::connect(config.on(client)).await
    }

    /// Deletes now the rows of semaphores that were unused for an hour, and returns how many; and what ended sessions left
    /// behind. A background task does that anyway. One process at a time sweeps: while another one does, this returns 0.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the rest for later.
    pub async fn sweep(&self) -> Result<u64> {
        self.0.shared().await?;
        sweep::once(&self.0).await
    }
}

#[cfg(feature = "bench")]
impl AdvisoryStore {
    /// The baseline for benchmarks.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    #[doc(hidden)]
    pub async fn baseline(&self) -> Result<Box<dyn distlock_core::bench::Baseline>> {
        let (config, tables) = (&self.0.config, self.0.schema.tables());
        crate::baseline::open(config, tables, crate::schema::StoreKind::Advisory).await
    }
}

/// Whether the holders of a resource are entries of a pool row, and not advisory locks.
fn is_pool(resource: &Resource) -> bool {
    matches!(resource.kind(), Kind::Semaphore | Kind::FairQueue)
}

#[async_trait]
impl Store for AdvisoryStore {
    fn describe(&self) -> String {
        self.0.location.clone()
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::all();
        capabilities.frees_on_crash = true;
        capabilities.durable = false;
        capabilities
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Record>> {
        inspect::records(&self.0, query).await
    }

    /// Ends the sessions that hold an advisory lock, and with them everything else that they hold. Permits of a semaphore are
    /// taken alone.
    async fn break_lock(&self, resource: &Resource) -> Result<Vec<Holder>> {
        match is_pool(resource) {
            true => pool::break_lock(&self.0, resource).await,
            false => advisory_lock::break_lock(&self.0, resource).await,
        }
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        doctor::examine(&self.0).await
    }

    fn use_clock(&self, clock: Arc<dyn Clock>) {
        self.0.use_clock(clock);
    }
}

#[async_trait]
impl SessionStore for AdvisoryStore {
    async fn acquire(&self, claim: &Claim, withdraw: &CancellationToken) -> Result<Option<SessionHold>> {
        match is_pool(&claim.resource) {
            true => pool::acquire(&self.0, claim, withdraw).await,
            false => advisory_lock::acquire(&self.0, claim, withdraw).await,
        }
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        let held = self.0.held().remove(&lease.lock_id);
        match held {
            Some(held) => advisory_lock::release(&self.0, held, &lease.lock_id).await,
            None => pool::release(&self.0, lease).await,
        }
    }
}
