//! Connections: one to each server, replaced when it breaks, and the discovery of the right server.

mod busy_poll;
mod cluster;
mod connection;
mod direct;
mod pubsub;
mod resp;
mod sentinel;
mod servers;
mod topology;

pub(crate) use connection::{CommandChannel, ServerConnection};
pub(crate) use direct::{DirectConnection, IntoHalves, ReadHalf, WriteHalf};
pub(crate) use pubsub::Subscriptions;
pub(crate) use servers::ServerSet;
pub(crate) use topology::check_master;
#[cfg(feature = "cluster-async")]
pub(crate) use topology::masters_of;
