//! The store: sends each verb to the table of its record.

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use distlock_core::store::support::batch::{self, BatchItem};
use distlock_core::store::support::errors;
use distlock_core::store::{
    Attempt, Batch, Capabilities, Claim, Finding, Holder, Inbox, Lease, LeaseStore, Query, Record, Released,
    Renewal, Store, WakeStream,
};
use distlock_core::{RecordKind, Resource, Result};
use tokio_postgres::Row;

use super::full_queues::{self, FullQueues};
use super::listener::Listening;
use super::locked_rows::{self, LockedRows, Queueing, Verb};
use super::mutex::MutexStatements;
use super::shared_connection::SharedConnection;
use super::{doctor, inspect, listener, mutex, pool};
use crate::clients::ConnectionPool;
use crate::config::{Listen, PostgresConfig};
use crate::connection::ServerInfo;
use crate::pool_batch::PoolStatements;
use crate::schema::{Schema, StoreKind};
use crate::statement::{Request, RowLockTimeout, Statement};
use crate::sweep::{self, PAGE, Sweep};
use crate::tables::{PoolTable, Tables};
use crate::values::to_micros;

/// Locks in two tables: one row for each mutex, one for each semaphore or reader-writer lock. Cheap to clone; clones share
/// one connection.
///
/// ```no_run
/// use distlock_core::Locks;
/// use distlock_core::store::{Backend, StoreUrl};
/// use distlock_postgres::{PostgresConfig, PostgresStore};
///
/// # async fn example() -> distlock_core::Result<()> {
/// let url = StoreUrl::parse("postgres://app@db/app")?;
/// let store = PostgresStore::connect(PostgresConfig::from_url(&url)?.schema("locks")?).await?;
/// let locks = Locks::new(Backend::lease(store))?;
/// let guard = locks.mutex("orders/42").acquire().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct PostgresStore(Arc<StoreState>);

/// What all requests of one store share.
#[derive(Debug)]
pub(super) struct StoreState {
    pub(super) shared: SharedConnection,
    location: String,
    /// What the first connection found.
    pub(super) server: ServerInfo,
    /// Waiters are woken.
    pub(super) listens: bool,
    pub(super) mutex: MutexStatements,
    pub(super) pool: PoolStatements,
    pub(super) locked_rows: LockedRows,
    pub(super) full_queues: FullQueues,
    pub(super) listening: Listening,
    sweep: [Statement; 2],
}

impl PostgresStore {
    /// Connects, and creates missing tables.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] or [`ErrorKind::Denied`] if the server cannot be reached or refuses; [`ErrorKind::Denied`]
    /// too if tables are missing and the role may not create them; [`ErrorKind::Unsupported`] before PostgreSQL 12.
    ///
    /// [`ErrorKind::Unavailable`]: distlock_core::ErrorKind::Unavailable
    /// [`ErrorKind::Denied`]: distlock_core::ErrorKind::Denied
    /// [`ErrorKind::Unsupported`]: distlock_core::ErrorKind::Unsupported
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind but tables that were created.
    pub async fn connect(config: PostgresConfig) -> Result<Self> {
        PostgresStore::connect_through(config, None).await
    }

    /// Connects, with statements over connections of a pool if there is one.
    pub(crate) async fn connect_through(
        config: PostgresConfig,
        pool: Option<ConnectionPool>,
    ) -> Result<Self> {
        let location = config.to_string();
        let schema = Schema::new(&config, StoreKind::Lease);
        let shared =
            SharedConnection::open(config, schema, pool).await.map_err(|error| error.on(location.clone()))?;
        let server = shared.get().await?.server;
        let listens = match shared.config.listen {
            Listen::Auto => !server.pooled,
            Listen::On => true,
            Listen::Off => false,
        };
        let state = Arc::new(StoreState::new(shared, location, server, listens));
        sweep::start(&state);
        Ok(PostgresStore(state))
    }

