//! A benchmark of one store: connect, run, clean up.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::bench::Baseline;
use distlock_core::store::Connected;
use distlock_core::{Error, Locks, Options, Result};
use futures_core::future::BoxFuture;

use crate::counter::RequestCounter;
use crate::outcome::Outcome;
use crate::plan::{Plan, Scenario};
use crate::scenarios;

/// Opens a store by URL: the facade's `open`, or one with more stores.
pub type Open = for<'a> fn(&'a str) -> BoxFuture<'a, Result<Connected>>;

/// Opens the baseline of a store by URL: the facade's `bench::baseline`.
pub type OpenBaseline = for<'a> fn(&'a str) -> BoxFuture<'a, Result<Option<Box<dyn Baseline>>>>;

/// The store under load.
#[derive(Clone)]
pub struct BenchStore {
    pub(crate) url: String,
    pub(crate) open: Open,
    baseline: Option<OpenBaseline>,
    pub(crate) worker: Option<(PathBuf, Vec<OsString>)>,
}

impl BenchStore {
    /// The store at this URL.
    #[must_use]
    pub fn new(url: impl Into<String>, open: Open) -> Self {
        let mut url = url.into();
        if url == "memory:" {
            // A private store for each connection: the connections of a benchmark need one that they share.
            url.push_str("distlock-bench");
        }
        BenchStore { url, open, baseline: None, worker: None }
    }

    /// Sets how to open the baseline. Without it there is no comparison, and the names of the benchmark are not removed
    /// afterwards.
    #[must_use]
    pub fn baseline(mut self, open: OpenBaseline) -> Self {
        self.baseline = Some(open);
        self
    }

    /// Sets how to start a process that calls [`worker`](crate::worker), for the scenarios with several processes; without it
    /// those are left out. The process reads the URL from standard input, where other users cannot see the password.
    #[must_use]
    pub fn worker_program(mut self, program: PathBuf, args: Vec<OsString>) -> Self {
        self.worker = Some((program, args));
        self
    }

    /// Whether other processes can reach the store.
    pub(crate) fn is_shared(&self) -> bool {
        !self.url.starts_with("memory:")
    }

    pub(crate) async fn connect(&self, options: Options) -> Result<Locks> {
        Locks::builder((self.open)(&self.url).await?).options(options).build()
    }
}

/// Omits the URL, which may contain a password.
impl fmt::Debug for BenchStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BenchStore").field("worker", &self.worker).finish_non_exhaustive()
    }
}

/// Receives the progress of a benchmark.
pub trait Observer: Send + Sync {
    /// A run has started.
    fn started(&self, title: &str);
    /// This share of the run is complete.
    fn progress(&self, share: f64);
    /// A remark for the reader of the result.
    fn note(&self, text: &str);
}

/// Ignores all progress.
#[derive(Clone, Copy, Debug)]
pub struct NoObserver;

impl Observer for NoObserver {
    fn started(&self, _: &str) {}
    fn progress(&self, _: f64) {}
    fn note(&self, _: &str) {}
}

/// A connected benchmark. Call [`finish`](Bench::finish) also after a failed run: it removes the names of the benchmark.
pub struct Bench {
    store: BenchStore,
    locks: Locks,
    baseline: Option<Arc<dyn Baseline>>,
    /// The prefix of all names, unique to this benchmark.
    prefix: String,
}

/// What a scenario needs.
pub(crate) struct BenchContext<'a> {
    pub(crate) store: &'a BenchStore,
    pub(crate) locks: &'a Locks,
    pub(crate) baseline: Option<&'a Arc<dyn Baseline>>,
    pub(crate) prefix: &'a str,
    pub(crate) counter: &'a RequestCounter,
    pub(crate) observer: &'a dyn Observer,
}

