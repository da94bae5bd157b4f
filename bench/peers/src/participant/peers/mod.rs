//! Those who are compared, one file each. Each is used as its own documentation shows it, with its own defaults.

pub mod distributed;
pub mod mongodb_lock_crate;
pub mod ours;
pub mod redsync_crate;
pub mod rslock_crate;
