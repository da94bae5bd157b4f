//! The environment of a case: its store, its clients and their logs.

use std::fmt::{Debug, Display};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use distlock_core::faults::{Faults, FaultyStore};
use distlock_core::store::{Backend, Holder, Query, Record};
use distlock_core::{ErrorKind, Locks};
use tempfile::TempDir;

use super::fixture::{ActorMode, Fixture, Timing};
use crate::actors::{Actor, ActorConfig, TestOptions};
use crate::history::{Event, EventKind, History, LockSpec, RecordedGuard, Recorder, now};

/// Longer than any case, so that nothing in a case ends by this expiry.
const LONG: Duration = Duration::from_secs(60);

/// The environment of one case. Clones share it.
pub struct Harness<F>(Arc<Inner<F>>);

struct Inner<F> {
    fixture: F,
    timing: Timing,
    entry: &'static str,
    logs: TempDir,
    control_log: Arc<Recorder>,
    engines: AtomicU64,
    recorders: AtomicU64,
}

impl<F> Clone for Harness<F> {
    fn clone(&self) -> Self {
        Harness(Arc::clone(&self.0))
    }
}

impl<F> Debug for Harness<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Harness").field("logs", &self.0.logs.path()).finish_non_exhaustive()
    }
}

impl<F: Fixture> Harness<F> {
    pub(super) fn new(fixture: F, entry: &'static str, timing: Timing) -> Self {
        let logs = tempfile::tempdir().expect("a folder for the logs");
        let control_log = Recorder::create(logs.path(), "test");
        Harness(Arc::new(Inner {
            fixture,
            timing,
            entry,
            logs,
            control_log,
            engines: AtomicU64::new(1),
            recorders: AtomicU64::new(1),
        }))
    }

    /// The fixture of the store under test.
    #[must_use]
    pub fn fixture(&self) -> &F {
        &self.0.fixture
    }

    /// Expiries and time limits.
    #[must_use]
    pub fn timing(&self) -> Timing {
        self.0.timing
    }

    /// Options under which nothing expires during the case: neither locks nor queue entries.
    #[must_use]
    pub fn long_lease(&self) -> TestOptions {
        TestOptions { waiter_ttl: LONG, ..self.with_expiry(LONG) }
    }

    /// Options with a short expiry, for cases that wait for it.
    #[must_use]
    pub fn short_lease(&self) -> TestOptions {
        self.with_expiry(self.timing().expiry)
    }

    /// Options under which a holder learns of its loss quickly, from a renewal rather than at its expiry.
    #[must_use]
    pub fn frequent_renewal(&self) -> TestOptions {
        TestOptions { cadence: Some(Duration::from_millis(50)), ..self.with_expiry(Duration::from_secs(10)) }
    }

    fn with_expiry(&self, expiry: Duration) -> TestOptions {
        TestOptions { request_timeout: self.timing().request_timeout, ..TestOptions::with_expiry(expiry) }
    }

    /// A new engine with [`long_lease`](Harness::long_lease) options.
    pub async fn locks(&self) -> Locks {
        self.locks_with(self.long_lease()).await
    }

    /// A new engine with these options. Its label is `engine-N`.
    pub async fn locks_with(&self, options: TestOptions) -> Locks {
        let backend = self.0.fixture.connect().await;
        self.engine(backend, options)
    }

    fn engine(&self, backend: Backend, options: TestOptions) -> Locks {
        let label = format!("engine-{}", self.0.engines.fetch_add(1, Ordering::Relaxed));
        Locks::builder(backend).label(label).options(options.to_options()).build().expect("an engine")
    }

    /// A new engine whose requests fail on command; `None` for a session store, which has no such requests.
    pub async fn faulty_locks_with(&self, options: TestOptions) -> Option<(Locks, Faults)> {
        match self.0.fixture.connect().await {
            Backend::Lease(store) => {
                let (store, faults) = FaultyStore::new(store);
                Some((self.engine(Backend::lease(store), options), faults))
            }
            Backend::Session(_) => None,
        }
    }

