//! Advisory locks: held by sessions, waited for in the server's own line, gone with the session.

mod home;
mod inspect;
mod key;
mod native;
mod pool;
mod seat;
mod sweep;
mod transaction;
mod watch;

use std::collections::{HashMap, HashSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use distlock_core::store::{
    Backend, Capabilities, Claim, Driver, Finding, Holder, Lease, Query, Record, SessionHold, SessionStore,
    Store,
};
use distlock_core::{CancellationToken, Kind, LockId, Locks, Resource, Result};
use tokio_postgres::types::Type;

pub use key::AdvisoryKey;
pub use transaction::TransactionLocks;

use self::home::Home;
use self::seat::Seat;
use crate::config::PostgresConfig;
use crate::schema::{self, Purpose, Schema};
use crate::statement::Statement;

/// `postgres+advisory://…`.
pub static ADVISORY_DRIVER: Driver = driver();

const fn driver() -> Driver {
    let driver = Driver::new(
        &["postgres+advisory", "postgresql+advisory"],
        "postgres+advisory://user@host:5432/database",
        |url| {
            Box::pin(async move {
                let config = PostgresConfig::from_store_url(url)?;
                Ok(Backend::session(AdvisoryLocks::connect(config).await?))
            })
        },
    )
    .with_schema(|url| schema::print(url, Purpose::Advisory));
    #[cfg(feature = "bench")]
    let driver = driver.with_baseline(|url| {
        Box::pin(async move {
            AdvisoryLocks::connect(PostgresConfig::from_store_url(url)?).await?.baseline().await.map(Some)
        })
    });
    driver
}

/// How many connections that hold nothing are kept for those who have to wait.
const SPARE: usize = 2;
/// A statement that was told to end and has not is told again after this long.
const AGAIN: Duration = Duration::from_millis(100);
/// After this long without an end of the statement its session is ended.
const ENDED: Duration = Duration::from_secs(2);

static CANCEL: [Type; 1] = [Type::INT8];

/// Mutexes and reader-writer locks as advisory locks, and semaphores whose permits end with their session.
///
/// What can be had at once is held by one connection that all share; who has to wait does so on a connection of its
/// own. A connection that waits holds a snapshot of the database, which keeps `VACUUM` from clearing away what
/// changed since: where waits last for hours, the lease table is the better choice. Held locks are entries of the server's
/// lock table, which has room for `max_locks_per_transaction` × `max_connections` of them: beyond that an acquisition is
/// [`ErrorKind::Exhausted`](distlock_core::ErrorKind::Exhausted).
///
/// Advisory locks are numbers, shared by all programs that use the database: [`AdvisoryKey`] says which is whose.
///
/// ```no_run
/// # async fn run() -> distlock_core::Result<()> {
/// use distlock_postgres::{AdvisoryLocks, PostgresConfig};
///
/// let config = PostgresConfig::from_url("postgres+advisory://app@db/app")?;
/// let locks = AdvisoryLocks::connect(config).await?.locks()?;
/// let guard = locks.mutex("orders/42").acquire().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct AdvisoryLocks(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: PostgresConfig,
    schema: Schema,
    shown: String,
    native: native::Statements,
    pool: pool::Statements,
    look: inspect::Statements,
    cancel: Statement,
    sweep: sweep::Statements,
    home: Mutex<Option<Arc<Home>>>,
    /// Only one opens a home at a time.
    opening: tokio::sync::Mutex<()>,
    spare: Mutex<Vec<Arc<Seat>>>,
    /// Which session has which lock. Permits are remembered by the session itself.
    holds: Mutex<HashMap<LockId, native::Held>>,
    /// Who watches the sessions that a semaphore waits for: one in this process is enough.
    watches: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// Semaphores whose rows another session had locked when they were asked for last.
    locked: Mutex<HashSet<String>>,
}

impl AdvisoryLocks {
    /// Connects, and creates the tables if they are not there.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](distlock_core::ErrorKind::Unavailable) or
    /// [`ErrorKind::Denied`](distlock_core::ErrorKind::Denied) if the server cannot be reached or refuses us;
    /// [`ErrorKind::Unsupported`](distlock_core::ErrorKind::Unsupported) behind a pooler such as PgBouncer, or
    /// before PostgreSQL 12.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind but tables that were created.
    pub async fn connect(config: PostgresConfig) -> Result<Self> {
        let shown = format!("{config} (advisory)");
        let schema = Schema::new(&config, Purpose::Advisory);
        let tables = schema.tables().clone();
        let inner = Arc::new(Inner {
            config,
            schema,
            shown: shown.clone(),
            native: native::Statements::new(&tables),
            pool: pool::Statements::new(&tables),
            look: inspect::Statements::new(&tables),
            cancel: Statement::new(8, include_str!("../sql/advisory_cancel.sql"), &tables, &CANCEL),
            sweep: sweep::Statements::new(&tables),
            home: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
            spare: Mutex::default(),
            holds: Mutex::default(),
            watches: Mutex::default(),
            locked: Mutex::default(),
        });
        inner.home().await.map_err(|error| error.on(shown))?;
        sweep::start(&inner);
        Ok(AdvisoryLocks(inner))
    }

