//! The lease table: locks as rows that expire by the server's clock.

mod doctor;
mod inspect;
mod listen;
mod lock;
mod locked;
mod pool;
mod sweep;

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use distlock_core::store::{
    Attempt, Backend, Batch, Capabilities, Claim, Driver, Finding, Holder, Inbox, Lease, LeaseStore, Query,
    Record, Released, Renewal, Store, WakeStream,
};
use distlock_core::{Error, ErrorKind, Locks, RecordKind, Resource, Result};

use crate::config::{Listen, PostgresConfig};
use crate::link::{Link, Server};
use crate::schema::{self, Purpose, Schema};

/// `postgres://…` and `postgresql://…`.
pub static LEASE_DRIVER: Driver = driver();

const fn driver() -> Driver {
    let driver = Driver::new(&["postgres", "postgresql"], "postgres://user@host:5432/database", |url| {
        Box::pin(async move {
            let config = PostgresConfig::from_store_url(url)?;
            Ok(Backend::lease(LeaseTable::connect(config).await?))
        })
    })
    .with_schema(|url| schema::print(url, Purpose::Lease));
    #[cfg(feature = "bench")]
    let driver = driver.with_baseline(|url| {
        Box::pin(async move {
            LeaseTable::connect(PostgresConfig::from_store_url(url)?).await?.baseline().await.map(Some)
        })
    });
    driver
}

/// Locks in two tables: one row for each mutex, one for each semaphore or reader-writer lock. Clones share one
/// connection.
///
/// ```no_run
/// # async fn run() -> distlock_core::Result<()> {
/// use distlock_postgres::{LeaseTable, PostgresConfig};
///
/// let config = PostgresConfig::from_url("postgres://app@db/app")?.schema("locks")?;
/// let locks = LeaseTable::connect(config).await?.locks()?;
/// let guard = locks.mutex("orders/42").acquire().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct LeaseTable(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    link: Link,
    shown: String,
    /// What the first connection found.
    server: Server,
    /// Waiters can be woken.
    listens: bool,
    lock: lock::Statements,
    pool: pool::Statements,
    look: inspect::Statements,
    sweep: sweep::Statements,
    locked: locked::Statements,
}

impl LeaseTable {
    /// Connects, and creates the tables if they are not there.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] or [`ErrorKind::Denied`] if the server cannot be reached or refuses us;
    /// [`ErrorKind::Denied`] too if tables are missing and the role may not create them; [`ErrorKind::Unsupported`]
    /// before PostgreSQL 12.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind but tables that were created.
    pub async fn connect(config: PostgresConfig) -> Result<Self> {
        let shown = config.to_string();
        let schema = Schema::new(&config, Purpose::Lease);
        let tables = schema.tables().clone();
        let link = Link::open(Arc::new(config), schema).await.map_err(|error| error.on(shown.clone()))?;
        let server = link.wire().await?.server;
        let listens = match link.config().listen {
            Listen::Auto => !server.pooled,
            Listen::On => true,
            Listen::Off => false,
        };
        let inner = Arc::new(Inner {
            link,
            shown,
            server,
            listens,
            lock: lock::Statements::new(&tables),
            pool: pool::Statements::new(&tables),
            look: inspect::Statements::new(&tables),
            sweep: sweep::Statements::new(&tables),
            locked: locked::Statements::new(&tables),
        });
        sweep::start(&inner);
        Ok(LeaseTable(inner))
    }

    /// Locks with the default options.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] outside a Tokio runtime.
    pub fn locks(&self) -> Result<Locks> {
        Locks::new(Backend::lease(self.clone()))
    }

    /// Forgets now what was of no use for the whole retention time, and says how many rows that were. This goes on in the
    /// background anyway; one process at a time does it, and while another one does this gives 0.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the rest for later.
    pub async fn sweep(&self) -> Result<u64> {
        sweep::once(&self.0).await
    }

    /// How many statements were sent so far. Each is one round trip and one commit.
    #[must_use]
    pub fn statements(&self) -> u64 {
        self.0.link.statements()
    }
}

#[cfg(feature = "bench")]
impl LeaseTable {
    /// The bare driver, for benchmarks.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    #[doc(hidden)]
    pub async fn baseline(&self) -> Result<Box<dyn distlock_core::bench::Baseline>> {
        let link = &self.0.link;
        crate::baseline::open(link.config(), link.schema().tables(), Purpose::Lease).await
    }
}