    /// Connects to the server of a configuration of the driver: its address, login and database are used, and those of
    /// `config` are not.
    ///
    /// The driver's `Client` is one connection that cannot be opened again, so the store cannot use one of yours.
    ///
    /// # Errors
    /// As for [`connect`](PostgresStore::connect).
    ///
    /// # Cancel safety
    /// As for [`connect`](PostgresStore::connect).
    pub async fn with_client(client: tokio_postgres::Config, config: PostgresConfig) -> Result<Self> {
        PostgresStore::connect(config.on(client)).await
    }

    /// Deletes now the rows that were unused for the whole retention time, and returns how many. A background task does that
    /// anyway. One process at a time sweeps: while another one does, this returns 0.
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

impl StoreState {
    fn new(shared: SharedConnection, location: String, server: ServerInfo, listens: bool) -> Self {
        let tables: &Tables = shared.schema.tables();
        StoreState {
            location,
            server,
            listens,
            mutex: MutexStatements::new(tables),
            pool: PoolStatements::new(tables, PoolTable::Leases),
            locked_rows: LockedRows::new(tables),
            full_queues: FullQueues::new(tables),
            listening: Listening::default(),
            sweep: [sweep::lock_statement(tables), sweep::pool_statement(tables, PoolTable::Leases)],
            shared,
        }
    }
}

#[cfg(feature = "bench")]
impl PostgresStore {
    /// The baseline for benchmarks.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    #[doc(hidden)]
    pub async fn baseline(&self) -> Result<Box<dyn distlock_core::bench::Baseline>> {
        let shared = &self.0.shared;
        crate::baseline::open(&shared.config, shared.schema.tables(), StoreKind::Lease).await
    }

    /// How many statements were sent. Each is one round trip and one commit.
    #[doc(hidden)]
    #[must_use]
    pub fn statements(&self) -> u64 {
        self.0.shared.statements()
    }
}

impl Sweep for StoreState {
    const TABLES: usize = 2;

    async fn sweep_page(&self, table: usize, after: &str) -> Result<Option<Vec<Row>>> {
        let retention = to_micros(self.shared.config.retention);
        self.shared.query(&Request::new(&self.sweep[table], &[&after, &PAGE, &retention])).await.map(Some)
    }
}

#[async_trait]
impl Store for PostgresStore {
    fn describe(&self) -> String {
        self.0.location.clone()
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::all();
        capabilities.push = self.0.listens;
        capabilities
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Record>> {
        inspect::records(&self.0, query).await
    }

    async fn break_lock(&self, resource: &Resource) -> Result<Vec<Holder>> {
        let record = resource.kind().record();
        let answers = send_to_table::<Break>(&self.0, record, vec![&BrokenLock(resource.clone())]).await?;
        answers.into_iter().next().unwrap_or_else(|| Err(errors::too_few_answers()))
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        doctor::examine(&self.0).await
    }
}

#[async_trait]
impl LeaseStore for PostgresStore {
    async fn try_acquire(&self, claims: &[Claim]) -> Batch<Attempt> {
        batch::with_possible_weights(claims, |claims| try_acquire(&self.0, claims)).await
    }

    async fn renew(&self, leases: &[Lease]) -> Batch<Renewal> {
        send::<Renew>(&self.0, leases).await
    }

    async fn release(&self, leases: &[Lease]) -> Batch<Released> {
        self.0.listening.forget(leases.iter().map(|lease| &lease.lock_id));
        let answers = send::<Release>(&self.0, leases).await;
        listener::rest(&self.0);
        answers
    }

    async fn subscribe(&self, inbox: &Inbox) -> Result<WakeStream> {
        listener::subscribe(&self.0, inbox).await
    }
}

/// The verbs of a lease store, on both tables.
struct Acquire;
struct Renew;
struct Release;
struct Break;

/// What a forced release is about.
struct BrokenLock(Resource);

impl BatchItem for BrokenLock {
    fn resource(&self) -> &Resource {
        &self.0
    }
}

impl Verb for Acquire {
    type Item = Claim;
    type Answer = Attempt;

