//! The primitives of the blocking API.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::guard::Guard;
use super::runtime::Waits;
use crate::api::{Acquire, TryAcquire};
use crate::error::Result;
use crate::options::Options;
use crate::store::Holder;

fn acquire(waits: &Waits, asking: Acquire) -> Result<Guard> {
    let inner = waits.wait(asking.into_future())?;
    Ok(Guard::new(Arc::clone(&waits.blocking), inner))
}

fn try_acquire(waits: &Waits, asking: TryAcquire) -> Result<Option<Guard>> {
    let inner = waits.wait(asking.into_future())?;
    Ok(inner.map(|inner| Guard::new(Arc::clone(&waits.blocking), inner)))
}

/// The blocking twin of [`crate::Mutex`].
#[derive(Clone, Debug)]
pub struct Mutex {
    // Before the runtime, which waits for the end of the engine when it is dropped.
    pub(super) inner: crate::Mutex,
    pub(super) waits: Waits,
}

impl Mutex {
    /// First come, first served; see [`crate::Mutex::fair`].
    #[must_use]
    pub fn fair(self) -> Self {
        Mutex { inner: self.inner.fair(), ..self }
    }

    /// Other options: what they name changes.
    #[must_use]
    pub fn options(self, options: Options) -> Self {
        Mutex { inner: self.inner.options(options), ..self }
    }

    /// Lets this token cancel its waits, from any thread; see [`Locks::cancelled_by`](super::Locks::cancelled_by).
    #[must_use]
    pub fn cancelled_by(self, token: &CancellationToken) -> Self {
        Mutex { waits: self.waits.cancelled_by(token), ..self }
    }

    /// Waits until it is ours.
    ///
    /// # Errors
    /// As for [`crate::Acquire`].
    pub fn acquire(&self) -> Result<Guard> {
        acquire(&self.waits, self.inner.acquire())
    }

    /// Waits at most this long.
    ///
    /// # Errors
    /// As for [`crate::Acquire`], a time-out among them.
    pub fn acquire_within(&self, limit: Duration) -> Result<Guard> {
        acquire(&self.waits, self.inner.acquire().timeout(limit))
    }

    /// One attempt.
    ///
    /// # Errors
    /// As for [`crate::TryAcquire`].
    pub fn try_acquire(&self) -> Result<Option<Guard>> {
        try_acquire(&self.waits, self.inner.try_acquire())
    }

    /// Waits at most this long; `None` if another client held it until then.
    ///
    /// # Errors
    /// As for [`crate::TryAcquire`].
    pub fn try_acquire_within(&self, limit: Duration) -> Result<Option<Guard>> {
        try_acquire(&self.waits, self.inner.try_acquire().timeout(limit))
    }

    /// Who holds it; see [`crate::Mutex::holder`].
    ///
    /// # Errors
    /// As there.
    pub fn holder(&self) -> Result<Option<Holder>> {
        self.waits.wait(self.inner.holder())
    }
}

/// The blocking twin of [`crate::RwLock`].
#[derive(Clone, Debug)]
pub struct RwLock {
    // Before the runtime, which waits for the end of the engine when it is dropped.
    pub(super) inner: crate::RwLock,
    pub(super) waits: Waits,
}

impl RwLock {
    /// Other options: what they name changes.
    #[must_use]
    pub fn options(self, options: Options) -> Self {
        RwLock { inner: self.inner.options(options), ..self }
    }

    /// Lets this token cancel its waits, from any thread; see [`Locks::cancelled_by`](super::Locks::cancelled_by).
    #[must_use]
    pub fn cancelled_by(self, token: &CancellationToken) -> Self {
        RwLock { waits: self.waits.cancelled_by(token), ..self }
    }

    /// Waits until we may read.
    ///
    /// # Errors
    /// As for [`crate::Acquire`].
    pub fn read(&self) -> Result<Guard> {
        acquire(&self.waits, self.inner.read())
    }

    /// Waits at most this long until we may read.
    ///
    /// # Errors
    /// As for [`crate::Acquire`], a time-out among them.
    pub fn read_within(&self, limit: Duration) -> Result<Guard> {
        acquire(&self.waits, self.inner.read().timeout(limit))
    }

