//! The API: one primitive a file.

mod acquire;
mod acquire_all;
mod guard;
mod guard_set;
mod handle;
mod lazy;
mod locks;
mod mutex;
mod rw_lock;
mod semaphore;
mod timeout;

pub use acquire::{Acquire, Request, TryAcquire};
pub use acquire_all::{AcquireAll, TryAcquireAll};
pub use guard::{Guard, ReleaseError};
pub use guard_set::GuardSet;
pub use locks::{Locks, LocksBuilder};
pub use mutex::Mutex;
pub use rw_lock::RwLock;
pub use semaphore::Semaphore;
