//! Locks that hold across processes and machines: mutexes, reader-writer locks and semaphores with automatic
//! renewal, fencing tokens and loss detection, on the database a team already runs.
//!
//! ```no_run
//! # struct Ledger;
//! # impl Ledger { async fn write(&self, _: distlock::FencingToken, _: &str) -> distlock::Result<()> { Ok(()) } }
//! # async fn build_report() {}
//! # async fn example(ledger: Ledger, entry: &str) -> distlock::Result<()> {
//! let locks = distlock::connect("file:").await?;              // any store, by URL
//! let guard = locks.mutex("orders/42").acquire().await?;      // waits; renewed until it is dropped
//! ledger.write(guard.token(), entry).await?;                  // the fencing token lets the ledger refuse a stale holder
//! guard.release().await?;                                     // or drop it
//!
//! if let Some(guard) = locks.mutex("nightly").try_acquire().await? { /* … */ }
//! let guard = locks.rw_lock("catalogue").read().await?;       // many readers or one writer
//! let guard = locks.semaphore("gpu", 4).acquire_many(2).await?;
//! let all = locks.acquire_all(["account/1", "account/2"]).await?;   // ordered for you: no deadlock
//! let report = guard.run(build_report()).await?;              // cancelled if the lock is lost
//! # Ok(()) }
//! ```
//!
//! See [`Locks`] for what there is, [`Guard`] for what a held lock tells, and [`blocking`] for programs without an
//! async runtime. To write a store of your own, use the crate `distlock-core`.
#![doc = include_str!("../docs/guide.md")]

mod registry;

pub use distlock_core::{
    Acquire, AcquireAll, BootClock, CancellationToken, Clock, Error, ErrorKind, FencingToken, Guard,
    GuardSet, Kind, LOCK_OPTIONS, LockId, Locks, LocksBuilder, LossReason, MAX_EXPIRY, MAX_NAME_BYTES,
    MAX_PERMITS, MIN_EXPIRY, Moment, Mutex, Options, ReleaseError, Request, Resource, Result, RwLock,
    Semaphore, StaleToken, TokenGate, TryAcquire, TryAcquireAll,
};
pub use registry::{connect, connect_lazy, drivers, open, open_lazy, open_within, schema};

#[cfg(feature = "etcd")]
pub use distlock_etcd as etcd;
#[cfg(all(feature = "file", unix))]
pub use distlock_file as file;
#[cfg(feature = "mongodb")]
pub use distlock_mongodb as mongodb;
#[cfg(feature = "mysql")]
pub use distlock_mysql as mysql;
#[cfg(feature = "postgres")]
pub use distlock_postgres as postgres;
#[cfg(feature = "redis")]
pub use distlock_redis as redis;
#[cfg(feature = "sqlserver")]
pub use distlock_sqlserver as sqlserver;
#[cfg(feature = "zookeeper")]
pub use distlock_zookeeper as zookeeper;

/// The store inside one process, for tests; see [`distlock_core::memory`].
pub mod memory {
    pub use distlock_core::memory::{DEFAULT_RETENTION, MemoryStore};
}

/// A lock over several independent stores, of which a majority decides; see [`distlock_core::quorum`].
pub mod quorum {
    pub use distlock_core::quorum::{Quorum, QuorumOptions};
}

/// What a store can do and what it holds: the types of [`Locks::capabilities`], [`Locks::inspect`] and
/// [`Locks::doctor`], and what [`open`] and [`open_lazy`] return.
pub mod store {
    pub use distlock_core::store::{
        Backend, Capabilities, Connected, Driver, Fairness, Finding, Holder, Lazy, Level, Mode, Query,
        Record, StoreSource, StoreUrl, UrlOption, Waiter,
    };
}

#[doc(inline)]
pub use distlock_core::telemetry;

/// For tests of code that uses locks: a clock that follows Tokio's paused time, and faults on purpose.
#[cfg(feature = "test-util")]
pub mod testing {
    pub use distlock_core::VirtualClock;
    pub use distlock_core::faults::{Fault, Faults, FaultyStore, Verb};
}

/// The same API for programs without an async runtime; see [`distlock_core::blocking`].
pub mod blocking {
    pub use distlock_core::blocking::*;

    use distlock_core::Result;

    /// Connects to any registered store by URL, on a background thread.
    ///
    /// ```
    /// # fn main() -> distlock::Result<()> {
    /// let locks = distlock::blocking::connect("memory:")?;
    /// let guard = locks.mutex("nightly").acquire()?;
    /// guard.release()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As for [`connect`](crate::connect) and [`Locks::open`].
    pub fn connect(url: &str) -> Result<Locks> {
        Locks::open(crate::open(url))
    }

    /// Checks the URL, and connects at the first use; see [`connect_lazy`](crate::connect_lazy).
    ///
    /// # Errors
    /// As there, and for [`Locks::open`].
    pub fn connect_lazy(url: &str) -> Result<Locks> {
        Locks::open(std::future::ready(crate::open_lazy(url)))
    }
}

/// The bare drivers, for benchmarks. Unstable, and no part of the public API.
#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod bench {
    pub use distlock_core::bench::{BareNotification, Baseline};

    pub use crate::registry::baseline;
}

#[doc = include_str!("../docs/fencing.md")]
pub mod fencing {}
