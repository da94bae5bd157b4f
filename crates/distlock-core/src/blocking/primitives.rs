//! The primitives of the blocking API.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use super::guard::Guard;
use super::runtime::Blocking;
use crate::api::{Acquire, TryAcquire};
use crate::error::Result;
use crate::options::Options;

fn acquire(blocking: &Arc<Blocking>, asking: Acquire) -> Result<Guard> {
    let inner = blocking.wait(asking.into_future())??;
    Ok(Guard::new(Arc::clone(blocking), inner))
}

fn try_acquire(blocking: &Arc<Blocking>, asking: TryAcquire) -> Result<Option<Guard>> {
    let inner = blocking.wait(asking.into_future())??;
    Ok(inner.map(|inner| Guard::new(Arc::clone(blocking), inner)))
}

/// The blocking twin of [`crate::Mutex`].
#[derive(Clone, Debug)]
pub struct Mutex {
    // Before the runtime, which waits for the end of the engine when it is dropped.
    pub(super) inner: crate::Mutex,
    pub(super) blocking: Arc<Blocking>,
}

impl Mutex {
    /// First come, first served; see [`crate::Mutex::fair`].
    #[must_use]
    pub fn fair(self) -> Self {
        Mutex { inner: self.inner.fair(), ..self }
    }

    /// Other options.
    #[must_use]
    pub fn options(self, options: Options) -> Self {
        Mutex { inner: self.inner.options(options), ..self }
    }

    /// Waits until it is ours.
    ///
    /// # Errors
    /// As for [`crate::Acquire`].
    pub fn acquire(&self) -> Result<Guard> {
        acquire(&self.blocking, self.inner.acquire())
    }

    /// Waits at most this long.
    ///
    /// # Errors
    /// As for [`crate::Acquire`], a time-out among them.
    pub fn acquire_within(&self, limit: Duration) -> Result<Guard> {
        acquire(&self.blocking, self.inner.acquire().timeout(limit))
    }

    /// One attempt.
    ///
    /// # Errors
    /// As for [`crate::TryAcquire`].
    pub fn try_acquire(&self) -> Result<Option<Guard>> {
        try_acquire(&self.blocking, self.inner.try_acquire())
    }
}

/// The blocking twin of [`crate::RwLock`].
#[derive(Clone, Debug)]
pub struct RwLock {
    // Before the runtime, which waits for the end of the engine when it is dropped.
    pub(super) inner: crate::RwLock,
    pub(super) blocking: Arc<Blocking>,
}

impl RwLock {
    /// Other options.
    #[must_use]
    pub fn options(self, options: Options) -> Self {
        RwLock { inner: self.inner.options(options), ..self }
    }

    /// Waits until we may read.
    ///
    /// # Errors
    /// As for [`crate::Acquire`].
    pub fn read(&self) -> Result<Guard> {
        acquire(&self.blocking, self.inner.read())
    }

    /// Waits at most this long until we may read.
    ///
    /// # Errors
    /// As for [`crate::Acquire`], a time-out among them.
    pub fn read_within(&self, limit: Duration) -> Result<Guard> {
        acquire(&self.blocking, self.inner.read().timeout(limit))
    }

    /// Waits until we may write.
    ///
    /// # Errors
    /// As for [`crate::Acquire`].
    pub fn write(&self) -> Result<Guard> {
        acquire(&self.blocking, self.inner.write())
    }

    /// Waits at most this long until we may write.
    ///
    /// # Errors
    /// As for [`crate::Acquire`], a time-out among them.
    pub fn write_within(&self, limit: Duration) -> Result<Guard> {
        acquire(&self.blocking, self.inner.write().timeout(limit))
    }

    /// One attempt to read.
    ///
    /// # Errors
    /// As for [`crate::TryAcquire`].
    pub fn try_read(&self) -> Result<Option<Guard>> {
        try_acquire(&self.blocking, self.inner.try_read())
    }

    /// One attempt to write.
    ///
    /// # Errors
    /// As for [`crate::TryAcquire`].
    pub fn try_write(&self) -> Result<Option<Guard>> {
        try_acquire(&self.blocking, self.inner.try_write())
    }
}

/// The blocking twin of [`crate::Semaphore`].
#[derive(Clone, Debug)]
pub struct Semaphore {
    // Before the runtime, which waits for the end of the engine when it is dropped.
    pub(super) inner: crate::Semaphore,
    pub(super) blocking: Arc<Blocking>,
}

impl Semaphore {
    /// Other options.
    #[must_use]
    pub fn options(self, options: Options) -> Self {
        Semaphore { inner: self.inner.options(options), ..self }
    }

    /// Waits for one permit.
    ///
    /// # Errors
    /// As for [`crate::Acquire`].
    pub fn acquire(&self) -> Result<Guard> {
        self.acquire_many(1)
    }

    /// Waits for so many permits.
    ///
    /// # Errors
    /// As for [`crate::Acquire`].
    pub fn acquire_many(&self, permits: u32) -> Result<Guard> {
        acquire(&self.blocking, self.inner.acquire_many(permits))
    }

    /// Waits at most this long for so many permits.
    ///
    /// # Errors
    /// As for [`crate::Acquire`], a time-out among them.
    pub fn acquire_many_within(&self, permits: u32, limit: Duration) -> Result<Guard> {
        acquire(&self.blocking, self.inner.acquire_many(permits).timeout(limit))
    }

    /// One attempt for one permit.
    ///
    /// # Errors
    /// As for [`crate::TryAcquire`].
    pub fn try_acquire(&self) -> Result<Option<Guard>> {
        self.try_acquire_many(1)
    }

    /// One attempt for so many permits.
    ///
    /// # Errors
    /// As for [`crate::TryAcquire`].
    pub fn try_acquire_many(&self, permits: u32) -> Result<Option<Guard>> {
        try_acquire(&self.blocking, self.inner.try_acquire_many(permits))
    }
}
