//! (being written)

pub mod actors;
pub mod broken;
pub mod conformance;
pub mod history;
pub mod proxy;
pub mod servers;
