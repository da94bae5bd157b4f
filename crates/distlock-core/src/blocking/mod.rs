//! The same API for programs without an async runtime. Every call blocks the calling thread; extension, wake-ups
//! and loss detection run on a thread of their own.
//!
//! ```
//! # use distlock_core::{blocking, memory::MemoryStore, store::Backend};
//! # fn main() -> distlock_core::Result<()> {
//! let locks = blocking::Locks::open(async { Ok(Backend::lease(MemoryStore::new())) })?;
//! let guard = locks.mutex("nightly").acquire()?;
//! assert!(locks.mutex("nightly").try_acquire()?.is_none());
//! guard.release()?;
//! # Ok(()) }
//! ```

mod guard;
mod primitives;
mod runtime;

use std::future::{Future, IntoFuture};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

pub use self::guard::{Guard, GuardSet};
pub use self::primitives::{Mutex, RwLock, Semaphore};
use self::runtime::{Blocking, Waits};
use crate::api::Request;
use crate::error::Result;
use crate::options::Options;
use crate::resource::Kind;
use crate::store::{Capabilities, Finding, Holder, Query, Record, StoreSource};

/// Locks on one store, for threads. The blocking twin of [`crate::Locks`].
#[derive(Clone, Debug)]
pub struct Locks {
    // Before the runtime, which waits for the end of the engine when it is dropped.
    locks: crate::Locks,
    waits: Waits,
}

impl Locks {
    /// Starts the background thread and connects on it.
    ///
    /// # Errors
    /// Those of the connection; [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) inside an async
    /// runtime, where nothing may block; [`ErrorKind::Exhausted`](crate::ErrorKind::Exhausted) if no thread can
    /// be started.
    pub fn open<F, S>(connecting: F) -> Result<Self>
    where
        F: Future<Output = Result<S>>,
        S: Into<StoreSource>,
    {
        Locks::open_with(connecting, Options::default())
    }

    /// The same with other options than the defaults.
    ///
    /// # Errors
    /// As for [`open`](Locks::open).
    pub fn open_with<F, S>(connecting: F, options: Options) -> Result<Self>
    where
        F: Future<Output = Result<S>>,
        S: Into<StoreSource>,
    {
        let blocking =
            Blocking::start(async { crate::Locks::builder(connecting.await?).options(options).build() })?;
        let locks = blocking.locks().clone();
        Ok(Locks { waits: Waits::new(Arc::new(blocking)), locks })
    }

    /// The same store and engine with other default options; see [`crate::Locks::with_options`].
    #[must_use]
    pub fn with_options(&self, options: Options) -> Self {
        Locks { waits: self.waits.clone(), locks: self.locks.with_options(options) }
    }

    /// The same locks, whose waits this token cancels, from any thread: a call that waits then returns an error of the kind
    /// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled), and nothing is held or waits in the store. Guards are not affected.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use distlock_core::{CancellationToken, ErrorKind, blocking, memory::MemoryStore, store::Backend};
    /// # fn main() -> distlock_core::Result<()> {
    /// # let locks = blocking::Locks::open(async { Ok(Backend::lease(MemoryStore::new())) })?;
    /// let stop = CancellationToken::new();
    /// let held = locks.mutex("nightly").acquire()?;
    /// let waiter = locks.mutex("nightly").cancelled_by(&stop);
    /// let thread = std::thread::spawn(move || waiter.acquire().map(drop));
    /// stop.cancel();
    /// let ended = thread.join().expect("it does not panic");
    /// assert_eq!(ended.unwrap_err().kind(), ErrorKind::Cancelled);
    /// # drop(held); Ok(()) }
    /// ```
    #[must_use]
    pub fn cancelled_by(&self, token: &CancellationToken) -> Self {
        Locks { locks: self.locks.clone(), waits: self.waits.clone().cancelled_by(token) }
    }

    /// A mutex.
    #[must_use]
    pub fn mutex(&self, name: impl Into<Arc<str>>) -> Mutex {
        Mutex { waits: self.waits.clone(), inner: self.locks.mutex(name) }
    }

    /// A reader-writer lock.
    #[must_use]
    pub fn rw_lock(&self, name: impl Into<Arc<str>>) -> RwLock {
        RwLock { waits: self.waits.clone(), inner: self.locks.rw_lock(name) }
    }

    /// A semaphore.
    #[must_use]
    pub fn semaphore(&self, name: impl Into<Arc<str>>, permits: u32) -> Semaphore {
        Semaphore { waits: self.waits.clone(), inner: self.locks.semaphore(name, permits) }
    }

    /// All of these or none; see [`crate::Locks::acquire_all`]. With a time limit if one is given.
    ///
    /// # Errors
    /// As for [`crate::AcquireAll`].
    pub fn acquire_all<I>(&self, requests: I, timeout: Option<Duration>) -> Result<GuardSet>
    where
        I: IntoIterator,
        I::Item: Into<Request>,
    {
        let mut asking = self.locks.acquire_all(requests);
        if let Some(limit) = timeout {
            asking = asking.timeout(limit);
        }
        let inner = self.waits.wait(asking.into_future())?;
        Ok(GuardSet::new(Arc::clone(&self.waits.blocking), inner))
    }

    /// All of these or none, without waiting, or within a time limit if one is given; `None` if one was held by another client. See
    /// [`crate::Locks::try_acquire_all`].
    ///
    /// # Errors
    /// As for [`crate::TryAcquireAll`].
    pub fn try_acquire_all<I>(&self, requests: I, timeout: Option<Duration>) -> Result<Option<GuardSet>>
    where
        I: IntoIterator,
        I::Item: Into<Request>,
    {
        let mut asking = self.locks.try_acquire_all(requests);
        if let Some(limit) = timeout {
            asking = asking.timeout(limit);
        }
        let inner = self.waits.wait(asking.into_future())?;
        Ok(inner.map(|inner| GuardSet::new(Arc::clone(&self.waits.blocking), inner)))
    }

    /// What the store can do.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.locks.capabilities().clone()
    }

    /// What is held or waited for now; see [`crate::Locks::inspect`].
    ///
    /// # Errors
    /// If the store cannot be reached or refuses.
    pub fn inspect(&self, query: &Query) -> Result<Vec<Record>> {
        self.waits.wait(self.locks.inspect(query))
    }

    /// Asks the store one thing; see [`crate::Locks::ping`].
    ///
    /// # Errors
    /// As there.
    pub fn ping(&self) -> Result<()> {
        self.waits.wait(self.locks.ping())
    }

    /// Forced release; see [`crate::Locks::break_lock`].
    ///
    /// # Errors
    /// As there.
    pub fn break_lock(&self, kind: Kind, name: impl Into<Arc<str>>) -> Result<Vec<Holder>> {
        self.waits.wait(self.locks.break_lock(kind, name))
    }

    /// Says what was found at the store and what is dangerous there.
    ///
    /// # Errors
    /// If the store cannot be reached.
    pub fn doctor(&self) -> Result<Vec<Finding>> {
        self.waits.wait(self.locks.doctor())
    }

    /// Releases everything; see [`crate::Locks::shutdown`].
    ///
    /// # Errors
    /// As there.
    pub fn shutdown(&self) -> Result<()> {
        self.waits.wait(self.locks.shutdown())
    }
}
