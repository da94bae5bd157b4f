//! Locks that hold across processes and machines: mutexes, reader-writer locks and semaphores with automatic
//! extension, fencing tokens and loss detection, on the database a team already runs.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> distlock::Result<()> {
//! let locks = distlock::connect("memory:").await?; // file:///var/lock/app, redis://host, …
//! let guard = locks.mutex("orders/42").acquire().await?;
//! println!("fencing token {}", guard.token());
//! guard.release().await?;
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

#[doc = include_str!("../docs/fencing.md")]
pub mod fencing {}
