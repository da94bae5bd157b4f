//! The store: `--store`, `DISTLOCK_STORE`, or lock files in the default folder of the user.

use std::time::Duration;

use clap::Args;
use distlock::store::Connected;
use distlock::{Error, ErrorKind, Locks, Options, Result};

use crate::identity::Identity;

/// The file store in `$XDG_STATE_HOME/distlock`: no server, no set-up.
const DEFAULT: &str = "file:";

const VARIABLE: &str = "DISTLOCK_STORE";

/// The store of the locks.
#[derive(Args, Clone)]
pub(crate) struct StoreArgs {
    /// The URL of the store [default: lock files of this user in $XDG_STATE_HOME/distlock; see `distlock --help` to share locks]
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
    /// The URL with its password: never print it.
    ///
    /// An empty `DISTLOCK_STORE` counts as unset. An empty `--store` is refused: it comes from a variable that should have been
    /// set, and lock files would not exclude other machines.
    pub(crate) fn url(&self) -> Result<&str> {
        match self.url.as_deref() {
            None => Ok(DEFAULT),
            Some("") if std::env::var_os(VARIABLE).is_some_and(|value| value.is_empty()) => Ok(DEFAULT),
            Some("") => Err(Error::new(ErrorKind::InvalidInput, "the URL after --store is empty")
                .advise("name a store, or omit --store to use lock files")),
            Some(url) => Ok(url),
        }
    }

    /// Connects with these options as defaults.
    pub(crate) async fn connect(&self, options: Options) -> Result<Locks> {
        self.connect_as(None, None, options, None).await
    }

    /// The same under a label and for a command, within a time limit.
    pub(crate) async fn connect_as(
        &self,
        label: Option<&str>,
        identity: Option<&Identity>,
        options: Options,
        limit: Option<Duration>,
    ) -> Result<Locks> {
        let url = self.url()?;
        let backend = match limit {
            Some(limit) => open_within(url, limit).await?,
            None => open(url).await?,
        };
        let mut builder = Locks::builder(backend).options(options);
        if let Some(label) = label {
            builder = builder.label(label);
        }
        if let Some(identity) = identity {
            builder = builder.description(identity.description());
        }
        builder.build()
    }
}

/// Without the URL, which may have a password.
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

/// Opens the store behind a URL, or fails at the time limit.
async fn open_within(url: &str, limit: Duration) -> Result<Connected> {
    #[cfg(feature = "test-store")]
    if let Some(backend) = crate::test_store::open(url) {
        return backend.map(Connected::from);
    }
    distlock::open_within(url, limit).await
}

/// Opens the store behind a URL.
pub(crate) async fn open(url: &str) -> Result<Connected> {
    #[cfg(feature = "test-store")]
    if let Some(backend) = crate::test_store::open(url) {
        return backend.map(Connected::from);
    }
    distlock::open(url).await
}