#[async_trait]
impl Store for LeaseTable {
    fn describe(&self) -> String {
        self.0.shown.clone()
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::all();
        capabilities.push = self.0.listens;
        capabilities
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Record>> {
        inspect::find(&self.0, query).await
    }

    async fn break_lock(&self, resource: &Resource) -> Result<Vec<Holder>> {
        let broken = match resource.kind().record() {
            RecordKind::Lock => lock::break_lock(&self.0, resource).await,
            RecordKind::Pool => pool::break_lock(&self.0, resource).await,
        };
        match broken {
            Err(error) => Err(locked::explain(&self.0, resource, error).await),
            broken => broken,
        }
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        doctor::examine(&self.0).await
    }
}

#[async_trait]
impl LeaseStore for LeaseTable {
    async fn try_acquire(&self, claims: &[Claim]) -> Batch<Attempt> {
        let mut answers: Vec<Option<Result<Attempt>>> = claims.iter().map(|_| None).collect();
        for wave in waves(claims) {
            let sent: Vec<&Claim> = wave.iter().map(|at| &claims[*at]).collect();
            let (locks, pools) = split(&sent, |claim| claim.resource.kind().record());
            let (locks, pools) = tokio::join!(
                locked::run::<lock::Acquire>(&self.0, &locks),
                locked::run::<pool::Acquire>(&self.0, &pools)
            );
            let answered = join(&sent, |claim| claim.resource.kind().record(), locks, pools);
            for (at, answer) in wave.iter().zip(spread(answered, wave.len(), claims.len())?) {
                answers[*at] = Some(answer);
            }
        }
        Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(unanswered)).collect())
    }

    async fn renew(&self, leases: &[Lease]) -> Batch<Renewal> {
        let all: Vec<&Lease> = leases.iter().collect();
        let (locks, pools) = split(&all, |lease| lease.resource.kind().record());
        let (locks, pools) = tokio::join!(
            locked::run::<lock::Renew>(&self.0, &locks),
            locked::run::<pool::Renew>(&self.0, &pools)
        );
        join(&all, |lease| lease.resource.kind().record(), locks, pools)
    }

    async fn release(&self, leases: &[Lease]) -> Batch<Released> {
        let all: Vec<&Lease> = leases.iter().collect();
        let (locks, pools) = split(&all, |lease| lease.resource.kind().record());
        let (locks, pools) = tokio::join!(
            locked::run::<lock::Release>(&self.0, &locks),
            locked::run::<pool::Release>(&self.0, &pools)
        );
        join(&all, |lease| lease.resource.kind().record(), locks, pools)
    }

    async fn subscribe(&self, inbox: &Inbox) -> Result<WakeStream> {
        listen::subscribe(&self.0, inbox).await
    }
}

/// One row can change only once in a statement. Claims that would change one a second time go into a next wave: hardly
/// ever any, since the engine has one claim for a mutex under way at a time, and the claims for one pool go together.
fn waves(claims: &[Claim]) -> Vec<Vec<usize>> {
    let mut waves = Vec::new();
    let mut left: Vec<usize> = (0..claims.len()).collect();
    while !left.is_empty() {
        let mut rows = HashSet::new();
        let (wave, later) = left.into_iter().partition(|at| {
            let claim = &claims[*at];
            let pool = claim.resource.kind().record() == RecordKind::Pool;
            rows.insert((&claim.resource, pool.then_some(&claim.lock_id)))
        });
        waves.push(wave);
        left = later;
    }
    waves
}

fn unanswered<A>() -> Result<A> {
    Err(Error::new(ErrorKind::Internal, "the server answered fewer items than it was asked")
        .with_unknown_outcome())
}

fn split<'a, T>(items: &[&'a T], kind: impl Fn(&T) -> RecordKind) -> (Vec<&'a T>, Vec<&'a T>) {
    items.iter().copied().partition(|item| kind(item) == RecordKind::Lock)
}

/// The answers of a part of the items. Where it failed as a whole and others did not, each item of it failed alone: those
/// others were carried out, and whoever asked must hear of it.
fn spread<A>(answered: Batch<A>, part: usize, all: usize) -> Batch<A> {
    match answered {
        Err(error) if part < all => Ok((0..part).map(|_| Err(error.clone())).collect()),
        answered => answered,
    }
}

/// The answers of both tables, in the order of the items.
fn join<T, A>(items: &[&T], kind: impl Fn(&T) -> RecordKind, locks: Batch<A>, pools: Batch<A>) -> Batch<A> {
    let of_locks = items.iter().filter(|item| kind(item) == RecordKind::Lock).count();
    let mut locks = spread(locks, of_locks, items.len())?.into_iter();
    let mut pools = spread(pools, items.len() - of_locks, items.len())?.into_iter();
    let mut next = |item: &&T| match kind(item) {
        RecordKind::Lock => locks.next(),
        RecordKind::Pool => pools.next(),
    };
    Ok(items.iter().map(|item| next(item).unwrap_or_else(unanswered)).collect())
}
