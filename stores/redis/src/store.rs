//! The store: each verb of a batch is one script call for mutexes and one for pools.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use distlock_core::store::support::batch::{by_record_kind, with_possible_weights};
use distlock_core::store::{
    Attempt, Batch, Capabilities, Claim, Finding, Holder, Inbox, Lease, LeaseStore, Query, Record, Released,
    Renewal, Store, WakeStream,
};
use distlock_core::{RecordKind, Resource, Result};

use crate::config::{Address, RedisConfig, Servers};
use crate::net::ServerSet;
use crate::protocol::{self, ScriptItem, milliseconds};
use crate::scripts::{ItemReply, ScriptCall, ScriptSettings, ScriptVerb, Scripts};
use crate::{connect, doctor, inspect};

/// The most items of one call. A script blocks every other client of the server: 256 items take about a millisecond, and
/// larger batches are no cheaper per item.
const MAX_BATCH: usize = 256;

/// How many calls of a verb are in flight before requests are batched. Few tasks are served fastest side by side: client and server
/// always have something to do, and sleep less. A batch costs both less for each lock, which pays off with more tasks: with 16, 24 and 32
/// tasks a limit of 24 gave 1.2, 1.04 and 1.08 times the rate of the baseline, and 12 gave 0.8, 0.98 and 1.08, with client and server scheduled
/// before everything else.
const MAX_IN_FLIGHT: usize = 24;

/// How many small batches of a verb are in flight: the server works on one while the client handles the replies of the others. With 20 to
/// 32 tasks three gave 1.1 times as many cycles as two. Large ones are sent one at a time: with 64 tasks, one of each verb gave 1.3
/// times as many cycles as two.
const MAX_BATCHES_IN_FLIGHT: usize = 3;

/// No request times out sooner than this, however short the expiry: a loaded server is not a dead one.
const MIN_LIMIT: Duration = Duration::from_millis(100);

/// Locks on one Redis or Valkey server, on the master that sentinels name, or on a Cluster. Clones share their connections.
///
/// ```no_run
/// use distlock_core::{Locks, store::{Backend, StoreUrl}};
/// use distlock_redis::{RedisConfig, RedisStore};
///
/// # async fn example() -> distlock_core::Result<()> {
/// let config = RedisConfig::from_url(&StoreUrl::parse("redis://127.0.0.1/")?)?.prefix("app:")?;
/// let locks = Locks::new(Backend::lease(RedisStore::connect(config).await?))?;
/// let guard = locks.mutex("orders/42").acquire().await?; // the key app:orders/42
/// # drop(guard); Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RedisStore(pub(crate) Arc<Shared>);

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: RedisConfig,
    pub(crate) servers: ServerSet,
    scripts: Scripts,
}

impl RedisStore {
    /// Connects to the servers of a configuration.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](distlock_core::ErrorKind::Unavailable) if a server cannot be reached,
    /// [`ErrorKind::Denied`](distlock_core::ErrorKind::Denied) if it rejects the login,
    /// [`ErrorKind::InvalidInput`](distlock_core::ErrorKind::InvalidInput) for unreadable certificates.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn connect(config: RedisConfig) -> Result<Self> {
        let store = RedisStore::disconnected(config)?;
        store.0.servers.connect().await.map_err(|error| error.doing("connect"))?;
        Ok(store)
    }

    /// Connects to the server of a client of the `redis` crate: its address, login, database and TLS settings are used, and those
    /// of `config` are not.
    ///
    /// The store opens a connection of its own. To send commands over one that is open, see
    /// [`with_multiplexed_connection`](RedisStore::with_multiplexed_connection).
    ///
    /// ```no_run
    /// use distlock_redis::{RedisConfig, RedisStore};
    ///
    /// # async fn example(client: redis::Client) -> distlock_core::Result<()> {
    /// let store = RedisStore::with_client(client, RedisConfig::default().prefix("app:")?).await?;
    /// # drop(store); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As for [`connect`](RedisStore::connect).
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn with_client(client: redis::Client, mut config: RedisConfig) -> Result<Self> {
        let (address, client) = connect::adapt_client(&client)?;
        config.servers = Servers::One(address.clone());
        let servers = ServerSet::with_client(&config, address, client);
        let store = RedisStore::of(config, servers);
        store.0.servers.connect().await.map_err(|error| error.doing("connect"))?;
        Ok(store)
    }

    /// A store that connects when it is first used.
    pub(crate) fn disconnected(config: RedisConfig) -> Result<Self> {
        let servers = ServerSet::new(&config)?;
        Ok(RedisStore::of(config, servers))
    }

    pub(crate) fn of(mut config: RedisConfig, servers: ServerSet) -> Self {
        config.keys = config.keys.for_cluster(matches!(servers, ServerSet::Cluster(_)));
        let scripts = Scripts::new(&ScriptSettings {
            channel: config.keys.channel(),
            retention: milliseconds(config.retention),
            counts_subscribers: servers.counts_subscribers(),
        });
        RedisStore(Arc::new(Shared { config, servers, scripts }))
    }
}

