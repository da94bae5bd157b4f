//! The reader-writer lock.

use std::sync::Arc;

use super::acquire::{Acquire, Target, TryAcquire};
use super::locks::Locks;
use crate::options::Options;
use crate::resource::{Kind, WRITER_WEIGHT};

/// Many readers or one writer in the whole fleet. Made by [`Locks::rw_lock`].
///
/// Served first come, first served, so a waiting writer is not starved by readers: those who come after it wait
/// behind it. There is no upgrade from reader to writer: two readers that upgrade would wait for each other.
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
    options: Arc<Options>,
}

impl RwLock {
    pub(crate) fn new(locks: Locks, name: Arc<str>) -> Self {
        let options = Arc::clone(&locks.options);
        RwLock { locks, name, options }
    }

    /// Other options than those of the [`Locks`] it came from.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.options = Arc::new(options);
        self
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    fn target(&self, weight: u32) -> Target {
        Target {
            kind: Kind::RwLock,
            name: Arc::clone(&self.name),
            weight,
            capacity: WRITER_WEIGHT,
            fair: false,
            options: Arc::clone(&self.options),
        }
    }

    /// Waits until we may read; see [`Acquire`] for errors and cancellation.
    pub fn read(&self) -> Acquire {
        Acquire::new(self.locks.clone(), self.target(1))
    }

    /// Waits until we may write; see [`Acquire`] for errors and cancellation.
    pub fn write(&self) -> Acquire {
        Acquire::new(self.locks.clone(), self.target(WRITER_WEIGHT))
    }

    /// One attempt to read; see [`TryAcquire`].
    pub fn try_read(&self) -> TryAcquire {
        TryAcquire::new(self.locks.clone(), self.target(1))
    }

    /// One attempt to write; see [`TryAcquire`].
    pub fn try_write(&self) -> TryAcquire {
        TryAcquire::new(self.locks.clone(), self.target(WRITER_WEIGHT))
    }
}
