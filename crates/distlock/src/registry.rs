//! The stores there are: one line each.

use std::time::Duration;

use distlock_core::store::{Backend, Driver, StoreUrl};
use distlock_core::{Error, ErrorKind, Locks, Result};

static DRIVERS: &[&Driver] = &[
    &distlock_core::memory::DRIVER,
    #[cfg(feature = "etcd")]
    &distlock_etcd::DRIVER,
    #[cfg(all(feature = "file", unix))]
    &distlock_file::DRIVER,
    #[cfg(feature = "mongodb")]
    &distlock_mongodb::DRIVER,
    #[cfg(feature = "mysql")]
    &distlock_mysql::DRIVER,
    #[cfg(feature = "postgres")]
    &distlock_postgres::DRIVER,
    #[cfg(feature = "postgres")]
    &distlock_postgres::ADVISORY_DRIVER,
    #[cfg(feature = "redis")]
    &distlock_redis::DRIVER,
    #[cfg(feature = "zookeeper")]
    &distlock_zookeeper::DRIVER,
];

/// The stores that this build knows, for help texts.
#[must_use]
pub fn drivers() -> &'static [&'static Driver] {
    DRIVERS
}

/// Takes a URL apart and finds its store. The scheme is named in errors if it is one of ours.
fn driver_for(text: &str) -> Result<(StoreUrl, &'static Driver)> {
    let known: Vec<&str> = DRIVERS.iter().flat_map(|driver| driver.schemes()).copied().collect();
    let mut url = StoreUrl::parse(text).map_err(|error| {
        let scheme = text.split(':').next().unwrap_or_default().to_ascii_lowercase();
        if known.contains(&scheme.as_str()) { error.on(format!("{scheme}:***")) } else { error }
    })?;
    url.accept(&known)?;
    let found = DRIVERS.iter().find(|driver| driver.schemes().contains(&url.scheme()));
    let driver = found.ok_or_else(|| Error::new(ErrorKind::Internal, "a scheme without a store"))?;
    Ok((url, driver))
}

/// Connects to any registered store by URL.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for a bad URL, before anything is sent; [`ErrorKind::Unavailable`] or
/// [`ErrorKind::Denied`] if the store cannot be reached or refuses us.
///
/// # Cancel safety
/// Dropping the future leaves nothing behind.
pub async fn connect(url: &str) -> Result<Locks> {
    Locks::new(open(url).await?)
}

/// Connects, and leaves clock, label and options to [`Locks::builder`].
///
/// # Errors
/// As for [`connect`].
///
/// # Cancel safety
/// Dropping the future leaves nothing behind.
pub async fn open(url: &str) -> Result<Backend> {
    let (url, driver) = driver_for(url)?;
    let shown = url.to_string();
    driver.connect(url).await.map_err(|error| error.doing("connect").on(shown))
}

/// Like [`open`], but fails at the time limit, whatever the store does.
///
/// # Errors
/// As for [`connect`]; [`ErrorKind::Unavailable`] if the store is not connected by then.
///
/// # Cancel safety
/// Dropping the future leaves nothing behind.
pub async fn open_within(url: &str, limit: Duration) -> Result<Backend> {
    let (url, driver) = driver_for(url)?;
    let shown = url.to_string();
    let connected = tokio::time::timeout(limit, driver.connect(url)).await.unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::Unavailable, format!("not connected within {limit:?}"))
            .advise("check that the store runs and can be reached from here, or set a longer time limit"))
    });
    connected.map_err(|error| error.doing("connect").on(shown))
}

/// The bare driver behind a URL, for benchmarks; `None` where there is none to compare with.
///
/// # Errors
/// As for [`connect`].
///
/// # Cancel safety
/// Dropping the future leaves nothing behind.
#[cfg(feature = "bench")]
pub async fn baseline(url: &str) -> Result<Option<Box<dyn distlock_core::bench::Baseline>>> {
    let (url, driver) = driver_for(url)?;
    let shown = url.to_string();
    driver.baseline(url).await.map_err(|error| error.doing("connect").on(shown))
}

/// The DDL or index commands of the store behind a URL, without connecting.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for a bad URL, [`ErrorKind::Unsupported`] where there is nothing to create.
pub fn schema(url: &str) -> Result<String> {
    let (url, driver) = driver_for(url)?;
    match driver.schema(&url)? {
        Some(schema) => Ok(schema),
        None => Err(Error::new(ErrorKind::Unsupported, "this store needs no tables or indexes")
            .doing("print the schema")
            .on(url.to_string())
            .advise("nothing is to be created: just use it")),
    }
}
