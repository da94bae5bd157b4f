//! The memory store: the reference implementation of the two records, and a store for tests and for programs of one
//! process.

mod records;
mod stats;
mod streams;
mod table;
mod tokens;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

pub use stats::{Calls, Stats};

use self::records::Wakes;
use self::stats::Counters;
use self::streams::WakeStreams;
use self::table::Table;
#[cfg(any(test, feature = "test-util"))]
use self::tokens::{ServerCounter, TokenRule};
use crate::clock::{BootClock, Clock, Moment};
use crate::error::Result;
use crate::resource::{FencingToken, Resource};
use crate::store::{
    Attempt, Backend, Batch, Capabilities, Claim, Driver, Finding, Holder, Inbox, Lease, LeaseStore, Query,
    Record, Released, Renewal, Store, StoreUrl, WakeStream,
};

/// How long the token of an unused name is kept by default.
pub const DEFAULT_RETENTION: Duration = Duration::from_secs(3600);

/// `memory:` is a store of its own for each connection; `memory:NAME` is one for all connections of the process with that name,
/// and lives as long as the process.
pub static DRIVER: Driver =
    Driver::new(&["memory"], "memory:NAME", |url| Box::pin(async move { connect(&url) }))
        .with_check(|url| store_name(url).map(drop));

fn connect(url: &StoreUrl) -> Result<Backend> {
    static SHARED: LazyLock<Mutex<HashMap<String, MemoryStore>>> = LazyLock::new(Mutex::default);
    Ok(Backend::lease(match store_name(url)? {
        name if name.is_empty() => MemoryStore::new(),
        name => SHARED.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_default().clone(),
    }))
}

/// The name of a store that is shared within the process; empty for one that is not.
fn store_name(url: &StoreUrl) -> Result<String> {
    let mut url = url.clone();
    url.accept(DRIVER.schemes())?;
    url.refuse_other_options(&[])?;
    url.refuse_unknown_driver(&[])?;
    if url.has_authority() {
        return Err(url
            .refuse("a memory store has no address")
            .advise("write memory: for a private store, or memory:NAME for one that the process shares"));
    }
    url.path()
}

/// Locks in the memory of this process. Clones share their locks, so engines with a clone each behave like processes
/// with one server.
///
/// Expiry and the clock term of tokens come from the store's own clock, whatever clocks the engines have. The token of a
/// released or expired name is kept for the retention time, and longer if it is ahead of the clock. A later token is
/// higher as long as the clock was not set back.
///
/// ```
/// use distlock_core::memory::MemoryStore;
/// use distlock_core::store::Store;
///
/// let store = MemoryStore::new();
/// assert_eq!(store.describe(), "memory");
/// ```
#[derive(Clone)]
pub struct MemoryStore(Arc<StoreState>);

struct StoreState {
    clock: Arc<dyn Clock>,
    table: Mutex<Table>,
    streams: WakeStreams,
    counters: Counters,
}

impl MemoryStore {
    /// An empty store on the [`BootClock`].
    #[must_use]
    pub fn new() -> Self {
        MemoryStore::with_clock(Arc::new(BootClock))
    }

