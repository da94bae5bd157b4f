//! The PostgreSQL stores of distlock.

mod advisory;
mod config;
mod doctor;
mod failure;
mod identifier;
mod lease;
mod link;
mod names;
mod pools;
mod questions;
mod raw;
mod schema;
mod statement;
mod tls;
mod values;

// Advisory locks are not in the registry yet: a dropped acquisition can leave the next one waiting.
pub use advisory::{ADVISORY_DRIVER, AdvisoryKey, AdvisoryLocks, TransactionLocks};
pub use config::{DEFAULT_RETENTION, DEFAULT_SESSION_TIMEOUT, KeyScheme, Listen, PostgresConfig};
pub use lease::{LEASE_DRIVER, LeaseTable};
