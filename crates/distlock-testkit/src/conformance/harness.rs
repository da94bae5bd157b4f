//! Where a case plays: its store, those who take locks there, and what they write down.

use std::fmt::{Debug, Display};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use distlock_core::faults::{Faults, FaultyStore};
use distlock_core::store::{Backend, Holder, Query, Record};
use distlock_core::{ErrorKind, Locks};
use tempfile::TempDir;

use super::fixture::{Fixture, Others, Pace};
use crate::actors::{Actor, Role, Terms};
use crate::history::{Event, History, LockSpec, Recorder, What, now};

/// An expiry that no case outlives: what ends before it did not end by it.
const LONG: Duration = Duration::from_secs(60);

/// A case's harness. Clones are the same harness.
pub struct Harness<F>(Arc<Inner<F>>);

struct Inner<F> {
    fixture: F,
    pace: Pace,
    entry: &'static str,
    logs: TempDir,
    director: Arc<Recorder>,
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
    pub(super) fn new(fixture: F, entry: &'static str, pace: Pace) -> Self {
        let logs = tempfile::tempdir().expect("a folder for the logs");
        let director = Recorder::create(logs.path(), "director");
        Harness(Arc::new(Inner {
            fixture,
            pace,
            entry,
            logs,
            director,
            engines: AtomicU64::new(1),
            recorders: AtomicU64::new(1),
        }))
    }

    /// The store under test.
    #[must_use]
    pub fn fixture(&self) -> &F {
        &self.0.fixture
    }

    /// How patient to be.
    #[must_use]
    pub fn pace(&self) -> Pace {
        self.0.pace
    }

    /// The terms where nothing is to expire: neither a lock nor the entry of a waiter.
    #[must_use]
    pub fn lasting(&self) -> Terms {
        Terms { waiter_lasts: LONG, ..Terms::expiring(LONG) }
    }

    /// The terms where a lock is to expire: soon, and without a word if it is not extended.
    #[must_use]
    pub fn expiring(&self) -> Terms {
        Terms::expiring(self.pace().expiry)
    }

    /// The terms where a holder is to be told soon, and by its extension rather than its expiry.
    #[must_use]
    pub fn attentive(&self) -> Terms {
        Terms { cadence: Some(Duration::from_millis(50)), ..Terms::expiring(Duration::from_secs(10)) }
    }

    /// An engine of its own, on [lasting](Harness::lasting) terms.
    pub async fn locks(&self) -> Locks {
        self.locks_on(self.lasting()).await
    }

    /// An engine of its own, on these terms. Its label is `engine-N`.
    pub async fn locks_on(&self, terms: Terms) -> Locks {
        let backend = self.0.fixture.connect().await;
        self.engine(backend, terms)
    }

    fn engine(&self, backend: Backend, terms: Terms) -> Locks {
        let label = format!("engine-{}", self.0.engines.fetch_add(1, Ordering::Relaxed));
        Locks::builder(backend).label(label).options(terms.options()).build().expect("an engine")
    }

    /// An engine whose requests fail on command; `None` for a session store, which has no such requests.
    pub async fn faulty_locks_on(&self, terms: Terms) -> Option<(Locks, Faults)> {
        match self.0.fixture.connect().await {
            Backend::Lease(store) => {
                let (store, faults) = FaultyStore::new(store);
                Some((self.engine(Backend::lease(store), terms), faults))
            }
            Backend::Session(_) => None,
        }
    }

    /// A log for somebody in this process. A number makes the name unique.
    #[must_use]
    pub fn recorder(&self, name: &str) -> Arc<Recorder> {
        let number = self.0.recorders.fetch_add(1, Ordering::Relaxed);
        Recorder::create(self.0.logs.path(), &format!("{name}-{number}"))
    }

    /// Somebody in another process. A number makes the name unique.
    #[must_use]
    pub fn actor(&self, name: &str, terms: Terms) -> Actor {
        let name = format!("{name}-{}", self.0.recorders.fetch_add(1, Ordering::Relaxed));
        let mut role = Role { name, logs: self.0.logs.path().to_owned(), terms, address: None };
        match self.0.fixture.others() {
            Others::Processes(address) => {
                role.address = Some(address);
                Actor::in_process(self.0.entry, &role, &self.0.director)
            }
            Others::Threads { .. } => {
                let harness = self.clone();
                let connect = move || {
                    let harness = harness.clone();
                    let connecting = async move { harness.0.fixture.connect().await };
                    Box::pin(connecting) as std::pin::Pin<Box<dyn Future<Output = Backend> + Send>>
                };
                Actor::in_thread(role, connect, &self.0.director)
            }
        }
    }

    /// Takes a lock that must be granted in time.
    ///
    /// # Panics
    /// If it is not.
    pub async fn take(
        &self,
        recorder: &Arc<Recorder>,
        locks: &Locks,
        spec: &LockSpec,
    ) -> crate::history::RecordedGuard {
        let taken = recorder.take_within(locks, spec, self.pace().patience).await;
        taken.unwrap_or_else(|error| panic!("{spec:?} should have been granted: {error}"))
    }

