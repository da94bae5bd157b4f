//! The entry point of the API.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;

use super::acquire::Request;
use super::acquire_all::{AcquireAll, TryAcquireAll};
use super::handle::Handle;
use super::lazy::LazyEngine;
use super::mutex::Mutex;
use super::rw_lock::RwLock;
use super::semaphore::Semaphore;
use super::timeout::TimeLimit;
use crate::clock::{BootClock, Clock};
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::resource::{Kind, LockIds};
use crate::store::{Capabilities, Connected, Finding, Holder, Query, Record, Source, StoreSource};

/// The longest label and the longest description, in bytes.
const MAX_LABEL: usize = 128;
const MAX_DESCRIPTION: usize = 64;

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
    engine: EngineSource,
    pub(crate) options: Arc<Options>,
}

/// A running engine, or one that starts at the first use.
#[derive(Clone)]
enum EngineSource {
    Started(Arc<Engine>),
    Lazy(Arc<LazyEngine>),
}

impl Locks {
    /// Locks on a connected store, with the default options.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] outside a Tokio runtime.
    pub fn new(store: impl Into<StoreSource>) -> Result<Self> {
        Locks::builder(store).build()
    }

    /// Locks with another clock, label or options.
    #[must_use]
    pub fn builder(store: impl Into<StoreSource>) -> LocksBuilder {
        let StoreSource(store) = store.into();
        LocksBuilder {
            store,
            clock: Arc::new(BootClock),
            label: None,
            description: None,
            options: Options::default(),
        }
    }

    /// The same store and engine with other default options: what `options` names changes, the rest stays.
    #[must_use]
    pub fn with_options(&self, options: Options) -> Self {
        Locks { engine: self.engine.clone(), options: Arc::new(options.over(&self.options)) }
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        match &self.engine {
            EngineSource::Started(engine) => &*engine.shared.clock,
            EngineSource::Lazy(lazy) => &*lazy.clock,
        }
    }

    /// The engine, if it runs.
    pub(crate) fn started(&self) -> Option<&Arc<Engine>> {
        match &self.engine {
            EngineSource::Started(engine) => Some(engine),
            EngineSource::Lazy(lazy) => lazy.started(),
        }
    }

    /// A handle to the engine, if it was started.
    pub(crate) fn started_handle(&self) -> Option<Handle> {
        let engine = Arc::clone(self.started()?);
        Some(Handle { engine, options: Arc::clone(&self.options) })
    }

    /// A handle to the running engine; connects first if that was left to the first use.
    async fn any_handle(&self) -> Result<Handle> {
        let engine = match &self.engine {
            EngineSource::Started(engine) => Arc::clone(engine),
            EngineSource::Lazy(lazy) => lazy.engine().await?,
        };
        Ok(Handle { engine, options: Arc::clone(&self.options) })
    }

    /// The same within a time limit.
    pub(crate) async fn handle(&self, limit: &TimeLimit) -> Result<Handle> {
        if let Some(handle) = self.started_handle() {
            return Ok(handle);
        }
        let connected = limit.enforce(self.clock(), pin!(self.any_handle())).await;
        connected.map_err(|error| error.doing("connect").on(self.store().to_owned()))
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

    /// Acquires all of these or none, without waiting; `None` if one is held by another client. See
    /// [`acquire_all`](Locks::acquire_all).
    ///
    /// ```
    /// # use distlock_core::{Locks, memory::MemoryStore, store::Backend};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> distlock_core::Result<()> {
    /// # let locks = Locks::new(Backend::lease(MemoryStore::new()))?;
    /// let held = locks.mutex("account/2").acquire().await?;
    /// assert!(locks.try_acquire_all(["account/1", "account/2"]).await?.is_none());
    /// held.release().await?;
    /// assert!(locks.try_acquire_all(["account/1", "account/2"]).await?.is_some());
    /// # Ok(()) }
    /// ```
    pub fn try_acquire_all<I>(&self, requests: I) -> TryAcquireAll
    where
        I: IntoIterator,
        I::Item: Into<Request>,
    {
        TryAcquireAll::new(self.clone(), requests.into_iter().map(Into::into).collect())
    }

    /// What the store can do. Locks that connect at their first use and are not connected yet can do mutexes only: call
    /// [`ping`](Locks::ping) first.
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        static UNKNOWN: Capabilities = Capabilities::unknown();
        self.started().map_or(&UNKNOWN, |engine| &engine.shared.capabilities)
    }

    /// What and where the store is, without secrets. Before the first use connects, this is the scheme of its URL.
    #[must_use]
    pub fn store(&self) -> &str {
        match &self.engine {
            EngineSource::Started(engine) => &engine.shared.store_name,
            EngineSource::Lazy(lazy) => {
                lazy.started().map_or_else(|| lazy.shown(), |engine| &engine.shared.store_name)
            }
        }
    }

    /// Asks the store one thing that changes nothing, within the request time-out: for health checks and at the start of a
    /// service. It connects if that was left to the first use.
    ///
    /// ```
    /// # use distlock_core::{Locks, memory::MemoryStore, store::Backend};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> distlock_core::Result<()> {
    /// let locks = Locks::new(Backend::lease(MemoryStore::new()))?;
    /// locks.ping().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// What is wrong: [`ErrorKind::Unavailable`] if the store cannot be reached or does not answer in time,
    /// [`ErrorKind::Denied`] if it refuses us, [`ErrorKind::ShutDown`] after `shutdown`.
    ///
    /// # Cancel safety
    /// Cancel safe: it only reads.
    pub async fn ping(&self) -> Result<()> {
        let limit = TimeLimit::one_request(self);
        self.handle(&limit).await?.ping(&limit).await
    }

    /// What is held or waited for now. The queue of a fair mutex is shown as waiters of the mutex.
    ///
    /// # Errors
    /// If the store cannot be reached or refuses, or has not replied after 30 seconds.
    ///
    /// # Cancel safety
    /// Cancel safe: it only reads.
    pub async fn inspect(&self, query: &Query) -> Result<Vec<Record>> {
        self.any_handle().await?.inspect(query).await
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
        self.any_handle().await?.holders(kind, name.into()).await
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
        self.any_handle().await?.break_lock(kind, name.into()).await
    }

    /// Examines the store: what was found, and what is dangerous there.
    ///
    /// # Errors
    /// If the store cannot be reached, or has not replied after 30 seconds.
    ///
    /// # Cancel safety
    /// Cancel safe: it only reads.
    pub async fn doctor(&self) -> Result<Vec<Finding>> {
        self.any_handle().await?.doctor().await
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
        match self.started() {
            Some(engine) => engine.shutdown().await,
            None => Ok(()),
        }
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
    store: Source,
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

    /// The options that locks begin with. What they name wins over the store's URL.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Starts the engine on the current runtime; for a [lazy](crate::store::Lazy) store the first use does it, on its own runtime.
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
        match self.store {
            Source::Connected(Connected { backend, options, .. }) => {
                let options = Arc::new(self.options.over(&options));
                let engine = Engine::start(backend, self.clock, &label, options.get_request_timeout())?;
                Ok(Locks { engine: EngineSource::Started(engine), options })
            }
            Source::Lazy(store) => {
                let options = Arc::new(self.options.over(&store.options));
                let lazy = LazyEngine::new(store, self.clock, label, Arc::clone(&options));
                Ok(Locks { engine: EngineSource::Lazy(Arc::new(lazy)), options })
            }
        }
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
