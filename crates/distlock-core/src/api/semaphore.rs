//! The semaphore.

use std::sync::Arc;

use super::acquire::{Acquire, Target, TryAcquire};
use super::locks::Locks;
use crate::options::Options;
use crate::resource::Kind;

/// At most so many permits in the whole fleet. Made by [`Locks::semaphore`].
///
/// Everybody must name the same number of permits. While any are held or waited for, another number is an
/// [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch) error; on a semaphore that nobody uses it is the new number.
/// Served first come, first served: who wants many permits is not starved by those who want few.
///
/// ```
/// # use distlock_core::{Locks, memory::MemoryStore, store::Backend};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> distlock_core::Result<()> {
/// # let locks = Locks::new(Backend::lease(MemoryStore::new()))?;
/// let gpu = locks.semaphore("gpu", 4);
/// let three = gpu.acquire_many(3).await?;
/// let one = gpu.acquire().await?;
/// assert!(gpu.try_acquire().await?.is_none());
/// # drop((three, one)); Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    locks: Locks,
    name: Arc<str>,
    permits: u32,
    options: Arc<Options>,
}

impl Semaphore {
    pub(crate) fn new(locks: Locks, name: Arc<str>, permits: u32) -> Self {
        let options = Arc::clone(&locks.options);
        Semaphore { locks, name, permits, options }
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

    /// How many permits there are in all.
    #[must_use]
    pub fn permits(&self) -> u32 {
        self.permits
    }

    fn target(&self, weight: u32) -> Target {
        Target {
            kind: Kind::Semaphore,
            name: Arc::clone(&self.name),
            weight,
            capacity: self.permits,
            fair: false,
            options: Arc::clone(&self.options),
        }
    }

    /// Waits for one permit; see [`Acquire`] for errors and cancellation.
    pub fn acquire(&self) -> Acquire {
        self.acquire_many(1)
    }

    /// Waits for so many permits, all at once.
    pub fn acquire_many(&self, permits: u32) -> Acquire {
        Acquire::new(self.locks.clone(), self.target(permits))
    }

    /// One attempt for one permit; see [`TryAcquire`].
    pub fn try_acquire(&self) -> TryAcquire {
        self.try_acquire_many(1)
    }

    /// One attempt for so many permits.
    pub fn try_acquire_many(&self, permits: u32) -> TryAcquire {
        TryAcquire::new(self.locks.clone(), self.target(permits))
    }
}
