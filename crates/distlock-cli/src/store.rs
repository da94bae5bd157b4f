//! Which store: `--store`, `DISTLOCK_STORE`, or lock files in the folder of this user.

use clap::Args;
use distlock::store::Backend;
use distlock::{Locks, Options, Result};

/// The file store in `$XDG_STATE_HOME/distlock`: no server, no set-up.
const DEFAULT: &str = "file:";

/// Where the locks are kept.
#[derive(Args, Clone)]
pub(crate) struct StoreArgs {
    /// The store, as a URL; without one, lock files in $XDG_STATE_HOME/distlock
    #[arg(
        long = "store",
        value_name = "URL",
        env = "DISTLOCK_STORE",
        hide_env_values = true,
        global = true,
        help_heading = "Store"
    )]
    url: Option<String>,
}

impl StoreArgs {
    /// The URL, password included: for the store, never for people.
    pub(crate) fn url(&self) -> &str {
        // An empty variable is what a script has that means none.
        self.url.as_deref().filter(|url| !url.is_empty()).unwrap_or(DEFAULT)
    }

    /// Connects, with these options as the defaults.
    pub(crate) async fn connect(&self, options: Options) -> Result<Locks> {
        Locks::builder(open(self.url()).await?).options(options).build()
    }
}

/// A password could be in it.
impl std::fmt::Debug for StoreArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StoreArgs")
    }
}

/// Opens the store behind a URL.
pub(crate) async fn open(url: &str) -> Result<Backend> {
    #[cfg(feature = "test-store")]
    if let Some(backend) = crate::test_store::open(url) {
        return backend;
    }
    distlock::open(url).await
}