    /// An empty store whose server clock is this one.
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        MemoryStore(Arc::new(StoreState {
            clock,
            table: Mutex::new(Table::new(DEFAULT_RETENTION)),
            streams: WakeStreams::default(),
            counters: Counters::default(),
        }))
    }

    /// Sets how long the token of an unused name is kept. Default one hour.
    #[must_use]
    pub fn retention(self, retention: Duration) -> Self {
        self.table().retention = retention;
        self
    }

    /// The number of requests so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.counters.read()
    }

    /// How many names the store remembers, including names of which only the token is left.
    #[must_use]
    pub fn remembered(&self) -> usize {
        self.table().len()
    }

    /// The last token of a resource, if the store remembers it, whether or not it is held.
    #[must_use]
    pub fn last_token(&self, resource: &Resource) -> Option<FencingToken> {
        self.table().last_token(resource)
    }

    /// How many streams of wake-ups are open.
    #[cfg(any(test, feature = "test-util"))]
    #[must_use]
    pub fn listeners(&self) -> usize {
        self.0.streams.len()
    }

    /// For tests: drops the next wake-ups, `u64::MAX` for all, zero to stop.
    #[cfg(any(test, feature = "test-util"))]
    pub fn lose_wakes(&self, messages: u64) {
        self.0.streams.lose(messages);
    }

    /// For tests: ends every open stream of wake-ups, as a broken connection does.
    #[cfg(any(test, feature = "test-util"))]
    pub fn hang_up(&self) {
        self.0.streams.hang_up();
    }

    /// For tests: mutexes draw their tokens from one counter of the whole store, as on Redis, which is kept for this long after
    /// its last use. It is one more than the last token, or the clock in µs.
    #[cfg(any(test, feature = "test-util"))]
    #[must_use]
    pub fn with_one_counter(self, retention: Duration) -> Self {
        self.table().rule = TokenRule::PerServer(ServerCounter::new(retention));
        self
    }

    /// For tests: loses that counter.
    #[cfg(any(test, feature = "test-util"))]
    pub fn lose_counter(&self) {
        if let TokenRule::PerServer(counter) = &mut self.table().rule {
            counter.lose();
        }
    }

    /// For tests: the last token of that counter, unless it was lost or has expired.
    #[cfg(any(test, feature = "test-util"))]
    #[must_use]
    pub fn counter(&self) -> Option<u64> {
        let now = self.0.clock.now();
        match &mut self.table().rule {
            TokenRule::PerServer(counter) => counter.known(now),
            TokenRule::PerName => None,
        }
    }

    /// For tests: another store with what this one has now, as a replica.
    #[cfg(any(test, feature = "test-util"))]
    #[must_use]
    pub fn copy(&self) -> Self {
        MemoryStore(Arc::new(StoreState {
            clock: Arc::clone(&self.0.clock),
            table: Mutex::new(self.table().clone()),
            streams: WakeStreams::default(),
            counters: Counters::default(),
        }))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn step<T>(&self, step: impl FnOnce(&mut Table, Moment, &mut Wakes) -> T) -> T {
        let mut wakes = Wakes::new();
        let mut table = self.table();
        let answer = step(&mut table, self.0.clock.now(), &mut wakes);
        self.0.counters.wakes.fetch_add(wakes.len() as u64, Ordering::Relaxed);
        // Sent before the table is unlocked, so that messages keep the order of the steps.
        self.0.streams.send(wakes);
        answer
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        MemoryStore::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("remembered", &self.remembered()).finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn describe(&self) -> String {
        "memory".to_owned()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { durable: false, ..Capabilities::all() }
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Record>> {
        Ok(self.step(|table, now, _| table.inspect(query, now)))
    }

    async fn break_lock(&self, resource: &Resource) -> Result<Vec<Holder>> {
        Ok(self.step(|table, now, wakes| table.break_lock(resource, now, wakes)))
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        Ok(vec![Finding::ok("a memory store: its locks exist in this process only and end with it")])
    }
}

#[async_trait]
impl LeaseStore for MemoryStore {
    async fn try_acquire(&self, claims: &[Claim]) -> Batch<Attempt> {
        self.0.counters.acquire.count(claims.len());
        Ok(self.step(|table, now, wakes| {
            claims.iter().map(|claim| table.try_acquire(claim, now, wakes)).collect()
        }))
    }

    async fn renew(&self, leases: &[Lease]) -> Batch<Renewal> {
        self.0.counters.renew.count(leases.len());
        Ok(self.step(|table, now, wakes| {
            leases.iter().map(|lease| Ok(table.renew(lease, now, wakes))).collect()
        }))
    }

    async fn release(&self, leases: &[Lease]) -> Batch<Released> {
        self.0.counters.release.count(leases.len());
        Ok(self.step(|table, now, wakes| {
            leases.iter().map(|lease| Ok(table.release(lease, now, wakes))).collect()
        }))
    }

    async fn subscribe(&self, inbox: &Inbox) -> Result<WakeStream> {
        self.0.counters.subscriptions.fetch_add(1, Ordering::Relaxed);
        Ok(Box::pin(self.0.streams.open(inbox)))
    }
}
