//! The participants, one file each. Each is used as its documentation shows, with its defaults.

#[cfg(feature = "main")]
pub mod distlock_peer;
#[cfg(feature = "main")]
pub mod distributed;
#[cfg(feature = "separate")]
pub mod distributed_mongo;
#[cfg(feature = "separate")]
pub mod mongodb_lock_crate;
#[cfg(feature = "main")]
pub mod redsync_crate;
#[cfg(feature = "main")]
pub mod rslock_crate;
