//! Tests for distlock stores: a conformance suite and the tools it is made of.
//!
//! Start with [`conformance`](mod@conformance) to test a store of your own.
//!
//! - [`conformance`](mod@conformance): the contract as code; one macro call in a store's tests.
//! - [`history`]: records what all clients of a run observed, and checks it against the contract.
//! - [`actors`]: other processes that acquire locks, and that can be paused and killed.
//! - [`servers`]: real servers for a test, with their faults; [`proxy`]: network faults between client and server.
//! - [`broken`]: stores with intentional defects, which show that the suite detects them.

pub mod actors;
pub mod broken;
pub mod conformance;
pub mod history;
pub mod proxy;
pub mod servers;
