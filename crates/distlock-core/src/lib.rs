//! The engine of distlock: the API, the two store traits, and everything that is the same on every store.
//!
//! Applications use the `distlock` crate, which adds the stores; people who write a store use
//! [`store`] and test it with `distlock-testkit`.

mod api;
#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod bench;
pub mod blocking;
mod clock;
mod engine;
mod error;
#[cfg(any(test, feature = "test-util"))]
pub mod faults;
mod fencing;
pub mod memory;
mod options;
pub mod quorum;
mod resource;
pub mod store;
pub mod telemetry;
mod token_formats;

pub use api::{
    Acquire, AcquireAll, Guard, GuardSet, Locks, LocksBuilder, Mutex, ReleaseError, Request, RwLock,
    Semaphore, TryAcquire, TryAcquireAll,
};
#[cfg(any(test, feature = "test-util"))]
pub use clock::VirtualClock;
pub use clock::{BootClock, Clock, Moment};
pub use error::{Error, ErrorKind, Result};
pub use fencing::{StaleToken, TokenGate};
pub use options::{LOCK_OPTIONS, MAX_EXPIRY, MIN_EXPIRY, Options};
pub use resource::{
    FencingToken, Kind, LockId, LockIds, MAX_NAME_BYTES, MAX_PERMITS, RecordKind, Resource, WRITER_WEIGHT,
};
pub use store::LossReason;
pub use tokio_util::sync::CancellationToken;
