//! The contract as code: one suite that every store must pass against its real server.
//!
//! A store implements [`Fixture`] in its `tests/conformance.rs` and calls [`conformance!`](crate::conformance!) once.
//! That makes one test for each case, so that a failure has a name, and one more, `actor_entry`, which is how the
//! suite starts other processes: it does nothing otherwise.
//!
//! ```
//! # use distlock_core::memory::MemoryStore;
//! # use distlock_core::store::Backend;
//! # use distlock_testkit::conformance::{Fixture, Others};
//! # struct Memory(MemoryStore);
//! # impl Fixture for Memory {
//! #     async fn open() -> Self { Memory(MemoryStore::new()) }
//! #     async fn connect(&self) -> Backend { Backend::lease(self.0.clone()) }
//! #     fn others(&self) -> Others { Others::Threads { because: "a memory store lives in one process" } }
//! # }
//! # mod plain { use super::Memory;
//! distlock_testkit::conformance!(Memory);
//! # }
//! // Or, where the fixture can do harm to its store:
//! # mod faults { use super::Memory;
//! distlock_testkit::conformance!(Memory, faults: [cut_connections, move_clock]);
//! # }
//! # fn main() {}
//! ```
//!
//! Two calls in one file go into two modules. Test names are `group::case`, so one group is run with
//! `cargo test --test conformance tokens::`.
//!
//! # What a missing capability means
//! A case about something that [`Capabilities`](distlock_core::store::Capabilities) says is missing asserts that
//! asking for it is an `Unsupported` error. Nothing is passed over in silence.
//!
//! # What is checked beside the cases' own claims
//! Whatever the cases take is written down, and at the end of every case its
//! [`History`](crate::history::History) must be clean.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod cases;
mod fixture;
mod harness;
mod loss_cause;
mod polls;
mod run;
mod stalls;

pub use fixture::{Fixture, Others, Pace};
pub use harness::Harness;
pub use polls::{Polled, poll_times};
pub use run::{Case, actor, run, run_on};

/// Tests a store: one test for each case. See [`conformance`](mod@crate::conformance).
#[macro_export]
macro_rules! conformance {
    ($fixture:ty) => {
        $crate::conformance!($fixture, faults: []);
    };
    ($fixture:ty, faults: [$($fault:ident),* $(,)?]) => {
        /// The name of the test below, for the test binary that starts itself.
        #[doc(hidden)]
        #[allow(dead_code)]
        const ACTOR_ENTRY: &str = concat!(module_path!(), "::actor_entry");

        /// Where other processes begin. Does nothing when it is run as a test.
        #[test]
        fn actor_entry() {
            $crate::conformance::actor::<$fixture>();
        }

        $crate::__conformance_cases! { __conformance_tests, $fixture }

        mod faults {
            #[allow(unused_imports)]
            use super::*;
            $($crate::__conformance_fault! { $fault, $fixture })*
        }
    };
}

/// Writes the tests.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_tests {
    ($fixture:ty; $($group:ident { $($case:ident)* })*) => {
        $(mod $group {
            #[allow(unused_imports)]
            use super::*;
            $(#[test]
            fn $case() {
                $crate::conformance::run::<$fixture, _, _>(
                    super::ACTOR_ENTRY,
                    $crate::conformance::cases::$group::$case,
                );
            })*
        })*
    };
}
