//! Which store: `--store`, `DISTLOCK_STORE`, or lock files in the folder of this user.

use clap::Args;
use distlock::store::Backend;
use distlock::{Error, ErrorKind, Locks, Options, Result};

/// The file store in `$XDG_STATE_HOME/distlock`: no server, no set-up.
const DEFAULT: &str = "file:";

const VARIABLE: &str = "DISTLOCK_STORE";

/// Where the locks are kept.
#[derive(Args, Clone)]
pub(crate) struct StoreArgs {
    /// The store, as a URL; without one, lock files in $XDG_STATE_HOME/distlock
    #[arg(
        long = "store",
        value_name = "URL",
        env = VARIABLE,
        hide_env_values = true,
        global = true,
        help_heading = "Store"
    )]
    url: Option<String>,
}

impl StoreArgs {
    /// The URL, password included: for the store, never for people.
    ///
    /// An empty `DISTLOCK_STORE` is what a script has that means none. An empty `--store` is refused: it comes of a
    /// variable that should have been set, and lock files would exclude nobody on the other machines.
    pub(crate) fn url(&self) -> Result<&str> {
        match self.url.as_deref() {
            None => Ok(DEFAULT),
            Some("") if std::env::var_os(VARIABLE).is_some_and(|value| value.is_empty()) => Ok(DEFAULT),
            Some("") => Err(Error::new(ErrorKind::InvalidInput, "the URL after --store is empty")
                .advise("name a store, or leave --store out for lock files")),
            Some(url) => Ok(url),
        }
    }

    /// Connects, with these options as the defaults.
    pub(crate) async fn connect(&self, options: Options) -> Result<Locks> {
        Locks::builder(open(self.url()?).await?).options(options).build()
    }
}

/// A password could be in it.
impl std::fmt::Debug for StoreArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StoreArgs")
    }
}

/// Opens the bare driver behind a URL, for benchmarks.
pub(crate) async fn open_baseline(url: &str) -> Result<Option<Box<dyn distlock::bench::Baseline>>> {
    #[cfg(feature = "test-store")]
    if crate::test_store::open(url).is_some() {
        return Ok(None);
    }
    distlock::bench::baseline(url).await
}

/// Opens the store behind a URL.
pub(crate) async fn open(url: &str) -> Result<Backend> {
    #[cfg(feature = "test-store")]
    if let Some(backend) = crate::test_store::open(url) {
        return backend;
    }
    distlock::open(url).await
}