    fn queueing(_: &[&Claim]) -> Queueing {
        Queueing::ATTEMPT
    }

    async fn send(
        state: &StoreState,
        record: RecordKind,
        claims: &[&Claim],
        timeout: RowLockTimeout,
    ) -> Batch<Attempt> {
        match record {
            RecordKind::Lock => mutex::try_acquire(state, claims, timeout).await,
            RecordKind::Pool => pool::try_acquire(state, claims, timeout).await,
        }
    }

    fn crowded() -> Result<Attempt> {
        Ok(full_queues::no_room())
    }
}

impl Verb for Renew {
    type Item = Lease;
    type Answer = Renewal;

    fn queueing(leases: &[&Lease]) -> Queueing {
        Queueing::of_renewals(leases.iter().copied())
    }

    async fn send(
        state: &StoreState,
        record: RecordKind,
        leases: &[&Lease],
        timeout: RowLockTimeout,
    ) -> Batch<Renewal> {
        match record {
            RecordKind::Lock => mutex::renew(state, leases, timeout).await,
            RecordKind::Pool => pool::renew(state, leases, timeout).await,
        }
    }
}

impl Verb for Release {
    type Item = Lease;
    type Answer = Released;

    fn queueing(_: &[&Lease]) -> Queueing {
        Queueing::RELEASE
    }

    async fn send(
        state: &StoreState,
        record: RecordKind,
        leases: &[&Lease],
        timeout: RowLockTimeout,
    ) -> Batch<Released> {
        match record {
            RecordKind::Lock => mutex::release(state, leases, timeout).await,
            RecordKind::Pool => pool::release(state, leases, timeout).await,
        }
    }
}

impl Verb for Break {
    type Item = BrokenLock;
    type Answer = Vec<Holder>;

    fn queueing(_: &[&BrokenLock]) -> Queueing {
        Queueing::RELEASE
    }

