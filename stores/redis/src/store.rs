//! The store itself: every verb is one script.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use distlock_core::Resource;
use distlock_core::Result;
use distlock_core::store::{
    Attempt, Batch, Capabilities, Claim, Finding, GRANT_WINDOW, Holder, Inbox, Lease, LeaseStore, Query,
    Record, Released, Renewal, Store, WakeStream,
};

use crate::config::{RedisConfig, Servers};
use crate::net::{Answer, Fleet, Request};
use crate::script::{Header, Item, Script, Scripts};
use crate::verbs::{self, milliseconds};
use crate::{doctor, inspect};

/// How many items one call carries. A script holds up every other client of the server: this many take about a
/// millisecond, and ten times as many would be no cheaper for each.
const MAX_BATCH: usize = 256;

/// How many calls of a verb are under way at once as long as nobody has to wait for one: a few tasks are served
/// soonest side by side. Batches take the server less than half the time for each lock, and with twice as many tasks
/// that shows on a machine that is busy.
const MAX_UNDER_WAY: usize = 16;

/// No request is given up sooner than this, however short the expiry: a server under load is no dead server.
const LEAST_PATIENCE: Duration = Duration::from_millis(100);

/// Locks on a Redis or Valkey server, on the master that sentinels name, or on a Cluster. Clones share their
/// connections.
///
/// ```no_run
/// use distlock_core::{Locks, store::Backend};
/// use distlock_redis::{RedisConfig, RedisStore};
///
/// # async fn example() -> distlock_core::Result<()> {
/// let config = RedisConfig::parse("redis://127.0.0.1/")?.prefix("app:")?;
/// let locks = Locks::new(Backend::lease(RedisStore::connect(config).await?))?;
/// let guard = locks.mutex("orders/42").acquire().await?; // the key app:orders/42
/// # drop(guard); Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RedisStore(pub(crate) Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) config: RedisConfig,
    pub(crate) fleet: Fleet,
    pub(crate) scripts: Scripts,
    /// What the channel of an inbox begins with.
    channel: String,
}

impl RedisStore {
    /// A store that connects when it is first used.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](distlock_core::ErrorKind::InvalidInput) for certificates that cannot be read.
    pub fn new(config: RedisConfig) -> Result<Self> {
        let fleet = Fleet::new(&config)?;
        let header = Header {
            channel: config.keys.channel(),
            retention: milliseconds(config.retention),
            window: milliseconds(GRANT_WINDOW),
            counts: fleet.counts_readers(),
        };
        let scripts = Scripts::new(&header);
        Ok(RedisStore(Arc::new(Inner { config, fleet, scripts, channel: header.channel })))
    }

    /// A store that is connected.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](distlock_core::ErrorKind::Unavailable) if the server cannot be reached,
    /// [`ErrorKind::Denied`](distlock_core::ErrorKind::Denied) if it does not let us in.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn connect(config: RedisConfig) -> Result<Self> {
        let store = RedisStore::new(config)?;
        store.0.fleet.connect().await.map_err(|error| error.doing("connect"))?;
        Ok(store)
    }
}

impl Inner {
    pub(crate) fn request<'a>(&'a self, script: &'a Script, limit: Duration) -> Request<'a> {
        Request { script, limit, replicas: 0, timed: false }
    }

    /// Calls a script, and again for items that one call could not finish.
    pub(crate) async fn call(&self, request: Request<'_>, items: Vec<Item<'_>>) -> Vec<Result<Answer>> {
        if items.is_empty() {
            return Vec::new();
        }
        let begun = Instant::now();
        let mut answers = self.fleet.call(&request, &items).await;
        while answers.iter().any(verbs::is_unfinished) && begun.elapsed() < request.limit {
            let open: Vec<usize> =
                (0..answers.len()).filter(|at| verbs::is_unfinished(&answers[*at])).collect();
            let rest: Vec<Item<'_>> = open.iter().map(|at| items[*at].clone()).collect();
            for (at, next) in open.into_iter().zip(self.fleet.call(&request, &rest).await) {
                answers[at] = verbs::continued(&answers[at], next);
            }
        }
        answers
    }

    /// How long to wait for an answer that is of use within this time only.
    fn patience(&self, useful: Option<Duration>) -> Duration {
        useful.map_or(self.config.response_timeout, |useful| {
            useful.max(LEAST_PATIENCE).min(self.config.response_timeout)
        })
    }