    /// A log for a client in this process. A number makes the name unique.
    #[must_use]
    pub fn recorder(&self, name: &str) -> Arc<Recorder> {
        let number = self.0.recorders.fetch_add(1, Ordering::Relaxed);
        Recorder::create(self.0.logs.path(), &format!("{name}-{number}"))
    }

    /// Starts an actor. A number makes the name unique.
    #[must_use]
    pub fn actor(&self, name: &str, options: TestOptions) -> Actor {
        let name = format!("{name}-{}", self.0.recorders.fetch_add(1, Ordering::Relaxed));
        let mut config = ActorConfig { name, logs: self.0.logs.path().to_owned(), options, address: None };
        match self.0.fixture.actor_mode() {
            ActorMode::Processes(address) => {
                config.address = Some(address);
                Actor::spawn_process(self.0.entry, &config, &self.0.control_log)
            }
            ActorMode::Threads { .. } => {
                let harness = self.clone();
                let connect = move || {
                    let harness = harness.clone();
                    let connecting = async move { harness.0.fixture.connect().await };
                    Box::pin(connecting) as std::pin::Pin<Box<dyn Future<Output = Backend> + Send>>
                };
                Actor::spawn_thread(config, connect, &self.0.control_log)
            }
        }
    }

    /// Acquires a lock that must be granted within the wait limit.
    ///
    /// # Panics
    /// If it is not.
    pub async fn acquire(&self, recorder: &Arc<Recorder>, locks: &Locks, spec: &LockSpec) -> RecordedGuard {
        let acquired = recorder.acquire_within(locks, spec, self.timing().wait_limit).await;
        acquired.unwrap_or_else(|error| panic!("{spec:?} should have been granted: {error}"))
    }

    /// Spawns a task that [acquires](Self::acquire) a lock.
    pub fn spawn_acquire(
        &self,
        recorder: &Arc<Recorder>,
        locks: &Locks,
        spec: &LockSpec,
    ) -> tokio::task::JoinHandle<RecordedGuard> {
        let (harness, recorder) = (self.clone(), Arc::clone(recorder));
        let (locks, spec) = (locks.clone(), spec.clone());
        tokio::spawn(async move { harness.acquire(&recorder, &locks, &spec).await })
    }

    /// Breaks a lock and records it: from now on the old holders may not know of their loss yet.
    ///
    /// # Panics
    /// If it fails.
    pub async fn break_lock(&self, locks: &Locks, spec: &LockSpec) -> Vec<Holder> {
        let kind = EventKind::Broken { resource: spec.resource() };
        self.0.control_log.write(&Event { at: now(), actor: "test".into(), request: 0, kind });
        let broken = locks.break_lock(spec.kind(), spec.name()).await;
        broken.unwrap_or_else(|error| panic!("{spec:?} should have been broken: {error}"))
    }

    /// What `inspect` shows of a resource; `None` without holders and waiters.
    ///
    /// # Panics
    /// If `inspect` fails, or shows the resource twice.
    pub async fn record(&self, locks: &Locks, spec: &LockSpec) -> Option<Record> {
        let query = Query::named(spec.name()).with_kind(spec.kind());
        let mut found = locks.inspect(&query).await.expect("inspect");
        assert!(found.len() <= 1, "{spec:?} is shown more than once: {found:?}");
        found.pop()
    }

    /// Waits until the resource has at least this many waiters. On a store that cannot show waiters, sleeps for
    /// [`Timing::queue_delay`] instead.
    pub async fn wait_for_waiters(&self, locks: &Locks, spec: &LockSpec, waiters: usize) {
        if !locks.capabilities().shows_waiters {
            return tokio::time::sleep(self.timing().queue_delay).await;
        }
        let limit = self.wait_limit(format!("{waiters} waiters for {spec:?}"));
        while self.record(locks, spec).await.is_none_or(|record| record.waiters.len() < waiters) {
            limit.pause().await;
        }
    }

