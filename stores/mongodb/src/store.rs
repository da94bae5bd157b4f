//! The store: connects, and sends each verb to the record that it is about.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use distlock_core::store::{
    Attempt, Batch, Capabilities, Claim, Finding, Holder, Inbox, Lease, LeaseStore, Query, Record, Released,
    Renewal, Store, WakeStream,
};
use distlock_core::{Error, ErrorKind, RecordKind, Resource, Result};
use futures_util::future::join;
use mongodb::Client;
use mongodb::bson::doc;

use crate::config::{MongoOptions, Names, Target};
use crate::core::Core;
use crate::topology::Topology;
use crate::wire::Wire;
use crate::{batch, doctor, failure, index, inspect, lock, pool, wakes};

/// How long an operator's question may take, reading a large collection included.
const OPERATOR: Duration = Duration::from_secs(30);
/// How long connecting may take beyond the driver's own limit.
const SLACK: Duration = Duration::from_secs(2);

/// Locks in a MongoDB database. Cheap to clone; clones share the connection.
///
/// ```no_run
/// use distlock_core::Locks;
/// use distlock_core::store::Backend;
/// use distlock_mongodb::{MongoOptions, MongoStore};
///
/// # async fn example() -> distlock_core::Result<()> {
/// let store = MongoStore::connect("mongodb://db1,db2,db3/app?replicaSet=rs0", &MongoOptions::new()).await?;
/// let locks = Locks::new(Backend::lease(store))?;
/// let guard = locks.mutex("orders/42").acquire().await?;
/// # drop(guard); Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct MongoStore {
    core: Arc<Core>,
    place: Arc<str>,
}

impl MongoStore {
    /// Connects with a URL of the driver's form.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a bad URL or name, before anything is sent; [`ErrorKind::Unavailable`] if no
    /// server answers within five seconds (`serverSelectionTimeoutMS` in the URL sets another limit);
    /// [`ErrorKind::Denied`] for wrong credentials; [`ErrorKind::Unsupported`] before MongoDB 4.2.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn connect(url: &str, options: &MongoOptions) -> Result<Self> {
        MongoStore::open(Target::new(url, options)?).await
    }

    pub(crate) async fn open(target: Target) -> Result<Self> {
        let resolving = target.clone();
        let options = driven(OPERATOR, async move {
            resolving.client_options().await.map_err(|error| failure::from_driver(&error))
        })
        .await?;
        let limit = options.server_selection_timeout.unwrap_or(OPERATOR).saturating_add(SLACK);
        let hosts: Vec<String> = options.hosts.iter().map(ToString::to_string).collect();
        let client = Client::with_options(options).map_err(|error| failure::from_driver(&error))?;
        MongoStore::examine(client, target.names, hosts, limit).await
    }

    /// Uses a client that the application has already. Its write concern, read preference and retries do not
    /// matter; its time limits do: a client that waits half a minute for a server makes a request wait that long,
    /// unless the engine's own limit is shorter.
    ///
    /// # Errors
    /// As for [`connect`](MongoStore::connect).
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn with_client(client: Client, options: &MongoOptions) -> Result<Self> {
        let from_client = client.default_database().map(|database| database.name().to_owned());
        let names = options.names(from_client.as_deref())?;
        MongoStore::examine(client, names, Vec::new(), OPERATOR).await
    }

    async fn examine(client: Client, names: Names, hosts: Vec<String>, limit: Duration) -> Result<Self> {
        driven(limit, async move {
            let asked = Wire::new(&client, names.clone(), false);
            let hello = asked.run(doc! { "hello": 1 }).await;
            let hello = match hello {
                Ok(hello) => hello,
                // Servers before 4.4.2 know it by its old name only.
                Err(error) if error.kind() == ErrorKind::Internal => {
                    asked.run(doc! { "isMaster": 1 }).await?
                }
                Err(error) => return Err(error),
            };
            let topology = Topology::read(&hello)?;
            let place = place(&names, &hosts, hello.get_str("me").ok());
            let wire = Wire::new(&client, names, topology.has_expressions());
            let core = Core::new(wire, topology);
            if let Ok(now) = hello.get_datetime("localTime")
                && let Err(error) = core
                    .floor
                    .load(&core.wire, now.timestamp_millis(), hello.get_timestamp("operationTime").ok())
                    .await
            {
                // Mutexes work for a user who has no right to the second collection.
                if error.kind() != ErrorKind::Denied {
                    return Err(error);
                }
                tracing::warn!(%error, "only mutexes will work, and their waiters will not be woken");
            }
            Ok(MongoStore { core, place: place.into() })
        })
        .await
    }
}

