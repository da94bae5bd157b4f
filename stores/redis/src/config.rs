//! The typed options of the store, and the table of its URL options.

mod url;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use distlock_core::store::UrlOption;
use distlock_core::store::support::config::{
    Certificates, TLS_CA, TLS_CERT, TLS_KEY, check_timeout, shown_prefix, write_host_and_port,
};
use distlock_core::{Error, ErrorKind, Result};

use crate::keys::{DEFAULT_PREFIX, Keys};

/// The `distlock.` options of a URL. The last three are those of a Redlock.
pub(crate) const OPTIONS: &[UrlOption] = &[
    UrlOption {
        name: "prefix",
        value: "text",
        default: DEFAULT_PREFIX,
        meaning: "the prefix of keys and channels; empty for the bare name",
    },
    UrlOption {
        name: "response_timeout",
        value: "duration",
        default: "2s",
        meaning: "how long a reply may take before the connection is replaced; 1s on the servers of a Redlock",
    },
    UrlOption {
        name: "connect_timeout",
        value: "duration",
        default: "2s",
        meaning: "how long it may take to connect and log in; 1s on the servers of a Redlock",
    },
    UrlOption {
        name: "min_replicas",
        value: "number",
        default: "0",
        meaning: "how many replicas must confirm a grant or a renewal (WAIT)",
    },
    UrlOption {
        name: "retention",
        value: "duration",
        default: "10m",
        meaning: "how long the last token is kept; of pools, that of an unused name",
    },
    TLS_CA,
    TLS_CERT,
    TLS_KEY,
    UrlOption { name: "sentinel_user", value: "text", default: "", meaning: "the user of the sentinels" },
    UrlOption {
        name: "sentinel_password",
        value: "text",
        default: "",
        meaning: "the password of the sentinels",
    },
    UrlOption {
        name: "node_timeout",
        value: "duration",
        default: "50ms",
        meaning: "Redlock: how long one server may take",
    },
    UrlOption {
        name: "min_validity",
        value: "duration",
        default: "10ms",
        meaning: "Redlock: how much of the expiry must be left after a majority has granted",
    },
    UrlOption {
        name: "repair",
        value: "on|off",
        default: "on",
        meaning: "Redlock: whether servers that missed a grant are brought up to date",
    },
];

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Address {
    /// Host and port.
    Tcp(String, u16),
    /// A Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(host, port) => write_host_and_port(f, host, *port),
            Address::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// The servers that hold the locks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Servers {
    /// One server.
    One(Address),
    /// The master that sentinels name.
    Sentinel {
        /// The sentinels; one that replies is enough.
        sentinels: Vec<Address>,
        /// The name of the master.
        master: String,
    },
    /// A Cluster.
    Cluster {
        /// Some of its nodes; the others are discovered.
        seeds: Vec<Address>,
    },
}

/// User and password.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

/// The options of a [`RedisStore`](crate::RedisStore).
///
/// ```
/// use std::time::Duration;
/// use distlock_core::store::StoreUrl;
/// use distlock_redis::RedisConfig;
///
/// # fn main() -> distlock_core::Result<()> {
/// let url = StoreUrl::parse("redis://locks:secret@db.internal:6379/2")?;
/// let config = RedisConfig::from_url(&url)?
///     .prefix("app:")?
///     .response_timeout(Duration::from_millis(500))?
///     .min_replicas(1);
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RedisConfig {
    pub(crate) servers: Servers,
    pub(crate) credentials: Credentials,
    pub(crate) sentinel_credentials: Credentials,
    pub(crate) database: i64,
    /// `None` for connections without TLS.
    pub(crate) tls: Option<Certificates>,
    pub(crate) keys: Keys,
    pub(crate) response_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) retention: Duration,
    pub(crate) min_replicas: u32,
    /// Whether a release may grant a mutex to its first waiter. Off on the nodes of a quorum: each node would grant to
    /// another waiter.
    pub(crate) grants_on_release: bool,
}

impl RedisConfig {
    /// The default options for these servers: no login, database 0, no TLS, prefix `distlock:`.
    #[must_use]
    pub fn new(servers: Servers) -> Self {
        RedisConfig {
            servers,
            credentials: Credentials::default(),
            sentinel_credentials: Credentials::default(),
            database: 0,
            tls: None,
            keys: Keys::default(),
            response_timeout: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(2),
            retention: Duration::from_secs(600),
            min_replicas: 0,
            grants_on_release: true,
        }
    }

    /// Sets the user and the password. Without a user the server takes its user `default`.
    #[must_use]
    pub fn login(mut self, user: Option<&str>, password: &str) -> Self {
        self.credentials = Credentials { user: user.map(str::to_owned), password: Some(password.to_owned()) };
        self
    }

