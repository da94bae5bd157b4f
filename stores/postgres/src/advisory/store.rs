//! The store: sends each claim to advisory locks or to pool rows.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use distlock_core::store::support::reconnect::Reconnect;
use distlock_core::store::{
    Batch, Capabilities, Claim, Finding, Holder, Lease, Query, Record, SessionHold, SessionStore, Store,
};
use distlock_core::{BootClock, CancellationToken, Clock, Kind, LockId, Resource, Result};
use tokio_postgres::types::Type;

use super::advisory_lock::{self, HeldLock, LockStatements};
use super::batch::{self, BatchStatements};
use super::holder_rows::RowStatements;
use super::lock_session::LockSession;
use super::locked_row::LockedRow;
use super::shared_session::SharedSession;
use super::sweep::SweepStatements;
use super::{doctor, inspect, pool};
use crate::config::PostgresConfig;
use crate::pool_batch::PoolStatements;
use crate::schema::{Schema, StoreKind};
use crate::statement::{Slot, Statement};
use crate::sweep;
use crate::tables::PoolTable;

/// How long opening the shared session may take. Creating its tables may wait for other clients.
const SHARED_SESSION_LIMIT: Duration = Duration::from_secs(30);
pub(super) const TOO_LONG_SILENT: &str = "its client was silent for too long";

static CANCEL: [Type; 1] = [Type::INT8];

/// Mutexes and reader-writer locks as advisory locks, and semaphores whose permits end with their session.
///
/// One shared connection holds every lock that is granted at once; mutexes of many tasks are tried, and released, in one
/// statement. A claim that has to wait does so on a connection of its own. The row that shows the holder of a mutex to `inspect` is
/// written once it was held for 20 ms: `inspect` waits for it. The lock of a client that is stalled, and has not written its row, is
/// not in a list of all locks; where it is asked for by name, its holder is shown as a process of the server. A connection that
/// waits holds a snapshot of the database, which keeps `VACUUM` from removing rows that changed since:
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

/// What all claims of one store share: its sessions and its statements.
#[derive(Debug)]
pub(super) struct StoreState {
    pub(super) config: PostgresConfig,
    pub(super) schema: Schema,
    pub(super) location: String,
    pub(super) lock: LockStatements,
    pub(super) batch: BatchStatements,
    rows: Arc<RowStatements>,
    pub(super) pool: PoolStatements,
    pub(super) sweep: SweepStatements,
    pub(super) cancel: Statement,
    /// The engine's clock, once an engine uses the store.
    clock: OnceLock<Arc<dyn Clock>>,
    pub(super) shared: Reconnect<SharedSession>,
    /// The last shared session that was opened, alive or not.
    last_shared: Mutex<Weak<LockSession>>,
    pub(super) idle: Mutex<Vec<Arc<LockSession>>>,
    held: Mutex<HashMap<LockId, HeldLock>>,
    /// For each semaphore with waiters, the right to watch the sessions that block it: one watch in this process is enough.
    pub(super) watches: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    pub(super) locked_row: LockedRow,
}

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

impl StoreState {
    pub(super) fn new(config: PostgresConfig) -> Self {
        let schema = Schema::new(&config, StoreKind::Advisory);
        let tables = schema.tables();
        StoreState {
            location: format!("{config} (advisory)"),
            lock: LockStatements::new(tables),
            batch: BatchStatements::new(tables),
            rows: Arc::new(RowStatements::new(tables)),
            pool: PoolStatements::new(tables, PoolTable::Sessions),
            sweep: SweepStatements::new(tables),
            cancel: Statement::new(
                Slot::AdvisoryCancel,
                include_str!("../sql/advisory_cancel.sql"),
                tables,
                &CANCEL,
            ),
            locked_row: LockedRow::new(tables),
            config,
            schema,
            clock: OnceLock::new(),
            shared: Reconnect::new(SHARED_SESSION_LIMIT),
            last_shared: Mutex::default(),
            idle: Mutex::default(),
            held: Mutex::default(),
            watches: Mutex::default(),
        }
    }

    /// The engine's clock; before there is an engine, the real one.
    pub(super) fn clock(&self) -> Arc<dyn Clock> {
        self.clock.get().map_or_else(|| Arc::new(BootClock) as Arc<dyn Clock>, Arc::clone)
    }

    /// Measures on the engine's clock from now on. The first engine's clock stays: engines that share a store share a clock.
    pub(super) fn use_clock(&self, clock: Arc<dyn Clock>) {
        if self.clock.set(clock).is_ok()
            && let Some((clock, session)) = self.clock.get().zip(self.last_shared())
        {
            session.life.use_clock(clock);
        }
    }

    /// The shared session, opened now if there is none.
    pub(super) async fn shared(&self) -> Result<Arc<SharedSession>> {
        self.shared.get(|| self.open_shared()).await
    }

    async fn open_shared(&self) -> Result<SharedSession> {
        if let Some(old) = self.last_shared() {
            // It may have been stalled only: then the server must free its locks now.
            old.close(TOO_LONG_SILENT);
        }
        let shared = SharedSession::open(&self.config, &self.schema, self.clock(), &self.rows).await?;
        *self.last_shared.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&shared.session);
        if let Some(clock) = self.clock.get() {
            shared.session.life.use_clock(clock);
        }
        Ok(shared)
    }

    /// The last shared session, alive or not.
    pub(super) fn last_shared(&self) -> Option<Arc<LockSession>> {
        self.last_shared.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }

    /// The locks that are held, with their sessions, but those that were acquired in batches. Permits are held by the shared session.
    pub(super) fn held(&self) -> MutexGuard<'_, HashMap<LockId, HeldLock>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
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
        crate::baseline::open(config, tables, StoreKind::Advisory).await
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
        capabilities.minimum_hold = false;
        capabilities.reasons = &[(
            "minimum hold times",
            "an advisory lock ends with the session of its holder; postgres:// has them",
        )];
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

    /// Mutexes are tried in batches while there is a shared session. If there is none, [`acquire`](SessionStore::acquire) opens one.
    fn batches(&self, resource: &Resource) -> bool {
        resource.kind() == Kind::Mutex && self.0.shared.current().is_some()
    }

    async fn try_acquire(&self, claims: &[Claim]) -> Batch<Option<SessionHold>> {
        batch::try_acquire(&self.0, claims).await
    }

    async fn wait(&self, claim: &Claim, withdraw: &CancellationToken) -> Result<Option<SessionHold>> {
        advisory_lock::wait(&self.0, claim, withdraw).await
    }

    fn batches_release(&self, lease: &Lease) -> bool {
        batch::is_batched(&self.0, lease)
    }

    async fn release_batch(&self, leases: &[Lease]) -> Batch<()> {
        batch::release(&self.0, leases).await
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        if batch::is_batched(&self.0, lease) {
            let answers = batch::release(&self.0, std::slice::from_ref(lease)).await?;
            return answers.into_iter().next().unwrap_or(Ok(()));
        }
        let held = self.0.held().remove(&lease.lock_id);
        match held {
            Some(held) => advisory_lock::release(&self.0, held, &lease.lock_id).await,
            None => pool::release(&self.0, lease).await,
        }
    }
}