    /// Locks with the default options.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](distlock_core::ErrorKind::InvalidInput) outside a Tokio runtime.
    pub fn locks(&self) -> Result<Locks> {
        Locks::new(Backend::session(self.clone()))
    }

    /// Forgets now the semaphores that were of no use for the whole retention time, and says how many that were; and what
    /// sessions left behind that ended. This goes on in the background anyway; one process at a time does it, and while
    /// another one does this gives 0.
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

impl Inner {
    /// The session that all share, made now if there is none. Those who come meanwhile wait for the same one.
    async fn home(&self) -> Result<Arc<Home>> {
        if let Some(home) = self.current_home().filter(|home| home.seat.is_alive()) {
            return Ok(home);
        }
        let _opening = self.opening.lock().await;
        if let Some(home) = self.current_home() {
            if home.seat.is_alive() {
                return Ok(home);
            }
            // Perhaps it only stood still for too long: then its locks must go too.
            home.seat.cut("it was not heard of for too long");
        }
        let opened = Home::open(&self.config, &self.schema).await?;
        *self.home.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&opened));
        Ok(opened)
    }

    fn current_home(&self) -> Option<Arc<Home>> {
        self.home.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn holds(&self) -> MutexGuard<'_, HashMap<LockId, native::Held>> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session that holds nothing.
    async fn spare_seat(&self) -> Result<Arc<Seat>> {
        loop {
            let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
            match spare {
                Some(seat) if seat.is_alive() => return Ok(seat),
                Some(seat) => seat.cut("it was not heard of for too long"),
                None => return Seat::open(&self.config, None).await,
            }
        }
    }

    /// Ends the statement that a session is in, and gives what came of it: perhaps it was over already. `None`: it did not
    /// end, and the session is good for nothing any more. Once this is over nothing can hit what the session does next.
    async fn end_statement<T>(
        &self,
        seat: &Seat,
        mut running: Pin<&mut (impl Future<Output = T> + ?Sized)>,
    ) -> Option<T> {
        let asking = async {
            loop {
                let home = self.current_home().filter(|home| home.seat.is_alive())?;
                let rows = home.seat.wire.run(&self.cancel, &[&seat.alive]).await.ok()?;
                if !rows.first().is_some_and(|row| row.try_get("told").unwrap_or(false)) {
                    return None;
                }
                // The server may not have begun with it when the signal came: then it is given again.
                if let Ok(ended) = tokio::time::timeout(AGAIN, running.as_mut()).await {
                    return Some(ended);
                }
            }
        };
        tokio::time::timeout(ENDED, asking).await.ok().flatten()
    }

    /// Keeps a session that holds nothing for the next one who has to wait.
    fn put_back(&self, seat: Arc<Seat>) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if seat.is_alive() && spare.len() < SPARE {
            spare.push(seat);
        }
    }
}

#[cfg(feature = "bench")]
impl AdvisoryLocks {
    /// The bare driver, for benchmarks.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    #[doc(hidden)]
    pub async fn baseline(&self) -> Result<Box<dyn distlock_core::bench::Baseline>> {
        crate::baseline::open(&self.0.config, self.0.schema.tables(), Purpose::Advisory).await
    }
}

#[async_trait]
impl Store for AdvisoryLocks {
    fn describe(&self) -> String {
        self.0.shown.clone()
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::all();
        capabilities.frees_on_crash = true;
        capabilities.durable = false;
        capabilities
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Record>> {
        inspect::find(&self.0, query).await
    }

    /// Ends the sessions that hold an advisory lock, and with them all else that they hold. The permits of a semaphore
    /// are taken alone.
    async fn break_lock(&self, resource: &Resource) -> Result<Vec<Holder>> {
        match resource.kind() {
            Kind::Semaphore | Kind::FairQueue => pool::break_lock(&self.0, resource).await,
            _ => inspect::break_lock(&self.0, resource).await,
        }
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        inspect::doctor(&self.0).await
    }
}

#[async_trait]
impl SessionStore for AdvisoryLocks {
    async fn acquire(&self, claim: &Claim, withdraw: &CancellationToken) -> Result<Option<SessionHold>> {
        match claim.resource.kind() {
            Kind::Semaphore | Kind::FairQueue => pool::acquire(&self.0, claim, withdraw).await,
            _ => native::acquire(&self.0, claim, withdraw).await,
        }
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        let held = self.0.holds().remove(&lease.lock_id);
        match held {
            Some(held) => native::release(&self.0, held, &lease.lock_id).await,
            None => pool::release(&self.0, lease).await,
        }
    }
}
