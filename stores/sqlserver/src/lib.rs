//! The SQL Server store of distlock.
mod app_lock;
#[cfg(feature = "bench")]
mod baseline;
mod config;
mod connect;
mod connection;
mod doctor;
mod error;
mod identifier;
mod inspect;
mod lock_name;
mod result_code;
mod rows;
mod schema;
mod semaphore;
mod session;
mod statements;
mod store;
mod sweep;
mod transaction;

pub use config::{
    DEFAULT_HEARTBEAT_TIMEOUT, DEFAULT_PRINCIPAL, DEFAULT_SCHEMA, DEFAULT_TABLE, SqlServerConfig,
};
pub use store::SqlServerStore;
pub use transaction::TransactionLocks;

use distlock_core::store::{Backend, Driver};

/// `sqlserver://`, application locks.
pub static DRIVER: Driver = driver();

const fn driver() -> Driver {
    let driver = Driver::new(&["sqlserver"], "sqlserver://user@host:1433/database", |url| {
        Box::pin(async move {
            Ok(Backend::session(SqlServerStore::connect(SqlServerConfig::from_url(&url)?).await?))
        })
    })
    .with_options(config::OPTIONS)
    .with_check(|url| SqlServerConfig::from_url(url).map(drop))
    .with_schema(|url| Ok(schema::print(&SqlServerConfig::from_url(url)?.names)));
    #[cfg(feature = "bench")]
    let driver = driver.with_baseline(|url| Box::pin(baseline::connect(url)));
    driver
}
