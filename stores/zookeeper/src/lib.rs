//! Locks on Apache ZooKeeper 3.5 and later, for [distlock](distlock_core).
mod acquire;
#[cfg(feature = "bench")]
mod baseline;
mod config;
mod connect;
mod contender;
mod doctor;
mod error;
mod inspect;
mod names;
mod queue;
mod session;
mod sessions;
mod store;

pub use config::{Access, Address, DEFAULT_CHROOT, ZookeeperConfig};
pub use connect::DRIVER;
pub(crate) use connect::SCHEMES;
pub use store::ZookeeperStore;
