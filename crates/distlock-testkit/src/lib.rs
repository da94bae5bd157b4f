//! (being written)

pub mod history;
pub mod proxy;
pub mod servers;
