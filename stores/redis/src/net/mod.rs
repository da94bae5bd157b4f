//! Connections: one to each server, made anew when it is gone, and the ways to find the right server.

mod cluster;
mod dial;
mod fleet;
mod link;
mod live;
mod mailbox;
mod sentinel;
mod topology;

pub(crate) use fleet::{Answer, Fleet, Request};
pub(crate) use link::Link;
pub(crate) use live::Live;
