//! The Redis store of distlock.

mod config;
mod doctor;
mod inspect;
mod keys;
mod net;
mod script;
mod slot;
mod store;
mod trouble;
mod url;
mod verbs;

pub use config::{Address, RedisConfig, Servers};
pub use keys::DEFAULT_PREFIX;
pub use store::RedisStore;
