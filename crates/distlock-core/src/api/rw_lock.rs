//! The reader-writer lock.

use std::sync::Arc;

use super::acquire::{Acquire, Request, TryAcquire};
use super::locks::Locks;
use crate::error::Result;
use crate::options::Options;
use crate::resource::Kind;
use crate::store::Holder;

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

    /// Other options than those of the [`Locks`] it came from: what they name changes, the rest stays.
    #[must_use]
    pub fn options(self, options: Options) -> Self {
        RwLock { locks: self.locks.with_options(options), ..self }
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Who reads or writes it, and since when where the store knows; a writer has a weight above one. It may have changed when
    /// this returns.
    ///
    /// # Errors
    /// As for [`Locks::inspect`].
    ///
    /// # Cancel safety
    /// Cancel safe: it only reads.
    pub async fn holders(&self) -> Result<Vec<Holder>> {
        self.locks.holders(Kind::RwLock, Arc::clone(&self.name)).await
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
