//! From a configuration or a URL to a store.

use distlock_core::store::{Backend, Driver};
use distlock_core::{Error, ErrorKind, Result};

use crate::FileStore;
use crate::config::{FileConfig, SCHEMES, URL_OPTIONS};
use crate::doctor;
use crate::store::{StoreState, blocking};

/// The driver for `file:` URLs.
pub static DRIVER: Driver = driver();

const fn driver() -> Driver {
    let driver = Driver::new(SCHEMES, "file:///var/lock/app", |url| {
        Box::pin(async move { Ok(Backend::session(FileStore::connect(FileConfig::from_url(&url)?).await?)) })
    })
    .with_options(URL_OPTIONS)
    .with_check(|url| FileConfig::from_url(url).map(drop));
    #[cfg(feature = "bench")]
    let driver = driver.with_baseline(|url| {
        Box::pin(async move { Ok(Some(FileStore::connect(FileConfig::from_url(&url)?).await?.baseline())) })
    });
    driver
}

impl FileStore {
    /// Opens the store. The folder is created on first use; a relative path is resolved against the current folder now.
    ///
    /// ```
    /// use distlock_file::{FileConfig, FileStore};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> distlock_core::Result<()> {
    /// let store = FileStore::connect(FileConfig::new("/var/lock/app")).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if the path is empty.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is written.
    pub async fn connect(mut config: FileConfig) -> Result<Self> {
        config.dir = std::path::absolute(&config.dir).map_err(|error| {
            Error::new(ErrorKind::InvalidInput, format!("{:?} is not the path of a folder", config.dir))
                .doing("open the file store")
                .caused_by(error)
                .advise("name a folder, such as /var/lock/app")
        })?;
        // The check may block on a network file system.
        let dir = config.dir.clone();
        let is_local = blocking(move || Ok(!doctor::is_network(&dir))).await?;
        Ok(FileStore::from_state(StoreState::new(config, is_local)))
    }
}
