//! The PostgreSQL stores of distlock.

mod config;
mod doctor;
mod failure;
mod identifier;
mod lease;
mod link;
mod names;
mod raw;
mod schema;
mod statement;
mod tls;
mod values;

pub use config::{DEFAULT_RETENTION, KeyScheme, Listen, PostgresConfig};
pub use lease::{LEASE_DRIVER, LeaseTable};
