//! (being written)

pub mod servers;
