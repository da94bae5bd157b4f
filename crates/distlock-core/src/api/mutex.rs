//! The mutex.

use std::sync::Arc;

use super::acquire::{Acquire, Target, TryAcquire};
use super::locks::Locks;
use crate::options::Options;
use crate::resource::Kind;

/// One holder in the whole fleet. Made by [`Locks::mutex`].
///
/// It is not re-entrant: a task that asks again for what it holds waits for itself.
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
    target: Target,
}

impl Mutex {
    pub(crate) fn new(locks: Locks, name: Arc<str>) -> Self {
        let options = Arc::clone(&locks.options);
        let target = Target { kind: Kind::Mutex, name, weight: 1, capacity: 1, fair: false, options };
        Mutex { locks, target }
    }

    /// First come, first served across the whole fleet, among all who ask fairly. Those who ask without it are
    /// still excluded, but may overtake.
    #[must_use]
    pub fn fair(mut self) -> Self {
        self.target.fair = true;
        self
    }

    /// Other options than those of the [`Locks`] it came from.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.target.options = Arc::new(options);
        self
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.target.name
    }

    /// Waits until it is ours; see [`Acquire`] for errors and cancellation.
    pub fn acquire(&self) -> Acquire {
        Acquire::new(self.locks.clone(), self.target.clone())
    }

    /// One attempt; see [`TryAcquire`].
    pub fn try_acquire(&self) -> TryAcquire {
        TryAcquire::new(self.locks.clone(), self.target.clone())
    }
}
