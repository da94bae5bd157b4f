//! Stores with one intentional defect each, to show that the suite and the history checker detect it.
//!
//! Every [`Defect`] was seen in a real library or server, or is an obvious mistake. `tests/broken_stores.rs` names the
//! cases that catch it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod defect;
mod fixture;
mod names;
mod store;
mod tokens;

pub use defect::Defect;
pub use fixture::BrokenFixture;
pub use store::BrokenStore;
