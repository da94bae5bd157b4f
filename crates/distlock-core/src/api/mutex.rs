//! The mutex.

use super::acquire::{Acquire, Request, TryAcquire};
use super::locks::Locks;
use crate::error::Result;
use crate::options::Options;
use crate::resource::Kind;
use crate::store::Holder;

/// One holder in the whole fleet. Made by [`Locks::mutex`].
///
/// It is not re-entrant: a task that acquires what it holds waits for itself.
///
/// ```
/// # use std::time::Duration;
/// # use distlock_core::{ErrorKind, Locks, memory::MemoryStore, store::Backend};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> distlock_core::Result<()> {
/// # let locks = Locks::new(Backend::lease(MemoryStore::new()))?;
/// let nightly = locks.mutex("nightly");
/// let guard = nightly.acquire().await?;
/// assert!(nightly.try_acquire().await?.is_none());
/// let error = nightly.acquire().timeout(Duration::from_millis(5)).await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Timeout);
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Mutex {
    locks: Locks,
    request: Request,
}

impl Mutex {
    pub(crate) fn new(locks: Locks, request: Request) -> Self {
        Mutex { locks, request }
    }

    /// First come, first served across the whole fleet, among all clients that ask for a fair mutex. A client that asks
    /// for a plain one is excluded too, but may overtake.
    #[must_use]
    pub fn fair(self) -> Self {
        Mutex { request: Request::fair_mutex(self.name()), ..self }
    }

    /// Other options than those of the [`Locks`] it came from: what they name changes, the rest stays.
    #[must_use]
    pub fn options(self, options: Options) -> Self {
        Mutex { locks: self.locks.with_options(options), ..self }
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.request.name()
    }

    /// Who holds it, and since when where the store knows; `None` if it is free. It may have changed when this returns.
    ///
    /// ```
    /// # use distlock_core::{Locks, memory::MemoryStore, store::Backend};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> distlock_core::Result<()> {
    /// # let locks = Locks::builder(Backend::lease(MemoryStore::new())).label("web-3:812").build()?;
    /// let nightly = locks.mutex("nightly");
    /// assert!(nightly.holder().await?.is_none());
    /// let guard = nightly.acquire().await?;
    /// let holder = nightly.holder().await?.expect("we hold it");
    /// assert_eq!(holder.lock_id.label(), "web-3:812");
    /// # drop(guard); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As for [`Locks::inspect`].
    ///
    /// # Cancel safety
    /// Cancel safe: it only reads.
    pub async fn holder(&self) -> Result<Option<Holder>> {
        Ok(self.locks.holders(Kind::Mutex, self.name()).await?.into_iter().next())
    }

    /// Waits until it is ours; see [`Acquire`] for errors and cancel safety.
    pub fn acquire(&self) -> Acquire {
        Acquire::new(self.locks.clone(), self.request.clone())
    }

    /// One attempt; see [`TryAcquire`].
    pub fn try_acquire(&self) -> TryAcquire {
        TryAcquire::new(self.locks.clone(), self.request.clone())
    }
}
