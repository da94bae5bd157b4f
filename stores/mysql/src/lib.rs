//! The MySQL and MariaDB stores of distlock, on `mysql_async` with rustls.

#[cfg(feature = "bench")]
mod baseline;
mod batch;
mod config;
mod connections;
mod doctor;
mod error;
mod identifier;
mod lease;
mod rows;
mod schema;
mod server;
mod session;
mod sweep;

pub use config::{DEFAULT_RETENTION, DEFAULT_SESSION_TIMEOUT, DEFAULT_TABLE, MysqlConfig};
pub use lease::MysqlStore;
pub use session::MysqlSessionStore;

use distlock_core::store::{Backend, Driver, StoreUrl};
use schema::Purpose;

/// `mysql://`, the lease tables.
pub static DRIVER: Driver = lease_driver();

/// `mysql+session://`, `GET_LOCK`.
pub static SESSION_DRIVER: Driver = session_driver();

const fn lease_driver() -> Driver {
    let driver = Driver::new(&["mysql"], "mysql://user@host:3306/database", |url| {
        Box::pin(async move { Ok(Backend::lease(MysqlStore::connect(MysqlConfig::from_url(&url)?).await?)) })
    })
    .with_options(config::LEASE_OPTIONS)
    .with_schema(|url| print_schema(url, Purpose::Lease));
    #[cfg(feature = "bench")]
    let driver = driver.with_baseline(|url| Box::pin(baseline::connect_lease(url)));
    driver
}

const fn session_driver() -> Driver {
    let driver = Driver::new(&["mysql+session"], "mysql+session://user@host:3306/database", |url| {
        Box::pin(async move {
            Ok(Backend::session(MysqlSessionStore::connect(MysqlConfig::from_url(&url)?).await?))
        })
    })
    .with_options(config::SESSION_OPTIONS)
    .with_schema(|url| print_schema(url, Purpose::Session));
    #[cfg(feature = "bench")]
    let driver = driver.with_baseline(|url| Box::pin(baseline::connect_session(url)));
    driver
}

fn print_schema(url: &StoreUrl, purpose: Purpose) -> distlock_core::Result<String> {
    let config = MysqlConfig::from_url(url)?;
    Ok(schema::print(&config.tables(config.connected_to())?, purpose))
}
