//! The typed options of the store, and the table of its URL options.

mod url;

use std::fmt;
use std::time::Duration;

use distlock_core::store::UrlOption;
use distlock_core::store::support::config::{
    Certificates, TLS_CA, TLS_CERT, TLS_KEY, check_timeout, shown_prefix, write_host_and_port,
};
use distlock_core::store::url::Secret;
use distlock_core::{Error, ErrorKind, Result};

use crate::client::{Limits, Login};
use crate::keys::{DEFAULT_PREFIX, Keys};

/// The longest prefix, in bytes.
const MAX_PREFIX: usize = 256;

/// The `distlock.` options of a URL.
pub(crate) const OPTIONS: &[UrlOption] = &[
    UrlOption { name: "prefix", value: "text", default: DEFAULT_PREFIX, meaning: "the prefix of all keys" },
    UrlOption {
        name: "response_timeout",
        value: "duration",
        default: "2s",
        meaning: "how long a reply may take before the next endpoint is tried",
    },
    UrlOption {
        name: "connect_timeout",
        value: "duration",
        default: "2s",
        meaning: "how long it may take to connect to an endpoint",
    },
    UrlOption {
        name: "failover_timeout",
        value: "duration",
        default: "4500ms",
        meaning: "how long a request is tried in all, on all endpoints",
    },
    UrlOption {
        name: "tls",
        value: "on|off",
        default: "off",
        meaning: "whether to use TLS; on if certificates are given",
    },
    TLS_CA,
    TLS_CERT,
    TLS_KEY,
];

/// Where a member of the cluster listens for clients.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_host_and_port(f, &self.host, self.port)
    }
}

/// The options of an [`EtcdStore`](crate::EtcdStore).
///
/// ```
/// use std::time::Duration;
/// use distlock_core::store::StoreUrl;
/// use distlock_etcd::EtcdConfig;
///
/// # fn main() -> distlock_core::Result<()> {
/// let url = StoreUrl::parse("etcd://locks:secret@etcd-1:2379,etcd-2:2379,etcd-3:2379")?;
/// let config = EtcdConfig::from_url(&url)?.prefix("app/")?.response_timeout(Duration::from_secs(1))?;
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct EtcdConfig {
    pub(crate) endpoints: Vec<Address>,
    pub(crate) login: Option<Login>,
    /// `None` for connections without TLS.
    pub(crate) tls: Option<Certificates>,
    pub(crate) keys: Keys,
    pub(crate) response_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) failover_timeout: Duration,
}

impl EtcdConfig {
    /// The default options for these endpoints (host and port): no login, no TLS, prefix `distlock/`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] without an endpoint.
    pub fn new<H: Into<String>>(endpoints: impl IntoIterator<Item = (H, u16)>) -> Result<Self> {
        let endpoints: Vec<Address> =
            endpoints.into_iter().map(|(host, port)| Address { host: host.into(), port }).collect();
        if endpoints.is_empty() {
            return Err(invalid(
                "there is no endpoint".to_owned(),
                "name at least one member of the cluster",
            ));
        }
        Ok(EtcdConfig {
            endpoints,
            login: None,
            tls: None,
            keys: Keys::new(DEFAULT_PREFIX),
            response_timeout: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(2),
            failover_timeout: Duration::from_millis(4500),
        })
    }

    /// Sets the user and the password.
    #[must_use]
    pub fn login(mut self, user: &str, password: &str) -> Self {
        self.login = Some(Login { user: user.to_owned(), password: Secret::new(password) });
        self
    }

    /// Uses TLS and trusts the certificate authorities of the system.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls.get_or_insert_default();
        self
    }

    /// Uses TLS and trusts this certificate authority (PEM) instead of the system's.
    #[must_use]
    pub fn tls_authority(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.tls.get_or_insert_default().authority = Some(pem.into());
        self
    }

    /// Uses TLS with a client certificate (both PEM). Servers with `--client-cert-auth` take its common name as the user.
    #[must_use]
    pub fn tls_client(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.tls.get_or_insert_default().client = Some((certificate.into(), key.into()));
        self
    }

    /// Sets the prefix of all keys. Default `distlock/`. Applications with different prefixes never meet, unless one prefix
    /// begins with the other.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if it is longer than 256 bytes or has control characters.
    pub fn prefix(mut self, prefix: &str) -> Result<Self> {
        if prefix.len() > MAX_PREFIX || prefix.chars().any(char::is_control) {
            return Err(invalid(
                format!("the prefix is longer than {MAX_PREFIX} bytes or has control characters"),
                "use a short prefix such as app/",
            ));
        }
        self.keys = Keys::new(prefix);
        Ok(self)
    }

    /// Sets how long a reply may take before the next endpoint is tried. Default two seconds.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if it is not between 10 ms and 10 minutes.
    pub fn response_timeout(mut self, timeout: Duration) -> Result<Self> {
        self.response_timeout = check_timeout(timeout, "response time-out")?;
        Ok(self)
    }

    /// Sets how long it may take to connect to an endpoint. Default two seconds.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if it is not between 10 ms and 10 minutes.
    pub fn connect_timeout(mut self, timeout: Duration) -> Result<Self> {
        self.connect_timeout = check_timeout(timeout, "connect time-out")?;
        Ok(self)
    }

    /// Sets how long a request is tried in all, on all endpoints, before it fails. Default 4.5 seconds: longer than an
    /// election, and shorter than the default request time-out of the engine.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if it is not between 10 ms and 10 minutes.
    pub fn failover_timeout(mut self, timeout: Duration) -> Result<Self> {
        self.failover_timeout = check_timeout(timeout, "fail-over time-out")?;
        Ok(self)
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits { reply: self.response_timeout, total: self.failover_timeout }
    }
}

pub(crate) fn invalid(what: String, advice: &'static str) -> Error {
    Error::new(ErrorKind::InvalidInput, what).doing("read the etcd options").advise(advice)
}

impl fmt::Debug for EtcdConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdConfig")
            .field("endpoints", &self.endpoints)
            .field("login", &self.login.is_some())
            .field("tls", &self.tls.is_some())
            .field("prefix", &shown_prefix(self.keys.prefix()))
            .field("response_timeout", &self.response_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("failover_timeout", &self.failover_timeout)
            .finish()
    }
}