    /// Waits until the resource has neither holders nor waiters.
    pub async fn wait_until_unused(&self, locks: &Locks, spec: &LockSpec) {
        let mut limit = self.wait_limit(format!("no holder or waiter of {spec:?}"));
        while let Some(record) = self.record(locks, spec).await {
            limit.set_actual(&record);
            limit.pause().await;
        }
    }

    /// Waits until the resource has no waiters.
    pub async fn wait_for_no_waiters(&self, locks: &Locks, spec: &LockSpec) {
        let mut limit = self.wait_limit(format!("no waiter for {spec:?}"));
        while let Some(record) = self.record(locks, spec).await.filter(|record| !record.waiters.is_empty()) {
            limit.set_actual(&record);
            limit.pause().await;
        }
    }

    fn wait_limit(&self, expected: String) -> WaitLimit {
        WaitLimit { begun: Instant::now(), limit: self.timing().wait_limit, expected, actual: String::new() }
    }

    /// Runs a case for each of these locks concurrently.
    ///
    /// # Panics
    /// If one of them panics.
    pub async fn for_each<P>(&self, specs: Vec<LockSpec>, case: impl Fn(Harness<F>, LockSpec) -> P)
    where
        P: Future<Output = ()> + Send + 'static,
    {
        let mut running = tokio::task::JoinSet::new();
        for spec in specs {
            running.spawn(case(self.clone(), spec));
        }
        running.join_all().await;
    }

    /// Whether the store is a lease store; otherwise it is a session store, where nothing expires.
    pub async fn has_leases(&self) -> bool {
        matches!(self.0.fixture.connect().await, Backend::Lease(_))
    }

    /// Awaits a future that must complete within the wait limit.
    ///
    /// # Panics
    /// If it does not.
    pub async fn within<T>(&self, expected: impl Display, future: impl Future<Output = T>) -> T {
        let wait_limit = self.timing().wait_limit;
        match tokio::time::timeout(wait_limit, future).await {
            Ok(output) => output,
            Err(_) => panic!("did not happen within {wait_limit:?}: {expected}"),
        }
    }

    /// Whether the store supports this lock. If not, asserts that every kind of request for it is refused as `Unsupported`.
    ///
    /// # Panics
    /// If it is not supported and a request does not fail as `Unsupported`.
    pub async fn supports(&self, locks: &Locks, spec: &LockSpec) -> bool {
        if spec.is_supported(locks.capabilities()) {
            return true;
        }
        let results = [
            spec.acquire(locks).await.err(),
            spec.try_acquire(locks).await.err(),
            locks.acquire_all([spec.request()]).await.err(),
        ];
        for result in results {
            let error = result.unwrap_or_else(|| panic!("{spec:?} is not supported, and was not refused"));
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert_eq!(error.store(), Some(locks.store()), "the error does not name the store: {error}");
        }
        println!("not applicable: {spec:?} is not supported here, and is refused");
        false
    }

    /// Checks the history of the case.
    pub(super) fn check_history(&self) {
        let may_share = self.0.fixture.readers_may_share_tokens();
        History::read(self.0.logs.path()).allow_shared_tokens(may_share).assert_clean();
    }

    /// The number of grants of each client so far.
    #[must_use]
    pub fn grants(&self) -> std::collections::BTreeMap<String, usize> {
        History::read(self.0.logs.path()).grants()
    }
}

/// Repeats a check until the wait limit has passed.
struct WaitLimit {
    begun: Instant,
    limit: Duration,
    expected: String,
    actual: String,
}

impl WaitLimit {
    /// Keeps the actual state for the failure message.
    fn set_actual(&mut self, actual: &impl Debug) {
        self.actual = format!("; actual: {actual:?}");
    }

    async fn pause(&self) {
        let WaitLimit { limit, expected, actual, .. } = self;
        assert!(self.begun.elapsed() < *limit, "did not come true within {limit:?}: {expected}{actual}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
