//! Sessions of the server, which hold application locks.

mod actor;
mod attempts;
mod ended;
mod name;
mod pool;
mod settle;

pub(crate) use actor::{LockSession, REQUEST_TIMEOUT};
pub(crate) use attempts::{Attempt, on_own_session, on_shared_session};
pub(crate) use ended::{is_alive, may_have_guards, watch};
pub(crate) use name::Process;
pub(crate) use pool::{Reservation, Sessions};
pub(crate) use settle::{Drawn, settle};