    async fn send(
        state: &StoreState,
        record: RecordKind,
        locks: &[&BrokenLock],
        timeout: RowLockTimeout,
    ) -> Batch<Vec<Holder>> {
        let mut answers = Vec::new();
        for BrokenLock(resource) in locks {
            answers.push(match record {
                RecordKind::Lock => mutex::break_lock(state, resource, timeout).await,
                RecordKind::Pool => pool::break_lock(state, resource, timeout).await,
            });
        }
        Ok(answers)
    }
}

/// One statement for each table, both in flight at once.
async fn send<'a, V: Verb>(
    state: &StoreState,
    items: impl IntoIterator<Item = &'a V::Item>,
) -> Batch<V::Answer>
where
    V::Item: 'a,
{
    batch::by_record_kind(
        items,
        |locks| send_to_table::<V>(state, RecordKind::Lock, locks),
        |pools| send_to_table::<V>(state, RecordKind::Pool, pools),
    )
    .await
}

/// One statement; if another session has locked rows, further ones for the items of those rows.
async fn send_to_table<V: Verb>(
    state: &StoreState,
    record: RecordKind,
    items: Vec<&V::Item>,
) -> Batch<V::Answer> {
    if !state.locked_rows.is_empty() {
        return Box::pin(locked_rows::send_around::<V>(state, record, items)).await;
    }
    let answers = V::send(state, record, &items, RowLockTimeout::Default).await;
    match locked_rows::is_blocked(&answers) {
        true => Box::pin(locked_rows::send_blocked::<V>(state, record, items, answers)).await,
        false => answers,
    }
}

/// The process listens for those of the claims that may leave an entry in a wait queue.
async fn try_acquire(state: &Arc<StoreState>, claims: Vec<&Claim>) -> Batch<Attempt> {
    let answers = try_acquire_unless_full(state, claims.clone()).await;
    if let Ok(answers) = &answers {
        let has_no_room =
            |answer: &Result<Attempt>| matches!(answer, Ok(Attempt::Busy { poll_after: Some(_), .. }));
        let without_entry = claims.iter().zip(answers).filter(|(_, answer)| has_no_room(answer));
        let mut ids = without_entry.map(|(claim, _)| &claim.lock_id).peekable();
        if ids.peek().is_some() {
            state.listening.forget(ids);
            listener::rest(state);
        }
    }
    answers
}

/// Waiters for which a wait queue has no room are answered by a plain read, the others by [`try_acquire_now`].
async fn try_acquire_unless_full(state: &StoreState, claims: Vec<&Claim>) -> Batch<Attempt> {
    let mut full = full_queues::answer(state, &claims).await?;
    if full.is_empty() {
        return try_acquire_now(state, claims).await;
    }
    let left: Vec<usize> = (0..claims.len()).filter(|at| !full.contains_key(at)).collect();
    let mut answers: Vec<Result<Attempt>> = Vec::with_capacity(claims.len());
    let mut others = match left.is_empty() {
        true => Vec::new(),
        false => {
            let sent = try_acquire_now(state, left.iter().map(|at| claims[*at]).collect()).await;
            batch::each(sent, left.len())
        }
    }
    .into_iter();
    for at in 0..claims.len() {
        let other = |_| others.next().unwrap_or_else(|| Err(errors::too_few_answers()));
        answers.push(full.remove(&at).map(Ok).ok_or(()).unwrap_or_else(other));
    }
    Ok(answers)
}

/// A statement can change a row only once. Claims that would change a row a second time are sent in a further batch. That is
/// rare: the engine has one claim for a mutex in flight at a time, and claims for one pool go into one batch.
async fn try_acquire_now(state: &StoreState, mut claims: Vec<&Claim>) -> Batch<Attempt> {
    if state.listens {
        let waiters = claims.iter().filter(|claim| claim.waiting.is_some());
        state.listening.expect(waiters.map(|claim| &claim.lock_id)).await;
    }
    let mut positions: Vec<usize> = (0..claims.len()).collect();
    let mut answers: Vec<Option<Result<Attempt>>> = claims.iter().map(|_| None).collect();
    loop {
        let mut rows = HashSet::new();
        let (first, later): (Vec<usize>, Vec<usize>) = positions.into_iter().partition(|at| {
            let claim = claims[*at];
            let is_pool = claim.resource.kind().record() == RecordKind::Pool;
            rows.insert((&claim.resource, is_pool.then_some(&claim.lock_id)))
        });
        if first.len() == claims.len() {
            return send::<Acquire>(state, std::mem::take(&mut claims)).await;
        }
        let sent = send::<Acquire>(state, first.iter().map(|at| claims[*at])).await;
        for (at, answer) in first.iter().zip(batch::each(sent, first.len())) {
            answers[*at] = Some(answer);
        }
        if later.is_empty() {
            break;
        }
        positions = later;
    }
    Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(errors::too_few_answers()))).collect())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use distlock_core::store::StoreUrl;
    use distlock_testkit::servers::PostgresServer;

    use super::*;

    /// With the pauses of the background task. A thousand rows a second would take more than twenty seconds.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_background_sweep_keeps_up_with_thousands_of_names_a_second() {
        let server = PostgresServer::start();
        let url = StoreUrl::parse(&server.url()).unwrap();
        let store = PostgresStore::connect(PostgresConfig::from_url(&url).unwrap()).await.unwrap();
        server.sql(
            "INSERT INTO distribute_lock (key, value, expire_time, token)
             SELECT 'old/' || n, '', now() - interval '2 hours', 1 FROM generate_series(1, 25000) n;
             INSERT INTO distribute_lock (key, value, expire_time, token)
             SELECT 'new/' || n, '', now(), 1 FROM generate_series(1, 5000) n",
        );
        let started = Instant::now();
        let pass = sweep::pass(&Arc::downgrade(&store.0), sweep::pause_after).await.unwrap().unwrap();
        assert_eq!((pass.deleted, pass.seen), (25_000, 30_000));
        assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
        assert_eq!(server.value("SELECT count(*) FROM distribute_lock"), "5000");
    }
}
