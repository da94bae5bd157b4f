//! The engine of distlock.

mod clock;
mod error;
pub mod faults;
pub mod memory;
mod options;
mod resource;
pub mod store;

pub use clock::{BootClock, Clock, Moment, VirtualClock};
pub use error::{Error, ErrorKind, Result};
pub use options::{MAX_EXPIRY, MIN_EXPIRY, Options};
pub use resource::{
    FencingToken, Kind, LockId, LockIds, MAX_NAME_BYTES, MAX_PERMITS, RecordKind, Resource, WRITER_WEIGHT,
};
