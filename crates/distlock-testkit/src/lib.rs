//! What distlock's stores are tested with, for people who write a store here or elsewhere.
//!
//! - [`conformance`](mod@conformance): the contract as code, one macro call in a store's tests.
//! - [`history`]: writes down what everybody saw of a run, and proves that it was allowed.
//! - [`actors`]: other processes that take locks, and that can be paused and killed.
//! - [`servers`]: real servers started for a test, with their faults; [`proxy`]: faults of the network before them.
//! - [`broken`]: stores that are broken on purpose, which show that the suite finds it.

pub mod actors;
pub mod broken;
pub mod conformance;
pub mod history;
pub mod proxy;
pub mod servers;
