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
//! See [`Locks`] for what there is, [`Guard`] for what a held lock tells, and [`store`] for those who write a store of their own.

mod registry;

pub use distlock_core::*;
pub use registry::{connect, drivers, open, schema};
