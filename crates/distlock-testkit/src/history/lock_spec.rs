//! A lock request as data, so that it can be logged and sent to another process.

use std::sync::Arc;

use distlock_core::store::{Capabilities, Fairness};
use distlock_core::{Acquire, Kind, Locks, Request, TryAcquire, WRITER_WEIGHT};
use serde::{Deserialize, Serialize};

/// A lock of any kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LockSpec {
    /// A mutex.
    Mutex(String),
    /// A fair mutex.
    FairMutex(String),
    /// The read side of a reader-writer lock.
    Read(String),
    /// The write side of a reader-writer lock.
    Write(String),
    /// Permits of a semaphore.
    Permits {
        /// The name.
        name: String,
        /// The capacity.
        permits: u32,
        /// The number of permits to acquire.
        count: u32,
    },
}

impl LockSpec {
    /// A mutex.
    pub fn mutex(name: impl Into<String>) -> Self {
        LockSpec::Mutex(name.into())
    }

    /// A fair mutex.
    pub fn fair(name: impl Into<String>) -> Self {
        LockSpec::FairMutex(name.into())
    }

    /// The read side of a reader-writer lock.
    pub fn read(name: impl Into<String>) -> Self {
        LockSpec::Read(name.into())
    }

    /// The write side of a reader-writer lock.
    pub fn write(name: impl Into<String>) -> Self {
        LockSpec::Write(name.into())
    }

    /// `count` of `permits` permits.
    pub fn permits(name: impl Into<String>, permits: u32, count: u32) -> Self {
        LockSpec::Permits { name: name.into(), permits, count }
    }

    /// Every exclusive lock that a store with these capabilities supports. All have this name except the fair mutex, which
    /// would otherwise be the same lock as the plain one.
    #[must_use]
    pub fn every_exclusive(capabilities: &Capabilities, name: &str) -> Vec<LockSpec> {
        let fair = LockSpec::fair(format!("{name}, fair"));
        let all = [LockSpec::mutex(name), fair, LockSpec::write(name), LockSpec::permits(name, 1, 1)];
        all.into_iter().filter(|spec| spec.is_supported(capabilities)).collect()
    }

    /// Whether a store with these capabilities supports it.
    #[must_use]
    pub fn is_supported(&self, capabilities: &Capabilities) -> bool {
        match self {
            LockSpec::Mutex(_) => true,
            LockSpec::FairMutex(_) => capabilities.fairness != Fairness::None,
            LockSpec::Read(_) | LockSpec::Write(_) => capabilities.rw_lock,
            LockSpec::Permits { permits, .. } => {
                capabilities.semaphore && *permits <= capabilities.max_permits
            }
        }
    }

    /// The kind.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            LockSpec::Mutex(_) | LockSpec::FairMutex(_) => Kind::Mutex,
            LockSpec::Read(_) | LockSpec::Write(_) => Kind::RwLock,
            LockSpec::Permits { .. } => Kind::Semaphore,
        }
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            LockSpec::Mutex(name)
            | LockSpec::FairMutex(name)
            | LockSpec::Read(name)
            | LockSpec::Write(name) => name,
            LockSpec::Permits { name, .. } => name,
        }
    }

    /// The requested share of the capacity.
    #[must_use]
    pub fn weight(&self) -> u32 {
        match self {
            LockSpec::Mutex(_) | LockSpec::FairMutex(_) | LockSpec::Read(_) => 1,
            LockSpec::Write(_) => WRITER_WEIGHT,
            LockSpec::Permits { count, .. } => *count,
        }
    }

    /// The capacity.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        match self {
            LockSpec::Mutex(_) | LockSpec::FairMutex(_) => 1,
            LockSpec::Read(_) | LockSpec::Write(_) => WRITER_WEIGHT,
            LockSpec::Permits { permits, .. } => *permits,
        }
    }

    /// Kind and name, for logs. Not truncated: names may differ in their last byte only.
    #[must_use]
    pub fn resource(&self) -> String {
        format!("{} {:?}", self.kind(), self.name())
    }

    /// Acquires it, waiting for it.
    pub fn acquire(&self, locks: &Locks) -> Acquire {
        match self {
            LockSpec::Mutex(name) => locks.mutex(name.as_str()).acquire(),
            LockSpec::FairMutex(name) => locks.mutex(name.as_str()).fair().acquire(),
            LockSpec::Read(name) => locks.rw_lock(name.as_str()).read(),
            LockSpec::Write(name) => locks.rw_lock(name.as_str()).write(),
            LockSpec::Permits { name, permits, count } => {
                locks.semaphore(name.as_str(), *permits).acquire_many(*count)
            }
        }
    }

    /// Makes one attempt to acquire it.
    pub fn try_acquire(&self, locks: &Locks) -> TryAcquire {
        match self {
            LockSpec::Mutex(name) => locks.mutex(name.as_str()).try_acquire(),
            LockSpec::FairMutex(name) => locks.mutex(name.as_str()).fair().try_acquire(),
            LockSpec::Read(name) => locks.rw_lock(name.as_str()).try_read(),
            LockSpec::Write(name) => locks.rw_lock(name.as_str()).try_write(),
            LockSpec::Permits { name, permits, count } => {
                locks.semaphore(name.as_str(), *permits).try_acquire_many(*count)
            }
        }
    }

    /// The request for `acquire_all`.
    #[must_use]
    pub fn request(&self) -> Request {
        let name: Arc<str> = self.name().into();
        match self {
            LockSpec::Mutex(_) => Request::mutex(name),
            LockSpec::FairMutex(_) => Request::fair_mutex(name),
            LockSpec::Read(_) => Request::read(name),
            LockSpec::Write(_) => Request::write(name),
            LockSpec::Permits { permits, count, .. } => Request::permits(name, *permits, *count),
        }
    }
}
