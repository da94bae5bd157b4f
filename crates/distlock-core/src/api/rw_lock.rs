//! The reader-writer lock.

use std::sync::Arc;

use super::acquire::{Acquire, TryAcquire};
use super::locks::Locks;
use super::request::Request;
use crate::options::Options;

/// Many readers or one writer in the whole fleet. Made by [`Locks::rw_lock`].
///
/// First come, first served: a reader that arrives after a waiting writer waits behind it, so that readers do not starve
/// writers. There is no upgrade from reader to writer: two readers that upgrade would wait for each other.
///
/// ```
/// # use distlock_core::{Locks, memory::MemoryStore, store::Backend};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> distlock_core::Result<()> {
/// # let locks = Locks::new(Backend::lease(MemoryStore::new()))?;
/// let catalogue = locks.rw_lock("catalogue");
/// let (a, b) = (catalogue.read().await?, catalogue.read().await?);
/// assert!(catalogue.try_write().await?.is_none());
/// a.release().await?;
/// b.release().await?;
/// let writer = catalogue.write().await?;
/// # drop(writer); Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    locks: Locks,
    name: Arc<str>,
}

impl RwLock {
    pub(crate) fn new(locks: Locks, name: Arc<str>) -> Self {
        RwLock { locks, name }
    }

    /// Other options than those of the [`Locks`] it came from.
    #[must_use]
    pub fn options(self, options: Options) -> Self {
        RwLock { locks: self.locks.with_options(options), ..self }
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits until we may read; see [`Acquire`] for errors and cancel safety.
    pub fn read(&self) -> Acquire {
        Acquire::new(self.locks.clone(), Request::read(Arc::clone(&self.name)))
    }

    /// Waits until we may write; see [`Acquire`] for errors and cancel safety.
    pub fn write(&self) -> Acquire {
        Acquire::new(self.locks.clone(), Request::write(Arc::clone(&self.name)))
    }

    /// One attempt to read; see [`TryAcquire`].
    pub fn try_read(&self) -> TryAcquire {
        TryAcquire::new(self.locks.clone(), Request::read(Arc::clone(&self.name)))
    }

    /// One attempt to write; see [`TryAcquire`].
    pub fn try_write(&self) -> TryAcquire {
        TryAcquire::new(self.locks.clone(), Request::write(Arc::clone(&self.name)))
    }
}