    /// Waits until we may write.
    ///
    /// # Errors
    /// As for [`crate::Acquire`].
    pub fn write(&self) -> Result<Guard> {
        acquire(&self.waits, self.inner.write())
    }

    /// Waits at most this long until we may write.
    ///
    /// # Errors
    /// As for [`crate::Acquire`], a time-out among them.
    pub fn write_within(&self, limit: Duration) -> Result<Guard> {
        acquire(&self.waits, self.inner.write().timeout(limit))
    }

    /// One attempt to read.
    ///
    /// # Errors
    /// As for [`crate::TryAcquire`].
    pub fn try_read(&self) -> Result<Option<Guard>> {
        try_acquire(&self.waits, self.inner.try_read())
    }

    /// One attempt to write.
    ///
    /// # Errors
    /// As for [`crate::TryAcquire`].
    pub fn try_write(&self) -> Result<Option<Guard>> {
        try_acquire(&self.waits, self.inner.try_write())
    }

    /// Waits at most this long until we may read; `None` if we might not until then.
    ///
    /// # Errors
    /// As for [`crate::TryAcquire`].
    pub fn try_read_within(&self, limit: Duration) -> Result<Option<Guard>> {
        try_acquire(&self.waits, self.inner.try_read().timeout(limit))
    }

    /// Waits at most this long until we may write; `None` if we might not until then.
    ///
    /// # Errors
    /// As for [`crate::TryAcquire`].
    pub fn try_write_within(&self, limit: Duration) -> Result<Option<Guard>> {
        try_acquire(&self.waits, self.inner.try_write().timeout(limit))
    }

    /// Who reads or writes it; see [`crate::RwLock::holders`].
    ///
    /// # Errors
    /// As there.
    pub fn holders(&self) -> Result<Vec<Holder>> {
        self.waits.wait(self.inner.holders())
    }
}

/// The blocking twin of [`crate::Semaphore`].
#[derive(Clone, Debug)]
pub struct Semaphore {
    // Before the runtime, which waits for the end of the engine when it is dropped.
    pub(super) inner: crate::Semaphore,
    pub(super) waits: Waits,
}

impl Semaphore {
    /// Other options: what they name changes.
    #[must_use]
    pub fn options(self, options: Options) -> Self {
        Semaphore { inner: self.inner.options(options), ..self }
    }

    /// Lets this token cancel its waits, from any thread; see [`Locks::cancelled_by`](super::Locks::cancelled_by).
    #[must_use]
    pub fn cancelled_by(self, token: &CancellationToken) -> Self {
        Semaphore { waits: self.waits.cancelled_by(token), ..self }
    }

    /// For a number of permits that changes; see [`crate::Semaphore::resizable`].
    #[must_use]
    pub fn resizable(self) -> Self {
        Semaphore { inner: self.inner.resizable(), ..self }
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
        acquire(&self.waits, self.inner.acquire_many(permits))
    }

    /// Waits at most this long for so many permits.
    ///
    /// # Errors
    /// As for [`crate::Acquire`], a time-out among them.
    pub fn acquire_many_within(&self, permits: u32, limit: Duration) -> Result<Guard> {
        acquire(&self.waits, self.inner.acquire_many(permits).timeout(limit))
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
        try_acquire(&self.waits, self.inner.try_acquire_many(permits))
    }

    /// Waits at most this long for so many permits; `None` if they were not free until then.
    ///
    /// # Errors
    /// As for [`crate::TryAcquire`].
    pub fn try_acquire_many_within(&self, permits: u32, limit: Duration) -> Result<Option<Guard>> {
        try_acquire(&self.waits, self.inner.try_acquire_many(permits).timeout(limit))
    }

    /// How many permits are free now; see [`crate::Semaphore::available`].
    ///
    /// # Errors
    /// As there.
    pub fn available(&self) -> Result<u32> {
        self.waits.wait(self.inner.available())
    }

    /// Who holds permits; see [`crate::Semaphore::holders`].
    ///
    /// # Errors
    /// As there.
    pub fn holders(&self) -> Result<Vec<Holder>> {
        self.waits.wait(self.inner.holders())
    }
}
