//! The store: sends each claim to application locks or to the slots of a semaphore.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use distlock_core::store::{
    Capabilities, Claim, Fairness, Finding, Holder, Lease, Query, Record, SessionHold, SessionStore, Store,
};
use distlock_core::{CancellationToken, Clock, Kind, LockId, Resource, Result};
use tokio::sync::mpsc::unbounded_channel;

use crate::config::SqlServerConfig;
use crate::session::{self, Reservation, Sessions};
use crate::statements::Statements;
use crate::{app_lock, doctor, inspect, schema, semaphore, sweep};

/// Mutexes, reader-writer locks and semaphores as application locks of SQL Server, which live with a session. Cheap to clone; clones
/// share their sessions.
///
/// ```no_run
/// use distlock_core::Locks;
/// use distlock_core::store::{Backend, StoreUrl};
/// use distlock_sqlserver::{SqlServerConfig, SqlServerStore};
///
/// # async fn example() -> distlock_core::Result<()> {
/// let url = StoreUrl::parse("sqlserver://app:secret@db.example/orders")?;
/// let store = SqlServerStore::connect(SqlServerConfig::from_url(&url)?).await?;
/// let locks = Locks::new(Backend::session(store))?;
/// let guard = locks.mutex("orders/42").acquire().await?;
/// # drop(guard); Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct SqlServerStore(pub(crate) Arc<StoreState>);

/// What clones of a store share.
#[derive(Debug)]
pub(crate) struct StoreState {
    pub(crate) config: SqlServerConfig,
    pub(crate) location: String,
    pub(crate) statements: Statements,
    pub(crate) sessions: Sessions,
    holds: Mutex<HashMap<LockId, Hold>>,
}

/// Where a lock is held, and which slots if it is a semaphore's.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) reservation: Reservation,
    pub(crate) slots: Vec<i32>,
}

impl StoreState {
    pub(crate) fn holds(&self) -> MutexGuard<'_, HashMap<LockId, Hold>> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers where a lock is held.
    pub(crate) fn keep(&self, lock_id: &LockId, hold: Hold) {
        let mut holds = self.holds();
        if holds.len() == holds.capacity() {
            // Before it grows: holds whose session ended were not released.
            holds.retain(|_, hold| hold.reservation.session.is_usable());
        }
        holds.insert(lock_id.clone(), hold);
    }
}

const REASONS: &[(&str, &str)] = &[("minimum hold times", "the lock ends with the session of its holder")];
const BARE_REASONS: &[(&str, &str)] = &[
    ("minimum hold times", "the lock ends with the session of its holder"),
    ("semaphores", "their permits are recorded in a table, and distlock.tokens=off goes without it"),
    ("forced releases", "distlock.tokens=off records no holders"),
];

impl SqlServerStore {
    /// Connects, and creates the table and the sequence if they are not there.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](distlock_core::ErrorKind::Unavailable) or
    /// [`ErrorKind::Denied`](distlock_core::ErrorKind::Denied) if the server cannot be reached or refuses us, also if the login may
    /// not write or the database is read-only: [`SqlServerConfig::tokens`] is the way to go without.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind but what was created.
    pub async fn connect(config: SqlServerConfig) -> Result<Self> {
        let location = config.to_string();
        let (ended, heard) = unbounded_channel();
        let state = Arc::new(StoreState {
            statements: Statements::new(&config.names),
            sessions: Sessions::new(config.clone(), ended),
            location,
            holds: Mutex::default(),
            config,
        });
        let opened = tokio::try_join!(schema::ensure(&state), state.sessions.warm_up());
        opened.map_err(|error| error.on(state.location.clone()))?;
        session::watch(&state, heard);
        sweep::start(&state);
        Ok(SqlServerStore(state))
    }

    /// Deletes the rows of sessions that ended, once no guard of theirs is left, and returns their number. A background task does
    /// this too.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the rest for later.
    pub async fn sweep(&self) -> Result<u64> {
        sweep::once(&self.0).await
    }
}

#[async_trait]
impl Store for SqlServerStore {
    fn describe(&self) -> String {
        self.0.location.clone()
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::all();
        let tokens = self.0.config.tokens;
        capabilities.semaphore = tokens;
        capabilities.max_permits = semaphore::MOST_PERMITS;
        capabilities.forced_release = tokens;
        capabilities.shows_waiters = tokens;
        capabilities.fairness = Fairness::Native;
        capabilities.frees_on_crash = true;
        capabilities.durable = false;
        capabilities.minimum_hold = false;
        capabilities.reasons = if tokens { REASONS } else { BARE_REASONS };
        capabilities
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Record>> {
        inspect::inspect(&self.0, query).await
    }

    /// Ends the sessions that hold the lock, and with them all else that they hold.
    async fn break_lock(&self, resource: &Resource) -> Result<Vec<Holder>> {
        inspect::break_lock(&self.0, resource).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        doctor::examine(&self.0).await
    }

    fn use_clock(&self, clock: Arc<dyn Clock>) {
        self.0.sessions.use_clock(clock);
    }
}

#[async_trait]
impl SessionStore for SqlServerStore {
    async fn acquire(&self, claim: &Claim, withdraw: &CancellationToken) -> Result<Option<SessionHold>> {
        match claim.resource.kind() {
            Kind::Mutex | Kind::RwLock => app_lock::acquire(&self.0, claim, withdraw).await,
            Kind::Semaphore if claim.capacity > semaphore::MOST_PERMITS => {
                Err(self.capabilities().unsupported("larger semaphores"))
            }
            Kind::Semaphore if self.0.config.tokens => semaphore::acquire(&self.0, claim, withdraw).await,
            _ => Err(self.capabilities().unsupported("semaphores")),
        }
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        let Some(hold) = self.0.holds().remove(&lease.lock_id) else {
            return Ok(());
        };
        let session = Arc::clone(&hold.reservation.session);
        let released = match hold.slots.is_empty() {
            true => app_lock::release(&self.0, &hold.reservation, &lease.lock_id).await,
            false => semaphore::release(&self.0, &hold, &lease.lock_id).await,
        };
        drop(hold);
        match released {
            Ok(()) => {
                self.0.sessions.tidy(&session);
                Ok(())
            }
            Err(error) => {
                let ended = !session.is_usable();
                session.end("a lock could not be released");
                if ended { Ok(()) } else { Err(error) }
            }
        }
    }
}
