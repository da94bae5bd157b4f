//! Locks that hold across processes and machines: mutexes, reader-writer locks and semaphores with automatic
//! extension, fencing tokens and loss detection, on the database a team already runs.
//!
//! ```no_run
//! # struct Ledger;
//! # impl Ledger { async fn write(&self, _: distlock::FencingToken, _: &str) -> distlock::Result<()> { Ok(()) } }
//! # async fn build_report() {}
//! # async fn example(ledger: Ledger, entry: &str) -> distlock::Result<()> {
//! let locks = distlock::connect("file:").await?;              // any store, by URL
//! let guard = locks.mutex("orders/42").acquire().await?;      // waits; extended until it is dropped
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
//! See [`Locks`] for what there is, [`Guard`] for what a held lock tells, [`blocking`] for programs without an
//! async runtime, and [`store`] for those who write a store of their own.

mod registry;

pub use distlock_core::*;
pub use registry::{connect, drivers, open, schema};

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
}

/// The bare drivers, for benchmarks. Unstable, and no part of the public API.
#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod bench {
    pub use distlock_core::bench::Baseline;

    pub use crate::registry::baseline;
}

#[doc = include_str!("../docs/fencing.md")]
pub mod fencing {}