    /// Sets the user and the password of the sentinels.
    #[must_use]
    pub fn sentinel_login(mut self, user: Option<&str>, password: &str) -> Self {
        self.sentinel_credentials =
            Credentials { user: user.map(str::to_owned), password: Some(password.to_owned()) };
        self
    }

    /// Sets the number of the database. Default 0; a Cluster has no other.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for another one on a Cluster.
    pub fn database(mut self, number: u32) -> Result<Self> {
        if number != 0 && matches!(self.servers, Servers::Cluster { .. }) {
            return Err(invalid(
                format!("a Cluster has no database {number}"),
                "leave the number out, and separate applications by prefix",
            ));
        }
        self.database = i64::from(number);
        Ok(self)
    }

    /// Uses TLS and trusts the certificate authorities of the system.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a Unix socket.
    #[cfg(feature = "tls")]
    pub fn tls(mut self) -> Result<Self> {
        if matches!(self.servers, Servers::One(Address::Unix(_))) {
            return Err(invalid(
                "a Unix socket has no TLS".to_owned(),
                "connect without TLS: the socket is local",
            ));
        }
        self.tls.get_or_insert_default();
        Ok(self)
    }

    /// Uses TLS and trusts this certificate authority (PEM) instead of the system's.
    ///
    /// # Errors
    /// As for [`tls`](RedisConfig::tls).
    #[cfg(feature = "tls")]
    pub fn tls_authority(self, pem: impl Into<Vec<u8>>) -> Result<Self> {
        let mut config = self.tls()?;
        config.tls.get_or_insert_default().authority = Some(pem.into());
        Ok(config)
    }

    /// Uses TLS with a client certificate (both PEM).
    ///
    /// # Errors
    /// As for [`tls`](RedisConfig::tls).
    #[cfg(feature = "tls")]
    pub fn tls_client(self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Result<Self> {
        let mut config = self.tls()?;
        config.tls.get_or_insert_default().client = Some((certificate.into(), key.into()));
        Ok(config)
    }

    /// Sets the prefix of all keys and channels. Default `distlock:`. Programs that share a mutex with us find it at the key
    /// *prefix + name*; with an empty prefix that is the bare name.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for more than 128 bytes, for spaces or control characters, and for a `{` that begins no hash
    /// tag.
    pub fn prefix(mut self, prefix: &str) -> Result<Self> {
        self.keys = Keys::new(prefix)?;
        Ok(self)
    }

    /// Sets how long a reply may take. After that the connection is replaced, because a half-open socket looks like a slow server.
    /// Default 2 s. A renewal waits no longer than a third of the expiry, so that there is time to retry.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] below 10 ms or above 10 minutes.
    pub fn response_timeout(mut self, timeout: Duration) -> Result<Self> {
        self.response_timeout = check_timeout(timeout, "response timeout")?;
        Ok(self)
    }

    /// Sets how long it may take to connect and log in. Default 2 s.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] below 10 ms or above 10 minutes.
    pub fn connect_timeout(mut self, timeout: Duration) -> Result<Self> {
        self.connect_timeout = check_timeout(timeout, "connect timeout")?;
        Ok(self)
    }

    /// Sets how long the last token is kept: one key for all mutexes of a server, and one for each unused reader-writer lock,
    /// semaphore and fair mutex. Default 10 minutes. After that the server's clock alone keeps tokens rising.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] below one second or above one year.
    pub fn retention(mut self, retention: Duration) -> Result<Self> {
        if retention < Duration::from_secs(1) || retention > Duration::from_secs(365 * 24 * 3600) {
            return Err(invalid(
                format!("a retention of {retention:?} is not between one second and one year"),
                "use about 10 minutes: longer than the server's clock is ever set back",
            ));
        }
        self.retention = retention;
        Ok(self)
    }

    /// Sets how many replicas must confirm a grant or a renewal (WAIT) before it counts. Default 0. A replica that has not
    /// received a lock grants it again when it becomes master. Confirmation makes that rarer, not impossible, and costs a round
    /// trip between the servers each time.
    #[must_use]
    pub fn min_replicas(mut self, replicas: u32) -> Self {
        self.min_replicas = replicas;
        self
    }
}

pub(crate) fn invalid(what: String, advice: &'static str) -> Error {
    Error::new(ErrorKind::InvalidInput, what).doing("read the Redis options").advise(advice)
}

impl Default for RedisConfig {
    /// One server at `127.0.0.1:6379`.
    fn default() -> Self {
        RedisConfig::new(Servers::One(Address::Tcp("127.0.0.1".to_owned(), 6379)))
    }
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConfig")
            .field("servers", &self.servers)
            .field("login", &(self.credentials != Credentials::default()))
            .field("database", &self.database)
            .field("tls", &self.tls.is_some())
            .field("prefix", &shown_prefix(self.keys.prefix()))
            .field("response_timeout", &self.response_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("retention", &self.retention)
            .field("min_replicas", &self.min_replicas)
            .finish_non_exhaustive()
    }
}
