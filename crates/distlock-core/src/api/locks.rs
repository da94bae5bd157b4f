//! The entry point of the API.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::acquire_all::AcquireAll;
use super::mutex::Mutex;
use super::request::Request;
use super::rw_lock::RwLock;
use super::semaphore::Semaphore;
use crate::clock::{BootClock, Clock};
use crate::engine::{Engine, contained};
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::resource::{Kind, LockIds, Resource};
use crate::store::support::errors;
use crate::store::{Backend, Capabilities, Finding, Holder, Query, Record, Store};

/// The time limit of an operator's request: list the locks, break a lock, examine the store. A stalled server never replies,
/// and a list may be long.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest label and the longest description, in bytes.
const MAX_LABEL: usize = 128;
const MAX_DESCRIPTION: usize = 64;

/// Runs an operator's request within the time limit. A panic in the store's code becomes an error.
async fn within_limit<T>(
    store: &dyn Store,
    doing: &'static str,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::time::timeout(ADMIN_TIMEOUT, contained(store, doing, call)).await.unwrap_or_else(|_| {
        Err(errors::unavailable(format!("no reply within {ADMIN_TIMEOUT:?}")).with_request_in_flight())
    })
}

/// Locks on one store: makes mutexes, reader-writer locks and semaphores. Cheap to clone and to share.
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
        LocksBuilder {
            backend,
            clock: Arc::new(BootClock),
            label: None,
            description: None,
            options: Options::default(),
        }
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
        Mutex::new(self.clone(), Request::mutex(name))
    }

    /// A reader-writer lock: many readers or one writer.
    #[must_use]
    pub fn rw_lock(&self, name: impl Into<Arc<str>>) -> RwLock {
        RwLock::new(self.clone(), name.into())
    }

    /// A semaphore: at most `permits` in the whole fleet. All clients name the same number.
    #[must_use]
    pub fn semaphore(&self, name: impl Into<Arc<str>>, permits: u32) -> Semaphore {
        Semaphore::new(self.clone(), name.into(), permits)
    }

    /// Acquires all of these or none, under one time limit, in an order that excludes deadlock. A plain name is a mutex;
    /// see [`Request`] for the rest.
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
    /// If the store cannot be reached or refuses, or has not replied after 30 seconds.
    ///
    /// # Cancel safety
    /// Cancel safe: it only reads.
    pub async fn inspect(&self, query: &Query) -> Result<Vec<Record>> {
        let mut query = query.clone();
        let kind = query.kind.take();
        let store = self.engine.shared.backend.store();
        let found = within_limit(store, "list the locks", async { store.inspect(&query).await })
            .await
            .map_err(|error| error.doing("list the locks").on(self.store().to_owned()))?;
        let (queues, mut records): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|record| record.kind == Kind::FairQueue);
        for queue in queues.into_iter().filter(|queue| !queue.waiters.is_empty()) {
            let mutex =
                records.iter_mut().find(|record| record.kind == Kind::Mutex && record.name == queue.name);
            match mutex {
                Some(mutex) => mutex.waiters.extend(queue.waiters),
                None => records.push(Record { kind: Kind::Mutex, holders: Vec::new(), ..queue }),
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

    /// The holders of one lock now, none if it is free: for messages. [`Holder`] shows its label and the time held.
    ///
    /// ```
    /// # use distlock_core::{Kind, Locks, memory::MemoryStore, store::{Backend, Holder}};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> distlock_core::Result<()> {
    /// # let locks = Locks::builder(Backend::lease(MemoryStore::new())).label("web-3:812").build()?;
    /// let guard = locks.mutex("nightly").acquire().await?;
    /// let holders = locks.holders(Kind::Mutex, "nightly").await?;
    /// assert!(Holder::list(&holders).starts_with("web-3:812 for "));
    /// # drop(guard); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As for [`inspect`](Locks::inspect).
    ///
    /// # Cancel safety
    /// Cancel safe: it only reads.
    pub async fn holders(&self, kind: Kind, name: impl Into<Arc<str>>) -> Result<Vec<Holder>> {
        let query = Query::named(&*name.into()).with_kind(kind);
        Ok(self.inspect(&query).await?.into_iter().flat_map(|record| record.holders).collect())
    }

    /// Forced release: takes the resource from all its holders and returns them. Their guards are lost; the next token is
    /// still higher.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where the store has no such thing; a bad name; a store that cannot be reached or has
    /// not replied after 30 seconds.
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
        let broken = within_limit(store, "break", async { store.break_lock(&resource).await })
            .await
            .map_err(explain)?;
        if kind == Kind::Mutex && !broken.is_empty() && self.capabilities().has(Kind::FairQueue) {
            // A fair holder keeps the queue head until it notices the loss, and fair waiters would wait for that. At worst
            // a waiter loses its place.
            let queue = Resource::new(Kind::FairQueue, resource.name())?;
            within_limit(store, "break", async { store.break_lock(&queue).await }).await.map_err(explain)?;
        }
        Ok(broken)
    }

    /// Examines the store: what was found, and what is dangerous there.
    ///
    /// # Errors
    /// If the store cannot be reached, or has not replied after 30 seconds.
    ///
    /// # Cancel safety
    /// Cancel safe: it only reads.
    pub async fn doctor(&self) -> Result<Vec<Finding>> {
        let store = self.engine.shared.backend.store();
        within_limit(store, "examine", async { store.doctor().await })
            .await
            .map_err(|error| error.doing("examine").on(self.store().to_owned()))
    }

    /// Ends all waiting with an error, marks guards that are still held as lost, releases their locks and waits for the
    /// store's answers, ten seconds at most.
    ///
    /// # Errors
    /// If not everything could be released in that time; the rest expires.
    ///
    /// # Cancel safety
    /// Dropping the future does not undo the shutdown.
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
    description: Option<String>,
    options: Options,
}

impl LocksBuilder {
    /// The clock that deadlines are measured with. Default: [`BootClock`].
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// The beginning of lock ids, by which operators recognise a holder. Default: `host:pid`.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// More about this holder for operators, stored in every lock id behind the label: the `distlock` command writes the
    /// user and the program. Every client of the store can read it, so it must hold no secret.
    /// See [`LockId::description`](crate::LockId::description).
    #[must_use]
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.description = Some(description.into());
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
    /// [`ErrorKind::InvalidInput`] outside a Tokio runtime, or with a label or a description that is empty, longer than
    /// 128 or 64 bytes, or holds anything but printable ASCII without spaces and `#`.
    pub fn build(self) -> Result<Locks> {
        let mut label = match self.label {
            None => LockIds::default_label(),
            Some(label) => {
                check_text("label", &label, MAX_LABEL)?;
                label
            }
        };
        if let Some(description) = &self.description {
            check_text("description", description, MAX_DESCRIPTION)?;
            label = format!("{label}#{description}");
        }
        let engine = Engine::start(self.backend, self.clock, &label, self.options.get_request_timeout())?;
        Ok(Locks { engine, options: Arc::new(self.options) })
    }
}

fn check_text(what: &str, text: &str, longest: usize) -> Result<()> {
    let fits = !text.is_empty() && text.len() <= longest;
    if fits && text.chars().all(|c| c.is_ascii_graphic() && c != '#') {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidInput,
        format!("the {what} {text:?} is not 1 to {longest} printable ASCII characters without # and spaces"),
    )
    .advise("use something like web-3:812"))
}
