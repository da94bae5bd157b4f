//! The API: one primitive a file.

mod acquire;
mod all;
mod guard;
mod locks;
mod mutex;
mod rw_lock;
mod semaphore;

pub use acquire::{Acquire, TryAcquire};
pub use all::{AcquireAll, GuardSet, Request};
pub use guard::{Guard, ReleaseError};
pub use locks::{Locks, LocksBuilder};
pub use mutex::Mutex;
pub use rw_lock::RwLock;
pub use semaphore::Semaphore;
