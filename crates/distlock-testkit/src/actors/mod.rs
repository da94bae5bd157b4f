//! Actors: processes that acquire locks for a test and can be paused and killed. Where a store lives in one process,
//! threads stand in for them.
//!
//! An [`Actor`] executes [`ActorCommand`]s and records what it observes in a log of its own, for the
//! [`History`](crate::history::History). An actor process is the test binary started again; its entry is a test that
//! calls [`run_if_actor`], which does nothing in an ordinary test run:
//!
//! ```no_run
//! # use distlock_core::store::Backend;
//! # async fn connect(address: String) -> Backend { unimplemented!("{address}") }
//! // #[test]
//! fn actor_entry() {
//!     distlock_testkit::actors::run_if_actor(connect);
//! }
//! ```
//!
//! The [conformance suite](mod@crate::conformance) does all of this by itself.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod actor;
mod child;
mod protocol;
mod thread;
mod worker;

pub use actor::Actor;
pub use child::{ACTOR_VARIABLE, run_if_actor};
pub use protocol::{ActorCommand, ActorConfig, ActorReply, Contention, TestOptions};
