//! Which servers, and how to talk to them.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use distlock_core::{Error, ErrorKind, Result};

use crate::keys::Keys;

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
            Address::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp(host, port) => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Which servers keep the locks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Servers {
    /// One server.
    One(Address),
    /// The master that sentinels know by a name.
    Sentinel {
        /// The sentinels; one that answers is enough.
        sentinels: Vec<Address>,
        /// The name of the master.
        master: String,
    },
    /// A Cluster.
    Cluster {
        /// Some of its nodes; the others are found.
        seeds: Vec<Address>,
    },
}

/// User and password.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

/// The certificates of a secure connection, in PEM.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Certificates {
    pub(crate) authority: Option<Vec<u8>>,
    pub(crate) client: Option<(Vec<u8>, Vec<u8>)>,
}

/// Which servers, and how to talk to them.
///
/// ```
/// use std::time::Duration;
/// use distlock_redis::RedisConfig;
///
/// # fn main() -> distlock_core::Result<()> {
/// let config = RedisConfig::parse("redis://locks:secret@db.internal:6379/2")?
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
    /// `None` for a connection in the clear.
    pub(crate) tls: Option<Certificates>,
    pub(crate) keys: Keys,
    pub(crate) response_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) retention: Duration,
    pub(crate) min_replicas: u32,
    /// Whether a release may grant a mutex to who waits first. Off on the nodes of a quorum: each would grant to
    /// somebody else.
    pub(crate) grants_on_release: bool,
}

impl RedisConfig {
    /// These servers with the defaults: no password, database 0, in the clear, prefix `distlock:`.
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

    /// The user and the password to log in with. Without a user it is the one called `default`.
    #[must_use]
    pub fn login(mut self, user: Option<&str>, password: &str) -> Self {
        self.credentials = Credentials { user: user.map(str::to_owned), password: Some(password.to_owned()) };
        self
    }

    /// The user and the password of the sentinels, if they want any.
    #[must_use]
    pub fn sentinel_login(mut self, user: Option<&str>, password: &str) -> Self {
        self.sentinel_credentials =
            Credentials { user: user.map(str::to_owned), password: Some(password.to_owned()) };
        self
    }

    /// The number of the database. Default 0, and a Cluster has no other.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for another one on a Cluster.
    pub fn database(mut self, number: u32) -> Result<Self> {
        if number != 0 && matches!(self.servers, Servers::Cluster { .. }) {
            return Err(refuse(
                format!("a Cluster has no database {number}"),
                "leave the number out, and keep applications apart by prefix",
            ));
        }
        self.database = i64::from(number);
        Ok(self)
    }

    /// Secure connections, checked against the system's certificate authorities.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a Unix socket.
    #[cfg(feature = "tls")]
    pub fn tls(mut self) -> Result<Self> {
        if matches!(self.servers, Servers::One(Address::Unix(_))) {
            return Err(refuse("a Unix socket has no TLS".to_owned(), "connect in the clear: it is local"));
        }
        self.tls.get_or_insert_default();
        Ok(self)
    }

    /// Secure connections, checked against this certificate authority (PEM) instead of the system's.
    ///
    /// # Errors
    /// As for [`tls`](RedisConfig::tls).
    #[cfg(feature = "tls")]
    pub fn tls_authority(self, pem: impl Into<Vec<u8>>) -> Result<Self> {
        let mut config = self.tls()?;
        config.tls.get_or_insert_default().authority = Some(pem.into());
        Ok(config)
    }

    /// Secure connections in which we show a certificate of our own (both PEM).
    ///
    /// # Errors
    /// As for [`tls`](RedisConfig::tls).
    #[cfg(feature = "tls")]
    pub fn tls_client(self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Result<Self> {
        let mut config = self.tls()?;
        config.tls.get_or_insert_default().client = Some((certificate.into(), key.into()));
        Ok(config)
    }

    /// What all keys and channels begin with. Default `distlock:`. Programs that share a mutex with us find it at
    /// the key *prefix + name*; with an empty prefix that is the bare name.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] above 128 bytes, with spaces or control characters, or with a `{` that begins no
    /// whole hash tag.
    pub fn prefix(mut self, prefix: &str) -> Result<Self> {
        self.keys = Keys::new(prefix)?;
        Ok(self)
    }

    /// How long an answer may take. Then the connection is given up and made anew, since a socket whose other end
    /// is gone looks like a slow server. Default 2 s. An extension waits no longer than a third of the expiry, so
    /// that there is time for another try.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] below 10 ms or above ten minutes.
    pub fn response_timeout(mut self, timeout: Duration) -> Result<Self> {
        self.response_timeout = checked(timeout, "response time-out")?;
        Ok(self)
    }

    /// How long it may take to connect and log in. Default 2 s.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] below 10 ms or above ten minutes.
    pub fn connect_timeout(mut self, timeout: Duration) -> Result<Self> {
        self.connect_timeout = checked(timeout, "connect time-out")?;
        Ok(self)
    }

    /// For how long the token of an unused name is kept (as one small key). Default ten minutes. After that
    /// the server's clock alone keeps tokens rising.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] below a second or above a year.
    pub fn retention(mut self, retention: Duration) -> Result<Self> {
        if retention < Duration::from_secs(1) || retention > Duration::from_secs(365 * 24 * 3600) {
            return Err(refuse(
                format!("a retention of {retention:?} is not between a second and a year"),
                "take ten minutes or so: longer than the server's clock is ever set back",
            ));
        }
        self.retention = retention;
        Ok(self)
    }

    /// How many replicas must confirm a grant or an extension (WAIT) before it counts. Default 0: none. A replica
    /// that has not seen a lock gives it away again when it becomes master; this makes that rarer, not impossible,
    /// and costs a round trip between the servers each time.
    #[must_use]
    pub fn min_replicas(mut self, replicas: u32) -> Self {
        self.min_replicas = replicas;
        self
    }
}

fn checked(timeout: Duration, what: &str) -> Result<Duration> {
    if timeout < Duration::from_millis(10) || timeout > Duration::from_secs(600) {
        return Err(refuse(
            format!("a {what} of {timeout:?} is not between 10 ms and ten minutes"),
            "take a few times the slowest round trip",
        ));
    }
    Ok(timeout)
}

pub(crate) fn refuse(what: String, advice: &'static str) -> Error {
    Error::new(ErrorKind::InvalidInput, what).doing("read the Redis options").advise(advice)
}

/// A prefix, unless it has characters that a URL in the wrong place would have.
fn shown(prefix: &str) -> &str {
    let is_usual = prefix.chars().all(|c| c.is_alphanumeric() || ":{}._-".contains(c));
    if is_usual { prefix } else { "***" }
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConfig")
            .field("servers", &self.servers)
            .field("login", &(self.credentials != Credentials::default()))
            .field("database", &self.database)
            .field("tls", &self.tls.is_some())
            .field("prefix", &shown(self.keys.prefix()))
            .field("response_timeout", &self.response_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("retention", &self.retention)
            .field("min_replicas", &self.min_replicas)
            .finish_non_exhaustive()
    }
}
