//! Those who are compared, one file each. Each is used as its own documentation shows it, with its own defaults.

#[cfg(feature = "field")]
pub mod distributed;
#[cfg(feature = "apart")]
pub mod distributed_mongo;
#[cfg(feature = "apart")]
pub mod mongodb_lock_crate;
#[cfg(feature = "field")]
pub mod ours;
#[cfg(feature = "field")]
pub mod redsync_crate;
#[cfg(feature = "field")]
pub mod rslock_crate;
