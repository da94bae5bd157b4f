//! A benchmark of one store: connect, run, clean up.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::bench::Baseline;
use distlock_core::store::Backend;
use distlock_core::{Error, Locks, Options, Result};
use futures_core::future::BoxFuture;

use crate::counter::Counter;
use crate::outcome::Outcome;
use crate::plan::{Plan, Scenario};
use crate::scenarios;

/// How a store is opened by URL: the facade's `open`, or one that knows more stores.
pub type Open = for<'a> fn(&'a str) -> BoxFuture<'a, Result<Backend>>;

/// How the bare driver of a store is opened by URL: the facade's `bench::baseline`.
pub type OpenBaseline = for<'a> fn(&'a str) -> BoxFuture<'a, Result<Option<Box<dyn Baseline>>>>;

/// The store to put under load.
#[derive(Clone)]
pub struct Target {
    pub(crate) url: String,
    pub(crate) open: Open,
    baseline: Option<OpenBaseline>,
    pub(crate) worker: Option<(PathBuf, Vec<OsString>)>,
}

impl Target {
    /// The store behind this URL.
    #[must_use]
    pub fn new(url: impl Into<String>, open: Open) -> Self {
        Target { url: url.into(), open, baseline: None, worker: None }
    }

    /// How to open the bare driver. Without it there is nothing to compare with, and nothing is removed afterwards.
    #[must_use]
    pub fn baseline(mut self, open: OpenBaseline) -> Self {
        self.baseline = Some(open);
        self
    }

    /// How to start a process that calls [`worker`](crate::worker), for the scenarios that need more than one. Without
    /// it those are left out. The URL goes to it over its standard input, where no other user sees the password.
    #[must_use]
    pub fn worker_program(mut self, program: PathBuf, args: Vec<OsString>) -> Self {
        self.worker = Some((program, args));
        self
    }

    /// Whether other processes see the same locks.
    pub(crate) fn is_shared(&self) -> bool {
        !self.url.starts_with("memory:")
    }

    pub(crate) async fn connect(&self, options: Options) -> Result<Locks> {
        Locks::builder((self.open)(&self.url).await?).options(options).build()
    }
}

/// The URL may hold a password.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("worker", &self.worker).finish_non_exhaustive()
    }
}

/// Is told how a benchmark goes on.
pub trait Observer: Send + Sync {
    /// A run begins.
    fn begins(&self, title: &str);
    /// This share of the run is over.
    fn progress(&self, share: f64);
    /// Something that the reader of the result should know.
    fn note(&self, text: &str);
}

/// Says nothing.
#[derive(Clone, Copy, Debug)]
pub struct Silent;

impl Observer for Silent {
    fn begins(&self, _: &str) {}
    fn progress(&self, _: f64) {}
    fn note(&self, _: &str) {}
}

/// A connected benchmark. Call [`finish`](Bench::finish) whatever came of the runs: it removes what they left.
pub struct Bench {
    target: Target,
    locks: Locks,
    raw: Option<Arc<dyn Baseline>>,
    /// What every name begins with; no other benchmark has the same.
    prefix: String,
}

/// What a scenario stands on.
pub(crate) struct Ground<'a> {
    pub(crate) target: &'a Target,
    pub(crate) locks: &'a Locks,
    pub(crate) raw: Option<&'a Arc<dyn Baseline>>,
    pub(crate) prefix: &'a str,
    pub(crate) counter: &'a Counter,
    pub(crate) observer: &'a dyn Observer,
}

impl Ground<'_> {
    pub(crate) fn progress(&self, spent: Duration, total: Duration) {
        self.observer.progress((spent.as_secs_f64() / total.as_secs_f64().max(1e-9)).min(1.0));
    }

    pub(crate) fn name(&self, rest: impl fmt::Display) -> String {
        format!("{}{rest}", self.prefix)
    }

    /// Long enough for a waiter on another connection to have asked and registered, also over a slow network.
    pub(crate) async fn settle_time(&self) -> Result<Duration> {
        const LEAST: Duration = Duration::from_millis(10);
        const MOST: Duration = Duration::from_millis(500);
        let mutex = self.locks.mutex(self.name("settle"));
        let mut took = [Duration::ZERO; 9];
        for one in &mut took {
            let begun = std::time::Instant::now();
            mutex.acquire().await?.release().await?;
            *one = begun.elapsed();
        }
        took.sort_unstable();
        Ok((took[took.len() / 2] * 5).clamp(LEAST, MOST))
    }
}

impl Bench {
    /// Connects.
    ///
    /// # Errors
    /// If the store cannot be reached or refuses us.
    pub async fn prepare(target: Target) -> Result<Self> {
        let locks = target.connect(Options::default()).await?;
        let raw = match target.baseline {
            Some(open) => open(&target.url).await?.map(Arc::from),
            None => None,
        };
        let prefix = format!("distlock-bench/{:012x}/", fastrand::u64(..) >> 16);
        Ok(Bench { target, locks, raw, prefix })
    }

    /// What and where the store is.
    #[must_use]
    pub fn store(&self) -> &str {
        self.locks.store()
    }

    /// Whether the store shows its driver, so that there is something to compare with.
    #[must_use]
    pub fn has_raw_driver(&self) -> bool {
        self.raw.is_some()
    }

    /// Runs the plan. A scenario that this store cannot have is left out, with a note to the observer.
    ///
    /// # Errors
    /// The first failure of the store, or of a process that was started to hold a lock.
    ///
    /// # Cancel safety
    /// Dropping the future ends the load; what is held then is released in the background, and [`finish`](Bench::finish)
    /// waits for it.
    pub async fn run(&mut self, plan: &Plan, observer: &dyn Observer) -> Result<Vec<Outcome>> {
        let counter = Counter::new(self.raw.clone()).await?;
        let mut outcomes = Vec::new();
        for scenario in &plan.scenarios {
            let ground = Ground {
                target: &self.target,
                locks: &self.locks,
                raw: self.raw.as_ref(),
                prefix: &self.prefix,
                counter: &counter,
                observer,
            };
            outcomes.append(&mut run_one(&ground, *scenario, plan).await?);
        }
        Ok(outcomes)
    }

    /// Removes what the runs left, and shuts down.
    ///
    /// # Errors
    /// If the store could not be told; what is left expires.
    pub async fn finish(self) -> Result<()> {
        let down = self.locks.shutdown().await;
        if let Some(raw) = &self.raw {
            raw.clean_up(&self.prefix).await.map_err(|error| self.explain(error))?;
        }
        down
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

async fn run_one(ground: &Ground<'_>, scenario: Scenario, plan: &Plan) -> Result<Vec<Outcome>> {
    match scenario {
        Scenario::Uncontended => Ok(vec![scenarios::cycles::uncontended(ground, plan).await?]),
        Scenario::Throughput => scenarios::cycles::throughput(ground, plan).await,
        Scenario::Handover => Ok(vec![scenarios::handover::run(ground, plan).await?]),
        Scenario::Contended => scenarios::contended::run(ground, plan).await,
        Scenario::Held => Ok(vec![scenarios::held::run(ground, plan).await?]),
        Scenario::Takeover => {
            scenarios::takeover::run(ground, plan).await.map(|outcome| outcome.into_iter().collect())
        }
    }
}
