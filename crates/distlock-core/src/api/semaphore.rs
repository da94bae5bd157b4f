//! The semaphore.

use std::sync::Arc;

use super::acquire::{Acquire, Request, TryAcquire};
use super::locks::Locks;
use crate::error::Result;
use crate::options::Options;
use crate::resource::Kind;
use crate::store::{Holder, Query};

/// At most so many permits in the whole fleet. Made by [`Locks::semaphore`].
///
/// All clients name the same number of permits. While any are held or waited for, another number is an
/// [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch) error, unless the semaphore is [resizable](Semaphore::resizable); on an
/// unused semaphore it becomes the new number. First come, first served: a waiter that wants many permits is not starved by
/// waiters that want few.
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
    resizable: bool,
}

impl Semaphore {
    pub(crate) fn new(locks: Locks, name: Arc<str>, permits: u32) -> Self {
        Semaphore { locks, name, permits, resizable: false }
    }

    /// Other options than those of the [`Locks`] it came from: what they name changes, the rest stays.
    #[must_use]
    pub fn options(self, options: Options) -> Self {
        Semaphore { locks: self.locks.with_options(options), ..self }
    }

    /// For a number of permits that changes from one release of a service to the next: while old and new instances run together,
    /// they name different numbers.
    ///
    /// The semaphore may be in use all the time. Each request is decided by the number that its client names, so there are never
    /// more permits in use than the larger number. A larger number counts at once for the clients that name it. A
    /// smaller one revokes nothing: nothing is granted under it until the holders have released enough. Once the last old
    /// instance is gone, only the new number counts.
    ///
    /// All clients of such a semaphore call this. One that does not gets [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch) while
    /// the semaphore is in use with another number. While two numbers are in use, a request can be overtaken.
    ///
    /// ```
    /// # use distlock_core::{Locks, memory::MemoryStore, store::Backend};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> distlock_core::Result<()> {
    /// # let locks = Locks::new(Backend::lease(MemoryStore::new()))?;
    /// let (old, new) = (locks.semaphore("gpu", 4).resizable(), locks.semaphore("gpu", 8).resizable());
    /// let four = old.acquire_many(4).await?;
    /// assert!(old.try_acquire().await?.is_none());    // all four are in use
    /// let more = new.acquire_many(4).await?;          // now there are eight
    /// assert!(new.try_acquire().await?.is_none());
    /// # drop((four, more)); Ok(()) }
    /// ```
    #[must_use]
    pub fn resizable(self) -> Self {
        Semaphore { resizable: true, ..self }
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many permits there are in all, as this client names it.
    #[must_use]
    pub fn permits(&self) -> u32 {
        self.permits
    }

    fn request(&self, permits: u32) -> Request {
        let request = Request::permits(Arc::clone(&self.name), self.permits, permits);
        if self.resizable { request.resizable() } else { request }
    }

    /// How many permits are free now. It may have changed when this returns, and waiters come first: an attempt can fail although
    /// permits are free.
    ///
    /// ```
    /// # use distlock_core::{Locks, memory::MemoryStore, store::Backend};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> distlock_core::Result<()> {
    /// # let locks = Locks::new(Backend::lease(MemoryStore::new()))?;
    /// let gpu = locks.semaphore("gpu", 4);
    /// let three = gpu.acquire_many(3).await?;
    /// assert_eq!(gpu.available().await?, 1);
    /// # drop(three); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As for [`Locks::inspect`].
    ///
    /// # Cancel safety
    /// Cancel safe: it only reads.
    pub async fn available(&self) -> Result<u32> {
        let query = Query::named(&*self.name).with_kind(Kind::Semaphore);
        let records = self.locks.inspect(&query).await?;
        // Without holders and waiters there may be no record, or one of another number of permits that counts no more.
        let Some(record) = records.first() else { return Ok(self.permits) };
        let held: u64 = record.holders.iter().map(|holder| u64::from(holder.weight)).sum();
        Ok(record.capacity.saturating_sub(u32::try_from(held).unwrap_or(u32::MAX)))
    }

    /// Who holds permits, how many each, and since when where the store knows. It may have changed when this returns.
    ///
    /// # Errors
    /// As for [`Locks::inspect`].
    ///
    /// # Cancel safety
    /// Cancel safe: it only reads.
    pub async fn holders(&self) -> Result<Vec<Holder>> {
        self.locks.holders(Kind::Semaphore, Arc::clone(&self.name)).await
    }

    /// Waits for one permit; see [`Acquire`] for errors and cancel safety.
    pub fn acquire(&self) -> Acquire {
        self.acquire_many(1)
    }

    /// Waits for so many permits, all at once.
    pub fn acquire_many(&self, permits: u32) -> Acquire {
        Acquire::new(self.locks.clone(), self.request(permits))
    }

    /// One attempt for one permit; see [`TryAcquire`].
    pub fn try_acquire(&self) -> TryAcquire {
        self.try_acquire_many(1)
    }

    /// One attempt for so many permits.
    pub fn try_acquire_many(&self, permits: u32) -> TryAcquire {
        TryAcquire::new(self.locks.clone(), self.request(permits))
    }
}