impl Shared {
    async fn acquire(&self, record: RecordKind, claims: Vec<&Claim>) -> Batch<Attempt> {
        // With `min_replicas` no grant is pushed: the message would arrive before the replicas have confirmed.
        let push =
            self.config.min_replicas == 0 && (record == RecordKind::Pool || self.config.grants_on_release);
        let limit = self.limit(claims.iter().map(|claim| claim.expiry).min());
        let items = claims.iter().map(|claim| ScriptItem::claim(&self.config.keys, claim, push)).collect();
        let replies = self.call(ScriptVerb::Acquire, record, limit, items).await;
        Ok(claims.iter().zip(replies).map(|(claim, reply)| protocol::attempt(claim, &reply?)).collect())
    }

    async fn renew(&self, record: RecordKind, leases: Vec<&Lease>) -> Batch<Renewal> {
        // A silent connection must be noticed while there is time to retry on another one.
        let limit = self.limit(leases.iter().map(|lease| lease.expiry / 3).min());
        let items = leases.iter().map(|lease| ScriptItem::renewal(&self.config.keys, lease)).collect();
        let replies = self.call(ScriptVerb::Renew, record, limit, items).await;
        Ok(replies.into_iter().map(|reply| protocol::renewal(&reply?)).collect())
    }

    async fn release(&self, record: RecordKind, leases: Vec<&Lease>) -> Batch<Released> {
        let items = leases.iter().map(|lease| ScriptItem::release(&self.config.keys, lease)).collect();
        let replies = self.call(ScriptVerb::Release, record, self.limit(None), items).await;
        Ok(replies.into_iter().map(|reply| protocol::released(&reply?)).collect())
    }

    /// Calls a script, and calls it again for the items that one call could not finish.
    pub(crate) async fn call(
        &self,
        verb: ScriptVerb,
        record: RecordKind,
        limit: Duration,
        items: Vec<ScriptItem<'_>>,
    ) -> Vec<Result<ItemReply>> {
        let replicas = match verb {
            ScriptVerb::Acquire | ScriptVerb::Renew => self.config.min_replicas,
            ScriptVerb::Release | ScriptVerb::Inspect | ScriptVerb::Break => 0,
        };
        let call = ScriptCall { script: self.scripts.get(verb, record), limit, replicas };
        let started = Instant::now();
        let mut replies = self.servers.call(&call, &items).await;
        while replies.iter().any(protocol::is_unfinished) && started.elapsed() < limit {
            let open: Vec<usize> =
                (0..replies.len()).filter(|at| protocol::is_unfinished(&replies[*at])).collect();
            let rest: Vec<ScriptItem<'_>> = open.iter().map(|at| items[*at].continued()).collect();
            for (at, next) in open.into_iter().zip(self.servers.call(&call, &rest).await) {
                replies[at] = protocol::merge_continued(&replies[at], next);
            }
        }
        replies
    }

    /// How long to wait for a reply that is useful only within this time.
    fn limit(&self, useful: Option<Duration>) -> Duration {
        let limit = self.config.response_timeout;
        useful.map_or(limit, |useful| useful.max(MIN_LIMIT).min(limit))
    }
}

#[async_trait]
impl Store for RedisStore {
    fn describe(&self) -> String {
        let list =
            |addresses: &[Address]| addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        match &self.0.config.servers {
            Servers::One(address) => format!("redis {address}"),
            Servers::Sentinel { sentinels, master } => {
                format!("redis {master:?} by sentinels {}", list(sentinels))
            }
            Servers::Cluster { seeds } => format!("redis cluster {}", list(seeds)),
        }
    }

    fn capabilities(&self) -> Capabilities {
        // Durability depends on the server's settings, which doctor reports.
        let mut capabilities = Capabilities::all();
        capabilities.durable = false;
        capabilities.max_batch = MAX_BATCH;
        capabilities.max_in_flight = MAX_IN_FLIGHT;
        capabilities.max_batches_in_flight = MAX_BATCHES_IN_FLIGHT;
        capabilities
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Record>> {
        inspect::records(&self.0, query).await
    }

    async fn break_lock(&self, resource: &Resource) -> Result<Vec<Holder>> {
        inspect::break_lock(&self.0, resource).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        doctor::examine(self).await
    }
}

#[async_trait]
impl LeaseStore for RedisStore {
    async fn try_acquire(&self, claims: &[Claim]) -> Batch<Attempt> {
        let shared = &*self.0;
        let acquire = |claims| {
            by_record_kind(
                claims,
                |locks| shared.acquire(RecordKind::Lock, locks),
                |pools| shared.acquire(RecordKind::Pool, pools),
            )
        };
        with_possible_weights(claims, acquire).await
    }

    async fn renew(&self, leases: &[Lease]) -> Batch<Renewal> {
        let shared = &*self.0;
        by_record_kind(
            leases,
            |locks| shared.renew(RecordKind::Lock, locks),
            |pools| shared.renew(RecordKind::Pool, pools),
        )
        .await
    }

    async fn release(&self, leases: &[Lease]) -> Batch<Released> {
        let shared = &*self.0;
        by_record_kind(
            leases,
            |locks| shared.release(RecordKind::Lock, locks),
            |pools| shared.release(RecordKind::Pool, pools),
        )
        .await
    }

    async fn subscribe(&self, inbox: &Inbox) -> Result<WakeStream> {
        let channel = format!("{}{}", self.0.config.keys.channel(), inbox.as_str());
        self.0.servers.subscribe(channel.as_bytes(), self.0.config.response_timeout).await
    }
}
