//! (being written)

pub mod proxy;
pub mod servers;
