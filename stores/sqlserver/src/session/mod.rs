//! Sessions of the server, which hold application locks.

mod actor;
mod pool;
mod settle;

pub(crate) use actor::{LockSession, REQUEST_TIMEOUT};
pub(crate) use pool::{Reservation, Sessions};
pub(crate) use settle::{Settled, Unsettled, at_least};