    /// Whether a release may grant to those who wait. With `min_replicas` it may not: the message would be there
    /// before the replicas know.
    fn pushes_grants(&self) -> bool {
        self.config.min_replicas == 0
    }

    pub(crate) fn describe(&self) -> String {
        let list = |addresses: &[crate::Address]| {
            addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
        };
        match &self.config.servers {
            Servers::One(address) => format!("redis {address}"),
            Servers::Sentinel { sentinels, master } => {
                format!("redis {master:?} by sentinels {}", list(sentinels))
            }
            Servers::Cluster { seeds } => format!("redis cluster {}", list(seeds)),
        }
    }
}

#[cfg(feature = "bench")]
impl RedisStore {
    /// The bare driver, for benchmarks; `None` where there is more than one server.
    ///
    /// # Errors
    /// If the server cannot be reached.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    #[doc(hidden)]
    pub async fn baseline(&self) -> Result<Option<Box<dyn distlock_core::bench::Baseline>>> {
        crate::baseline::open(self).await
    }
}

#[async_trait]
impl Store for RedisStore {
    fn describe(&self) -> String {
        self.0.describe()
    }

    fn capabilities(&self) -> Capabilities {
        // Durable only if the server was told to be; doctor says whether it was.
        let mut capabilities = Capabilities::all();
        capabilities.durable = false;
        capabilities.max_batch = MAX_BATCH;
        capabilities.max_in_flight = MAX_UNDER_WAY;
        capabilities
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Record>> {
        inspect::records(&self.0, query).await
    }

    async fn break_lock(&self, resource: &Resource) -> Result<Vec<Holder>> {
        inspect::take(&self.0, resource).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        doctor::examine(self).await
    }
}

#[async_trait]
impl LeaseStore for RedisStore {
    async fn try_acquire(&self, claims: &[Claim]) -> Batch<Attempt> {
        let inner = &*self.0;
        let shortest = claims.iter().map(|claim| claim.expiry).min();
        let request = Request {
            replicas: inner.config.min_replicas,
            timed: true,
            ..inner.request(&inner.scripts.acquire, inner.patience(shortest))
        };
        let mut answers: Vec<Result<Attempt>> = Vec::with_capacity(claims.len());
        let checked: Vec<Result<()>> = claims.iter().map(Claim::check_weight).collect();
        let sound = claims.iter().zip(&checked).filter(|(_, checked)| checked.is_ok());
        let items = sound.map(|(claim, _)| {
            let lock = claim.resource.kind().record() == distlock_core::RecordKind::Lock;
            let push = inner.pushes_grants() && (!lock || inner.config.grants_on_release);
            verbs::claim_item(&inner.config.keys, claim, push)
        });
        let mut given = inner.call(request, items.collect()).await.into_iter();
        for (claim, checked) in claims.iter().zip(checked) {
            answers.push(match checked {
                Err(error) => Err(error),
                Ok(()) => match given.next() {
                    Some(Ok(answer)) => verbs::attempt(claim, &answer),
                    Some(Err(error)) => Err(error),
                    None => Err(crate::trouble::nonsense("too little")),
                },
            });
        }
        Ok(answers)
    }

    async fn renew(&self, leases: &[Lease]) -> Batch<Renewal> {
        let inner = &*self.0;
        // A connection that fell silent must be noticed while there is still time for another one.
        let soonest = leases.iter().map(|lease| lease.expiry).min().map(|expiry| expiry / 3);
        let request = Request {
            replicas: inner.config.min_replicas,
            ..inner.request(&inner.scripts.renew, inner.patience(soonest))
        };
        let items = leases.iter().map(|lease| verbs::renew_item(&inner.config.keys, lease)).collect();
        let given = inner.call(request, items).await;
        Ok(given.into_iter().map(|answer| verbs::renewal(&answer?)).collect())
    }

    async fn release(&self, leases: &[Lease]) -> Batch<Released> {
        let inner = &*self.0;
        let request = inner.request(&inner.scripts.release, inner.patience(None));
        let items = leases.iter().map(|lease| verbs::release_item(&inner.config.keys, lease)).collect();
        let given = inner.call(request, items).await;
        Ok(given.into_iter().map(|answer| verbs::released(&answer?)).collect())
    }

    async fn subscribe(&self, inbox: &Inbox) -> Result<WakeStream> {
        let channel = format!("{}{}", self.0.channel, inbox.as_str());
        self.0.fleet.subscribe(channel.as_bytes(), self.0.config.response_timeout).await
    }
}
