//! Clients of the application: pools that tell the store where its server is, and transactions of sqlx.

#[cfg(feature = "deadpool-postgres")]
mod deadpool;
#[cfg(feature = "sqlx")]
mod sqlx_pool;
#[cfg(feature = "sqlx")]
mod sqlx_transaction;

#[cfg(feature = "deadpool-postgres")]
pub(crate) use deadpool::ConnectionPool;
#[cfg(feature = "sqlx")]
pub use sqlx_transaction::SqlxTransactionLocks;

/// A pool of the application, of which there is none without the feature.
#[cfg(not(feature = "deadpool-postgres"))]
#[derive(Clone, Debug)]
pub(crate) enum ConnectionPool {}
