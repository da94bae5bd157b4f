//! The conformance suite: the contract of a distlock store as code.
//!
//! Every store must pass the suite against its real server. It is public API: use it for a store of your own.
//!
//! # How to test a store
//! 1. Create `tests/conformance.rs` in the store's crate.
//! 2. Implement [`Fixture`]: how to open an empty store, and how to connect to it.
//! 3. Call [`conformance!`](crate::conformance!) once.
//!
//! ```
//! # use distlock_core::memory::MemoryStore;
//! # use distlock_core::store::Backend;
//! # use distlock_testkit::conformance::{ActorMode, Fixture};
//! # struct Memory(MemoryStore);
//! # impl Fixture for Memory {
//! #     async fn open() -> Self { Memory(MemoryStore::new()) }
//! #     async fn connect(&self) -> Backend { Backend::lease(self.0.clone()) }
//! #     fn actor_mode(&self) -> ActorMode { ActorMode::Threads { reason: "a memory store lives in one process" } }
//! # }
//! # mod plain { use super::Memory;
//! distlock_testkit::conformance!(Memory);
//! # }
//! // Or, if the fixture implements faults of its store:
//! # mod faults { use super::Memory;
//! distlock_testkit::conformance!(Memory, faults: [cut_connections, move_clock]);
//! # }
//! # fn main() {}
//! ```
//!
//! The macro writes one test per [case](cases), named `group::case`, so `cargo test --test conformance tokens::` runs one
//! group. It also writes the test `actor_entry`: the suite starts the test binary again with this test to get other
//! processes. In an ordinary run it does nothing. Call the macro twice in one file by putting each call into a module.
//!
//! # What the cases check
//! | group | promise |
//! | --- | --- |
//! | [`exclusion`](cases::exclusion) | guards that exclude each other are never held at once |
//! | [`tokens`](cases::tokens) | tokens of a resource strictly increase, however a hold ends |
//! | [`loss`](cases::loss), [`stale_guards`](cases::stale_guards) | a loss is reported in time; a lost guard does no harm |
//! | [`crash`](cases::crash) | the lock of a killed holder becomes free; a killed waiter blocks nothing |
//! | [`waiting`](cases::waiting), [`fair`](cases::fair) | time limits, wake-ups, order |
//! | [`cancellation`](cases::cancellation), [`lifecycle`](cases::lifecycle) | a dropped future or guard leaks nothing |
//! | [`renewal`](cases::renewal), [`lost_replies`](cases::lost_replies) | leases last; failed requests are retried, recognised or undone |
//! | [`names`](cases::names) | any non-empty UTF-8 string is a name of its own |
//! | [`semaphore`](cases::semaphore), [`rw_lock`](cases::rw_lock), [`acquire_all`](cases::acquire_all) | the other primitives |
//! | [`inspect`](cases::inspect) | operators see holders and waiters |
//! | [`protocol`](cases::protocol) | single steps of the store trait, without the engine |
//! | [`faults`](cases::faults) | the store's own failures, each enabled in the macro call |
//!
//! All cases record what they observe, and after every case its [`History`](crate::history::History) must be clean.
//!
//! # Missing capabilities
//! If [`Capabilities`](distlock_core::store::Capabilities) says that a feature is missing, its cases assert that a request
//! for it fails as `Unsupported`. Cases that do not apply print the reason. No case is skipped silently.
//!
//! # If a case fails on a busy machine
//! [`Timing`] holds every expiry and time limit of the suite. [`Timing::expiry`] bounds how long the machine may stall; cases that
//! depend on it measure stalls and repeat themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod cases;
mod fixture;
mod harness;
mod loss_cause;
mod polls;
mod run;
mod stalls;

pub use fixture::{ActorMode, Fixture, Timing};
pub use harness::Harness;
pub use polls::{Polled, poll_at_most};
pub use run::{Case, run, run_if_actor, run_on};

/// Tests a store: one test per case. See [`conformance`](mod@crate::conformance).
#[macro_export]
macro_rules! conformance {
    ($fixture:ty) => {
        $crate::conformance!($fixture, faults: []);
    };
    ($fixture:ty, faults: [$($fault:ident),* $(,)?]) => {
        /// The path of the test below, with which the test binary starts itself.
        #[doc(hidden)]
        #[allow(dead_code)]
        const ACTOR_ENTRY: &str = concat!(module_path!(), "::actor_entry");

        /// The entry of actor processes. Does nothing in an ordinary test run.
        #[test]
        fn actor_entry() {
            $crate::conformance::run_if_actor::<$fixture>();
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
