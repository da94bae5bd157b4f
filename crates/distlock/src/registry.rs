//! The stores there are: one line each.

use std::time::Duration;

use distlock_core::store::{Connected, Driver, Lazy, StoreUrl};
use distlock_core::{Error, ErrorKind, Locks, Options, Result};

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
    #[cfg(feature = "mysql")]
    &distlock_mysql::SESSION_DRIVER,
    #[cfg(feature = "postgres")]
    &distlock_postgres::DRIVER,
    #[cfg(feature = "postgres")]
    &distlock_postgres::ADVISORY_DRIVER,
    #[cfg(feature = "redis")]
    &distlock_redis::DRIVER,
    #[cfg(feature = "sqlserver")]
    &distlock_sqlserver::DRIVER,
    #[cfg(feature = "zookeeper")]
    &distlock_zookeeper::DRIVER,
];

/// The schemes of all stores there are, and the feature that each needs.
static FEATURES: &[(&str, &[&str])] = &[
    ("etcd", &["etcd"]),
    ("file", &["file"]),
    ("mongodb", &["mongodb", "mongodb+srv"]),
    ("mysql", &["mysql", "mysql+session"]),
    ("postgres", &["postgres", "postgresql", "postgres+advisory", "postgresql+advisory"]),
    (
        "redis",
        &[
            "redis",
            "rediss",
            "redis+sentinel",
            "rediss+sentinel",
            "redis+cluster",
            "rediss+cluster",
            "redlock",
            "redlocks",
            "unix",
            "redis+unix",
            "valkey",
            "valkeys",
            "valkey+unix",
        ],
    ),
    ("sqlserver", &["sqlserver"]),
    ("zookeeper", &["zookeeper", "zookeepers"]),
];

/// The feature that a scheme needs, if it is a store's.
fn feature_of(scheme: &str) -> Option<&'static str> {
    FEATURES.iter().find(|(_, schemes)| schemes.contains(&scheme)).map(|(feature, _)| *feature)
}

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
    url.accept(&known).map_err(|unknown| match feature_of(url.scheme()) {
        None => unknown,
        Some(feature) => disabled(url.scheme(), feature),
    })?;
    let found = DRIVERS.iter().find(|driver| driver.schemes().contains(&url.scheme()));
    let driver = found.ok_or_else(|| Error::new(ErrorKind::Internal, "a scheme without a store"))?;
    Ok((url, driver))
}

/// The error for a store that this build leaves out. The scheme is one of ours, and no part of a secret.
fn disabled(scheme: &str, feature: &str) -> Error {
    let what = format!("this build has no store for {scheme}: URLs");
    let error = Error::new(ErrorKind::InvalidInput, what).doing("read the store URL");
    if cfg!(unix) || feature != "file" {
        error.advise(format!("enable the feature `{feature}` of the crate `distlock`"))
    } else {
        error.advise("use another store: lock files need a Unix system")
    }
}

/// Connects to any registered store by URL. Options of locks in the URL (`distlock.expiry=10s`, see
/// [`Options::from_url`]) are what the locks begin with; code that names an option wins.
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

/// Checks the URL, and connects at the first use of the locks: a service can start while its store is down. Calls that
/// come while it connects wait for that one attempt, within their time limits. If it fails, they get the error, and the next use
/// tries again. [`Locks::ping`] connects too.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> distlock::Result<()> {
/// let locks = distlock::connect_lazy("memory:orders?distlock.expiry=10s")?;
/// let guard = locks.mutex("orders/42").acquire().await?;      // connects
/// # drop(guard); Ok(()) }
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for a bad URL, or one whose store needs a feature that is not enabled.
pub fn connect_lazy(url: &str) -> Result<Locks> {
    Locks::new(open_lazy(url)?)
}

/// The same, and leaves clock, label and options to [`Locks::builder`].
///
/// # Errors
/// As for [`connect_lazy`].
pub fn open_lazy(url: &str) -> Result<Lazy> {
    let (url, driver) = driver_for(url)?;
    driver.open_lazily(url)
}

/// Connects, and leaves clock, label and options to [`Locks::builder`].
///
/// # Errors
/// As for [`connect`].
///
/// # Cancel safety
/// Dropping the future leaves nothing behind.
pub async fn open(url: &str) -> Result<Connected> {
    let (url, driver) = driver_for(url)?;
    let shown = url.to_string();
    driver.open(url).await.map_err(|error| error.doing("connect").on(shown))
}

/// Like [`open`], but fails at the time limit, whatever the store does.
///
/// # Errors
/// As for [`connect`]; [`ErrorKind::Unavailable`] if the store is not connected by then.
///
/// # Cancel safety
/// Dropping the future leaves nothing behind.
pub async fn open_within(url: &str, limit: Duration) -> Result<Connected> {
    let (url, driver) = driver_for(url)?;
    let shown = url.to_string();
    let connected = tokio::time::timeout(limit, driver.open(url)).await.unwrap_or_else(|_| {
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
    let (mut url, driver) = driver_for(url)?;
    Options::from_url(&mut url)?;
    let shown = url.to_string();
    driver.baseline(url).await.map_err(|error| error.doing("connect").on(shown))
}

/// The DDL or index commands of the store behind a URL, without connecting.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for a bad URL, [`ErrorKind::Unsupported`] where there is nothing to create.
pub fn schema(url: &str) -> Result<String> {
    let (mut url, driver) = driver_for(url)?;
    Options::from_url(&mut url)?;
    match driver.schema(&url)? {
        Some(schema) => Ok(schema),
        None => Err(Error::new(ErrorKind::Unsupported, "this store needs no tables or indexes")
            .doing("print the schema")
            .on(url.to_string())
            .advise("nothing is to be created: just use it")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scheme_of_a_store_names_its_feature() {
        for driver in DRIVERS.iter().filter(|driver| driver.schemes() != ["memory"]) {
            for scheme in driver.schemes() {
                assert!(feature_of(scheme).is_some(), "{scheme}");
            }
        }
    }

    #[cfg(all(
        feature = "etcd",
        feature = "file",
        feature = "mongodb",
        feature = "mysql",
        feature = "postgres",
        feature = "redis",
        feature = "sqlserver",
        feature = "zookeeper",
        unix
    ))]
    #[test]
    fn no_scheme_names_a_feature_that_adds_no_store() {
        for scheme in FEATURES.iter().flat_map(|(_, schemes)| *schemes) {
            assert!(DRIVERS.iter().any(|driver| driver.schemes().contains(scheme)), "{scheme}");
        }
    }

    #[test]
    fn the_error_for_a_disabled_store_names_the_feature() {
        let error = disabled("mongodb+srv", "mongodb").to_string();
        assert!(error.contains("mongodb+srv") && error.contains("enable the feature `mongodb`"), "{error}");
    }

    /// Says something only where features are off; the applications of `tests/clash` have few.
    #[test]
    fn a_url_of_a_disabled_store_is_refused_with_the_feature_to_enable() {
        for (feature, schemes) in FEATURES {
            for scheme in *schemes {
                if DRIVERS.iter().any(|driver| driver.schemes().contains(scheme)) {
                    continue;
                }
                let error = connect_lazy(&format!("{scheme}://u:secret@h/x")).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidInput);
                let text = error.to_string();
                assert!(text.contains(&format!("enable the feature `{feature}`")), "{text}");
                assert!(!text.contains("secret"), "{text}");
            }
        }
    }
}