/// Where the locks are, in words without secrets.
fn place(names: &Names, hosts: &[String], me: Option<&str>) -> String {
    let hosts = match (hosts, me) {
        ([], Some(me)) => me.to_owned(),
        ([], None) => "client".to_owned(),
        (hosts, _) => hosts.join(","),
    };
    format!("mongodb {hosts}/{}.{}", names.database, names.locks)
}

/// Claims or leases about mutexes and those about pools, with their places in the request.
fn by_record<T>(items: &[T], resource: impl Fn(&T) -> &Resource) -> [(Vec<usize>, Vec<&T>); 2] {
    let all: Vec<&T> = items.iter().collect();
    let (locks, pools) = batch::partition(&all, |item| resource(item).kind().record() == RecordKind::Lock);
    [(batch::pick(&all, &locks), locks), (batch::pick(&all, &pools), pools)]
        .map(|(items, places)| (places, items))
}

/// Runs something in a task of its own, with a time limit: the driver's futures must not be dropped half-way.
pub(crate) async fn driven<T: Send + 'static>(
    limit: Duration,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    match tokio::time::timeout(limit, tokio::spawn(work)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => {
            Err(Error::new(ErrorKind::Internal, "the task of a request ended early").with_unknown_outcome())
        }
        Err(_) => Err(Error::new(ErrorKind::Unavailable, format!("no answer within {limit:?}"))
            .with_unknown_outcome()
            .advise("check that the server runs and can be reached from here")),
    }
}

const STANDALONE: &[(&str, &str)] =
    &[("wake-ups", "a standalone MongoDB has no change streams; a replica set of one member has")];

#[cfg(feature = "bench")]
impl MongoStore {
    /// The bare driver, for benchmarks.
    #[doc(hidden)]
    #[must_use]
    pub fn baseline(&self) -> Box<dyn distlock_core::bench::Baseline> {
        crate::baseline::open(&self.core)
    }
}

#[async_trait]
impl Store for MongoStore {
    fn describe(&self) -> String {
        self.place.to_string()
    }

    fn capabilities(&self) -> Capabilities {
        let pushes = self.core.topology.pushes();
        let mut capabilities = Capabilities::all();
        capabilities.push = pushes;
        // Nobody could wake the waiters of a mutex, so there is no line of them.
        capabilities.shows_waiters = pushes;
        capabilities.reasons = if pushes { &[] } else { STANDALONE };
        capabilities
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Record>> {
        let (core, query) = (Arc::clone(&self.core), query.clone());
        driven(OPERATOR, async move { inspect::inspect(&core, &query).await }).await
    }

    async fn break_lock(&self, resource: &Resource) -> Result<Vec<Holder>> {
        let (core, resource) = (Arc::clone(&self.core), resource.clone());
        driven(OPERATOR, async move {
            match resource.kind().record() {
                RecordKind::Lock => lock::break_lock(&core, resource.name()).await,
                RecordKind::Pool => pool::break_lock(&core, &resource).await,
            }
        })
        .await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        let core = Arc::clone(&self.core);
        driven(OPERATOR, async move { doctor::examine(&core).await }).await
    }
}

#[async_trait]
impl LeaseStore for MongoStore {
    async fn try_acquire(&self, claims: &[Claim]) -> Batch<Attempt> {
        index::ensure(&self.core, &self.place);
        let [(lock_places, locks), (pool_places, pools)] = by_record(claims, |claim| &claim.resource);
        let (locks, pools) =
            join(lock::try_acquire(&self.core, &locks), pool::try_acquire(&self.core, &pools)).await;
        Ok(batch::merge((lock_places, locks), (pool_places, pools)))
    }

    async fn renew(&self, leases: &[Lease]) -> Batch<Renewal> {
        let [(lock_places, locks), (pool_places, pools)] = by_record(leases, |lease| &lease.resource);
        let (locks, pools) = join(lock::renew(&self.core, &locks), pool::renew(&self.core, &pools)).await;
        Ok(batch::merge((lock_places, locks), (pool_places, pools)))
    }

    async fn release(&self, leases: &[Lease]) -> Batch<Released> {
        let [(lock_places, locks), (pool_places, pools)] = by_record(leases, |lease| &lease.resource);
        let (locks, pools) = join(lock::release(&self.core, &locks), pool::release(&self.core, &pools)).await;
        Ok(batch::merge((lock_places, locks), (pool_places, pools)))
    }

    async fn subscribe(&self, inbox: &Inbox) -> Result<WakeStream> {
        wakes::subscribe(&self.core, inbox).await
    }
}