impl BenchContext<'_> {
    pub(crate) fn progress(&self, spent: Duration, total: Duration) {
        self.observer.progress((spent.as_secs_f64() / total.as_secs_f64().max(1e-9)).min(1.0));
    }

    pub(crate) fn name(&self, rest: impl fmt::Display) -> String {
        format!("{}{rest}", self.prefix)
    }

    /// Long enough for a waiter on another connection to enter the wait queue, also over a slow network.
    pub(crate) async fn settle_time(&self) -> Result<Duration> {
        const LEAST: Duration = Duration::from_millis(10);
        const MOST: Duration = Duration::from_millis(500);
        let mutex = self.locks.mutex(self.name("settle"));
        let mut took = [Duration::ZERO; 9];
        for duration in &mut took {
            let begun = std::time::Instant::now();
            mutex.acquire().await?.release().await?;
            *duration = begun.elapsed();
        }
        took.sort_unstable();
        Ok((took[took.len() / 2] * 5).clamp(LEAST, MOST))
    }
}

impl Bench {
    /// Connects to the store.
    ///
    /// # Errors
    /// If the store is unreachable or refuses the connection.
    pub async fn connect(store: BenchStore) -> Result<Self> {
        let locks = store.connect(Options::default()).await?;
        let baseline = match store.baseline {
            Some(open) => open(&store.url).await?.map(Arc::from),
            None => None,
        };
        let prefix = format!("distlock-bench/{:012x}/", fastrand::u64(..) >> 16);
        Ok(Bench { store, locks, baseline, prefix })
    }

    /// The store, without secrets.
    #[must_use]
    pub fn store(&self) -> &str {
        self.locks.store()
    }

    /// Whether there is a baseline to compare with.
    #[must_use]
    pub fn has_baseline(&self) -> bool {
        self.baseline.is_some()
    }

    /// Runs the plan. A scenario that this store cannot run is left out, with a note to the observer.
    ///
    /// # Errors
    /// The first failure of the store or of a worker process.
    ///
    /// # Cancel safety
    /// Dropping the future ends the load. Held locks are released in the background, and [`finish`](Bench::finish) waits for
    /// that.
    pub async fn run(&mut self, plan: &Plan, observer: &dyn Observer) -> Result<Vec<Outcome>> {
        let counter = RequestCounter::new(self.baseline.clone()).await?;
        let mut outcomes = Vec::new();
        for scenario in &plan.scenarios {
            let context = BenchContext {
                store: &self.store,
                locks: &self.locks,
                baseline: self.baseline.as_ref(),
                prefix: &self.prefix,
                counter: &counter,
                observer,
            };
            outcomes.append(&mut run_one(&context, *scenario, plan).await?);
        }
        Ok(outcomes)
    }

    /// Shuts down and removes the names of the benchmark.
    ///
    /// # Errors
    /// If the store fails; remaining leases expire.
    pub async fn finish(self) -> Result<()> {
        let shut_down = self.locks.shutdown().await;
        if let Some(baseline) = &self.baseline {
            baseline.clean_up(&self.prefix).await.map_err(|error| self.explain(error))?;
        }
        shut_down
    }

    fn explain(&self, error: Error) -> Error {
        error.doing("clean up after the benchmark").on(self.store().to_owned())
    }
}

impl fmt::Debug for Bench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bench")
            .field("store", &self.store())
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

async fn run_one(context: &BenchContext<'_>, scenario: Scenario, plan: &Plan) -> Result<Vec<Outcome>> {
    match scenario {
        Scenario::Uncontended => Ok(vec![scenarios::cycles::uncontended(context, plan).await?]),
        Scenario::Throughput => scenarios::cycles::throughput(context, plan).await,
        Scenario::Handoff => Ok(vec![scenarios::handoff::run(context, plan).await?]),
        Scenario::Contended => scenarios::contended::run(context, plan).await,
        Scenario::Held => Ok(vec![scenarios::held::run(context, plan).await?]),
        Scenario::Takeover => {
            scenarios::takeover::run(context, plan).await.map(|outcome| outcome.into_iter().collect())
        }
    }
}
