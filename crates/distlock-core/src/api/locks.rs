//! The one thing an application injects.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::all::{AcquireAll, Request};
use super::mutex::Mutex;
use super::rw_lock::RwLock;
use super::semaphore::Semaphore;
use crate::clock::{BootClock, Clock};
use crate::engine::{Engine, contained};
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::resource::{Kind, LockIds, Resource};
use crate::store::{Backend, Capabilities, Finding, Holder, Query, Record, Store};

/// How long a store may take to list what is held, to break a lock or to be examined. A connection to a server that is
/// frozen says nothing for ever, and there may be very much to list.
const PATIENCE: Duration = Duration::from_secs(30);

/// What an operator asks, but not for ever. A panic in the store's code is an error.
async fn in_time<T>(
    store: &dyn Store,
    doing: &'static str,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::time::timeout(PATIENCE, contained(store, doing, call)).await.unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::Unavailable, format!("no answer within {PATIENCE:?}"))
            .with_request_in_flight()
            .advise("check that the store runs and can be reached from here"))
    })
}

/// Locks on one store: makes mutexes, reader-writer locks and semaphores. Cheap to clone, to be shared freely.
///
/// ```
/// # use distlock_core::{Locks, memory::MemoryStore, store::Backend};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> distlock_core::Result<()> {
/// let locks = Locks::new(Backend::lease(MemoryStore::new()))?;
/// let guard = locks.mutex("orders/42").acquire().await?;
/// println!("token {}", guard.token());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Locks {
    pub(crate) engine: Arc<Engine>,
    pub(crate) options: Arc<Options>,
}

impl Locks {
    /// Locks on a connected store, with the default options.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] outside a Tokio runtime.
    pub fn new(backend: Backend) -> Result<Self> {
        Locks::builder(backend).build()
    }

    /// Locks with another clock, label or options.
    #[must_use]
    pub fn builder(backend: Backend) -> LocksBuilder {
        LocksBuilder { backend, clock: Arc::new(BootClock), label: None, options: Options::default() }
    }

    /// The same store and engine with other default options.
    #[must_use]
    pub fn with_options(&self, options: Options) -> Self {
        Locks { engine: Arc::clone(&self.engine), options: Arc::new(options) }
    }

    /// The options that locks made here begin with.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// A mutex: one holder in the whole fleet. A bad name is an error of the first acquire.
    #[must_use]
    pub fn mutex(&self, name: impl Into<Arc<str>>) -> Mutex {
        Mutex::new(self.clone(), name.into())
    }

    /// A reader-writer lock: many readers or one writer.
    #[must_use]
    pub fn rw_lock(&self, name: impl Into<Arc<str>>) -> RwLock {
        RwLock::new(self.clone(), name.into())
    }

    /// A semaphore: at most `permits` in the whole fleet. Everybody must name the same number.
    #[must_use]
    pub fn semaphore(&self, name: impl Into<Arc<str>>, permits: u32) -> Semaphore {
        Semaphore::new(self.clone(), name.into(), permits)
    }

    /// All of these or none, under one time limit, in an order that the library chooses so that two callers
    /// cannot deadlock. A plain name is a mutex; see [`Request`] for the rest.
    ///
    /// ```
    /// # use distlock_core::{Locks, Request, memory::MemoryStore, store::Backend};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> distlock_core::Result<()> {
    /// # let locks = Locks::new(Backend::lease(MemoryStore::new()))?;
    /// let both = locks.acquire_all(["account/1", "account/2"]).await?;
    /// both.release().await?;
    /// let mixed = locks.acquire_all([Request::write("catalogue"), Request::permits("gpu", 4, 2)]).await?;
    /// # drop(mixed); Ok(()) }
    /// ```
    pub fn acquire_all<I>(&self, requests: I) -> AcquireAll
    where
        I: IntoIterator,
        I::Item: Into<Request>,
    {
        AcquireAll::new(self.clone(), requests.into_iter().map(Into::into).collect())
    }

