//! Stores that are broken on purpose, each in one way: what shows that the suite and the history checker find it.
//!
//! Every [`Defect`] was seen in a real library or server, or is the obvious mistake to make. `tests/broken_stores.rs`
//! names the cases that catch it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod defect;
mod fixture;
mod names;
mod store;
mod tokens;

pub use defect::Defect;
pub use fixture::BrokenFixture;
pub use store::BrokenStore;