    /// Forced release, written down: from here on the old holders may not know yet.
    ///
    /// # Panics
    /// If it fails.
    pub async fn break_lock(&self, locks: &Locks, spec: &LockSpec) -> Vec<Holder> {
        let what = What::Broken { resource: spec.resource() };
        self.0.director.write(&Event { at: now(), actor: "director".into(), ask: 0, what });
        let broken = locks.break_lock(spec.kind(), spec.name()).await;
        broken.unwrap_or_else(|error| panic!("{spec:?} should have been broken: {error}"))
    }

    /// What the store shows of a resource; `None` if nobody holds it or waits for it.
    ///
    /// # Panics
    /// If the store cannot be asked, or shows it twice.
    pub async fn record(&self, locks: &Locks, spec: &LockSpec) -> Option<Record> {
        let query = Query::named(spec.name()).with_kind(spec.kind());
        let mut found = locks.inspect(&query).await.expect("inspect");
        assert!(found.len() <= 1, "{spec:?} is shown more than once: {found:?}");
        found.pop()
    }

    /// Waits until at least so many wait for a resource, where the store can tell; elsewhere for as long as that
    /// takes on such a store.
    pub async fn until_waiting(&self, locks: &Locks, spec: &LockSpec, waiters: usize) {
        if !locks.capabilities().shows_waiters {
            return tokio::time::sleep(self.pace().settling).await;
        }
        let patience = self.patience(format!("{waiters} waiting for {spec:?}"));
        while self.record(locks, spec).await.is_none_or(|record| record.waiters.len() < waiters) {
            patience.pause().await;
        }
    }

    /// Waits until the store shows nothing of a resource.
    pub async fn until_nothing_is_left(&self, locks: &Locks, spec: &LockSpec) {
        let mut patience = self.patience(format!("nothing left of {spec:?}"));
        while let Some(record) = self.record(locks, spec).await {
            patience.seen(&record);
            patience.pause().await;
        }
    }

    /// Waits until nobody waits for a resource.
    pub async fn until_nobody_waits(&self, locks: &Locks, spec: &LockSpec) {
        let mut patience = self.patience(format!("nobody waiting for {spec:?}"));
        while let Some(record) = self.record(locks, spec).await.filter(|record| !record.waiters.is_empty()) {
            patience.seen(&record);
            patience.pause().await;
        }
    }

    fn patience(&self, what: String) -> Patience {
        Patience { begun: Instant::now(), limit: self.pace().patience, what, seen: String::new() }
    }

    /// Plays something for each of these at the same time.
    ///
    /// # Panics
    /// If one of them does.
    pub async fn for_each<P>(&self, specs: Vec<LockSpec>, play: impl Fn(Harness<F>, LockSpec) -> P)
    where
        P: Future<Output = ()> + Send + 'static,
    {
        let mut playing = tokio::task::JoinSet::new();
        for spec in specs {
            playing.spawn(play(self.clone(), spec));
        }
        playing.join_all().await;
    }

    /// Whether the store has leases, which can expire; otherwise it has sessions.
    pub async fn has_leases(&self) -> bool {
        matches!(self.0.fixture.connect().await, Backend::Lease(_))
    }

    /// Fails the case if something does not end in time.
    ///
    /// # Panics
    /// Then.
    pub async fn within<T>(&self, what: impl Display, future: impl Future<Output = T>) -> T {
        let patience = self.pace().patience;
        match tokio::time::timeout(patience, future).await {
            Ok(output) => output,
            Err(_) => panic!("did not happen within {patience:?}: {what}"),
        }
    }

    /// Whether the store has this. If it has not, asserts that it says so whichever way one asks.
    ///
    /// # Panics
    /// If it is missing and asking for it is anything but `Unsupported`.
    pub async fn offers(&self, locks: &Locks, spec: &LockSpec) -> bool {
        if spec.is_offered(locks.capabilities()) {
            return true;
        }
        let answers = [
            spec.acquire(locks).await.err(),
            spec.try_acquire(locks).await.err(),
            locks.acquire_all([spec.request()]).await.err(),
        ];
        for answer in answers {
            let error = answer.unwrap_or_else(|| panic!("{spec:?} is not offered, and was not refused"));
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert_eq!(error.store(), Some(locks.store()), "the error does not name the store: {error}");
        }
        println!("{spec:?} is not supported here, and is refused as such");
        false
    }

    /// Checks everything that was written down.
    pub(super) fn finish(&self) {
        let may_share = self.0.fixture.readers_may_share_a_token();
        History::read(self.0.logs.path()).sharers_may_share_a_token(may_share).assert_clean();
    }

    /// How often each of those who write logs was granted a lock so far.
    #[must_use]
    pub fn grants(&self) -> std::collections::BTreeMap<String, usize> {
        History::read(self.0.logs.path()).grants()
    }
}

/// Asks again and again, but not for ever.
struct Patience {
    begun: Instant,
    limit: Duration,
    what: String,
    seen: String,
}

impl Patience {
    /// Notes what is there instead, for the failure.
    fn seen(&mut self, instead: &impl Debug) {
        self.seen = format!("; there is {instead:?}");
    }

    async fn pause(&self) {
        let Patience { limit, what, seen, .. } = self;
        assert!(self.begun.elapsed() < *limit, "did not come true within {limit:?}: {what}{seen}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