    /// What the store can do.
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        &self.engine.shared.capabilities
    }

    /// What and where the store is, without secrets.
    #[must_use]
    pub fn store(&self) -> &str {
        &self.engine.shared.store_name
    }

    /// What is held or waited for now. The queue of a fair mutex is shown as waiters of the mutex.
    ///
    /// # Errors
    /// If the store cannot be reached or refuses, or has not answered after 30 seconds.
    ///
    /// # Cancel safety
    /// Cancel safe: it only reads.
    pub async fn inspect(&self, query: &Query) -> Result<Vec<Record>> {
        let mut query = query.clone();
        let kind = query.kind.take();
        let store = self.engine.shared.backend.store();
        let found = in_time(store, "list the locks", async { store.inspect(&query).await })
            .await
            .map_err(|error| error.doing("list the locks").on(self.store().to_owned()))?;
        let (turns, mut records): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|record| record.kind == Kind::FairQueue);
        for turn in turns.into_iter().filter(|turn| !turn.waiters.is_empty()) {
            let mutex =
                records.iter_mut().find(|record| record.kind == Kind::Mutex && record.name == turn.name);
            match mutex {
                Some(mutex) => mutex.waiters.extend(turn.waiters),
                None => records.push(Record { kind: Kind::Mutex, holders: Vec::new(), ..turn }),
            }
        }
        records.retain(|record| {
            kind.is_none_or(|wanted| wanted == record.kind)
                && record.name.as_deref().is_none_or(|name| query.matches(record.kind, name))
                && !(record.holders.is_empty() && record.waiters.is_empty())
        });
        records.sort_by(|a, b| (a.kind, &a.name, &a.key).cmp(&(b.kind, &b.name, &b.key)));
        Ok(records)
    }

    /// Forced release: takes the resource from whoever holds it. Their guards turn lost; the next token is still
    /// higher. Returns who held it.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where the store has no such thing; a bad name; a store that cannot be reached or has
    /// not answered after 30 seconds.
    ///
    /// # Cancel safety
    /// Dropping the future may leave the lock broken or not.
    pub async fn break_lock(&self, kind: Kind, name: impl Into<Arc<str>>) -> Result<Vec<Holder>> {
        let resource = Resource::new(kind, name)?;
        let store = self.engine.shared.backend.store();
        let explain = |error: Error| {
            let error = if error.is_request_in_flight() { error.with_unknown_outcome() } else { error };
            error.doing("break").about(&resource).on(self.store().to_owned())
        };
        let broken =
            in_time(store, "break", async { store.break_lock(&resource).await }).await.map_err(explain)?;
        if kind == Kind::Mutex && !broken.is_empty() && self.capabilities().has(Kind::FairQueue) {
            // If it was held fairly, its holder keeps the turn until it knows: fair users must not wait for that.
            // The worst that comes of it is a waiter who loses its place.
            let turn = Resource::new(Kind::FairQueue, resource.name())?;
            in_time(store, "break", async { store.break_lock(&turn).await }).await.map_err(explain)?;
        }
        Ok(broken)
    }

    /// Says what was found at the store and what is dangerous there.
    ///
    /// # Errors
    /// If the store cannot be reached, or has not answered after 30 seconds.
    ///
    /// # Cancel safety
    /// Cancel safe: it only reads.
    pub async fn doctor(&self) -> Result<Vec<Finding>> {
        let store = self.engine.shared.backend.store();
        in_time(store, "examine", async { store.doctor().await })
            .await
            .map_err(|error| error.doing("examine").on(self.store().to_owned()))
    }

    /// Ends all waiting with an error, turns guards that are still held lost, and waits until the store was told
    /// of every release, ten seconds at most.
    ///
    /// # Errors
    /// If not everything could be released in that time; the rest ends at its expiry.
    ///
    /// # Cancel safety
    /// Dropping the future does not take the shutdown back.
    pub async fn shutdown(&self) -> Result<()> {
        self.engine.shutdown().await
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks").field("store", &self.store()).finish_non_exhaustive()
    }
}

/// Builds [`Locks`].
#[derive(Debug)]
pub struct LocksBuilder {
    backend: Backend,
    clock: Arc<dyn Clock>,
    label: Option<String>,
    options: Options,
}

impl LocksBuilder {
    /// The clock that deadlines are measured with. Default: [`BootClock`].
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// What lock ids begin with, so that people see who holds. Default: `host:pid`.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// The options that locks begin with.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Starts the engine on the current runtime.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] outside a Tokio runtime, or with a label that
    /// is empty, longer than 128 bytes, or holds anything but printable ASCII without spaces and `#`.
    pub fn build(self) -> Result<Locks> {
        let label = match self.label {
            None => LockIds::default_label(),
            Some(label) => {
                let fits = !label.is_empty() && label.len() <= 128;
                if !fits || !label.chars().all(|c| c.is_ascii_graphic() && c != '#') {
                    return Err(Error::new(
                        ErrorKind::InvalidInput,
                        format!("the label {label:?} is not 1 to 128 printable ASCII characters without # and spaces"),
                    )
                    .advise("use something like web-3:812"));
                }
                label
            }
        };
        let engine = Engine::start(self.backend, self.clock, &label, self.options.get_request_timeout())?;
        Ok(Locks { engine, options: Arc::new(self.options) })
    }
}
