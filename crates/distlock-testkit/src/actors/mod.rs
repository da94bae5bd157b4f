//! Those who take locks in a test from outside the test: other processes that can be paused and killed, or threads
//! that stand in for them where a store lives in one process only.
//!
//! An [`Actor`] does as it is told ([`Order`]) and writes what it sees into a log of its own, for the
//! [`History`](crate::history::History). A process of its own is the test binary started once more, with a test as
//! its entry that calls [`perform`] and does nothing unless it runs as an actor:
//!
//! ```no_run
//! # use distlock_core::store::Backend;
//! # async fn connect(address: String) -> Backend { unimplemented!("{address}") }
//! // #[test]
//! fn actor_entry() {
//!     distlock_testkit::actors::perform(connect);
//! }
//! ```
//!
//! The [conformance suite](mod@crate::conformance) does all of this by itself.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod actor;
mod child;
mod order;
mod serve;
mod thread;

pub use actor::Actor;
pub use child::{ROLE_VARIABLE, perform};
pub use order::{Answer, Contest, Order, Role, Terms};
