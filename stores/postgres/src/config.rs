//! The typed options of both stores, and the tables of their URL options. Everything is checked before anything is sent.

pub(crate) mod tls;
mod url;

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use distlock_core::store::UrlOption;
use distlock_core::store::url::plain;
use distlock_core::{Error, ErrorKind, LockIds, Result};
use tokio_postgres::config::{Host, TargetSessionAttrs};

use self::tls::TlsOptions;
use crate::identifier::Identifier;

/// The default of [`PostgresConfig::retention`].
pub const DEFAULT_RETENTION: Duration = Duration::from_secs(3600);

/// The default of [`PostgresConfig::session_timeout`].
pub const DEFAULT_SESSION_TIMEOUT: Duration = Duration::from_secs(15);

const SCHEMA: UrlOption =
    UrlOption { name: "schema", value: "name", default: "public", meaning: "the schema of the tables" };
const TABLE: UrlOption = UrlOption {
    name: "table",
    value: "name",
    default: "distribute_lock",
    meaning: "the lease table; the names of the other tables are derived from it",
};
const CREATE: UrlOption = UrlOption {
    name: "create",
    value: "on|off",
    default: "on",
    meaning: "whether missing tables are created on first use",
};

/// The `distlock.` options of a URL of the lease table.
pub(crate) const LEASE_OPTIONS: &[UrlOption] = &[
    SCHEMA,
    TABLE,
    CREATE,
    UrlOption {
        name: "listen",
        value: "auto|on|off",
        default: "auto",
        meaning: "whether LISTEN and NOTIFY wake waiters; auto: unless behind a pooler",
    },
    UrlOption {
        name: "retention",
        value: "duration",
        default: "1h",
        meaning: "how long the token of an unused name is kept; at least 1m",
    },
];

/// The `distlock.` options of a URL of advisory locks.
pub(crate) const ADVISORY_OPTIONS: &[UrlOption] = &[
    SCHEMA,
    TABLE,
    CREATE,
    UrlOption {
        name: "keys",
        value: "hashed|raw",
        default: "hashed",
        meaning: "whether a name is hashed to a key, or is the key itself: 42, or 7,9",
    },
    UrlOption {
        name: "session_timeout",
        value: "duration",
        default: "15s",
        meaning: "after how long without a message from its client the server ends a session; 1s to 1h",
    },
];

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection whose data is not acknowledged for this long is dead.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(10);
/// The driver's own default.
const DRIVER_KEEPALIVE: Duration = Duration::from_secs(2 * 60 * 60);

/// Whether `LISTEN` and `NOTIFY` wake waiters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Listen {
    /// If the connection leads to the server itself. Behind a pooler such as PgBouncer, which may run each transaction in
    /// another session, waiters poll.
    #[default]
    Auto,
    /// Always. Right behind a pooler in session mode.
    On,
    /// Never: waiters poll.
    Off,
}

/// How the name of an advisory lock becomes its key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyScheme {
    /// Any name; its key is a hash of it. See [`AdvisoryKey::of`](crate::AdvisoryKey::of).
    #[default]
    Hashed,
    /// The name is the key, in decimal: `42` for a 64-bit key, `7,9` for a pair of 32-bit keys. To share keys with programs
    /// that call `pg_advisory_lock` themselves.
    Raw,
}

/// The options of a [`PostgresStore`](crate::PostgresStore) or an [`AdvisoryStore`](crate::AdvisoryStore).
///
/// ```
/// use distlock_core::store::StoreUrl;
/// use distlock_postgres::PostgresConfig;
///
/// # fn main() -> distlock_core::Result<()> {
/// let url = StoreUrl::parse("postgres://app@db:5432/app?sslmode=verify-full&distlock.retention=2h")?;
/// let config = PostgresConfig::from_url(&url)?.schema("locks")?.table("distribute_lock")?;
/// assert_eq!(config.to_string(), "postgres db:5432/app");
/// assert!(PostgresConfig::default().table("x; DROP TABLE y").is_err());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct PostgresConfig {
    pub(crate) client: tokio_postgres::Config,
    pub(crate) tls: TlsOptions,
    pub(crate) schema: Identifier,
    pub(crate) table: Identifier,
    pub(crate) listen: Listen,
    pub(crate) create: bool,
    pub(crate) retention: Duration,
    pub(crate) keys: KeyScheme,
    pub(crate) session_timeout: Duration,
}

/// A server on this machine, at the default port.
impl Default for PostgresConfig {
    fn default() -> Self {
        PostgresConfig::new(tokio_postgres::Config::new())
    }
}

impl PostgresConfig {
    /// Connects with these options of the driver. Time limits that they leave open are shorter than the driver's own. They have
    /// no certificates: a URL has.
    #[must_use]
    pub fn new(client: tokio_postgres::Config) -> Self {
        let tls = TlsOptions::unverified(client.get_ssl_mode());
        PostgresConfig::with_tls(client, tls)
    }

    fn with_tls(client: tokio_postgres::Config, tls: TlsOptions) -> Self {
        PostgresConfig {
            client: with_defaults(client, &tls),
            tls,
            schema: Identifier::PUBLIC,
            table: Identifier::DISTRIBUTE_LOCK,
            listen: Listen::Auto,
            create: true,
            retention: DEFAULT_RETENTION,
            keys: KeyScheme::Hashed,
            session_timeout: DEFAULT_SESSION_TIMEOUT,
        }
    }

    /// The same tables and options on the server of another configuration of the driver.
    pub(crate) fn on(self, client: tokio_postgres::Config) -> Self {
        let tls = TlsOptions::unverified(client.get_ssl_mode());
        self.on_with_tls(client, tls)
    }

    pub(crate) fn on_with_tls(self, client: tokio_postgres::Config, tls: TlsOptions) -> Self {
        PostgresConfig { client: with_defaults(client, &tls), tls, ..self }
    }

    /// The schema of our tables. Default `public`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] unless it consists of letters, digits and `_`, does not begin with a digit, and has at most
    /// 63 bytes.
    pub fn schema(mut self, name: &str) -> Result<Self> {
        self.schema = Identifier::new("schema", name)?;
        Ok(self)
    }

    /// The lease table. The names of the other tables are derived from it. Default `distribute_lock`.
    ///
    /// # Errors
    /// As for [`schema`](PostgresConfig::schema).
    pub fn table(mut self, name: &str) -> Result<Self> {
        self.table = Identifier::new("table", name)?;
        Ok(self)
    }

    /// Whether the server wakes waiters. Default [`Listen::Auto`].
    #[must_use]
    pub fn listen(mut self, listen: Listen) -> Self {
        self.listen = listen;
        self
    }

    /// Whether missing tables are created on first use. If not, they are an error. Default `true`.
    #[must_use]
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// How long the token of an unused name is kept. Default one hour.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] below a minute: a token must outlast the slowest statement.
    pub fn retention(mut self, retention: Duration) -> Result<Self> {
        if retention < Duration::from_secs(60) {
            return Err(invalid(format!("a retention of {retention:?} is below a minute")));
        }
        self.retention = retention;
        Ok(self)
    }

    /// After how long without a message from its client the server ends a session that holds advisory locks. Default 15 s. The
    /// client sends a heartbeat every third of it, one for each connection and not for each lock. A holder that is stalled or
    /// cut off for longer has lost its locks, and learns of it. PostgreSQL 12 and 13 have no such limit: there a session ends
    /// with its connection only.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] below a second or above an hour.
    pub fn session_timeout(mut self, timeout: Duration) -> Result<Self> {
        if !(Duration::from_secs(1)..=Duration::from_secs(3600)).contains(&timeout) {
            return Err(invalid(format!(
                "a session time-out of {timeout:?} is not between a second and an hour"
            )));
        }
        self.session_timeout = timeout;
        Ok(self)
    }

    /// How the name of an advisory lock becomes its key. Default [`KeyScheme::Hashed`].
    #[must_use]
    pub fn keys(mut self, keys: KeyScheme) -> Self {
        self.keys = keys;
        self
    }
}

/// Fills in what the driver's options leave open.
fn with_defaults(mut client: tokio_postgres::Config, tls: &TlsOptions) -> tokio_postgres::Config {
    client.ssl_mode(tls.driver_mode());
    if client.get_hosts().is_empty() && client.get_hostaddrs().is_empty() {
        client.host("localhost");
    }
    if client.get_connect_timeout().is_none() {
        client.connect_timeout(CONNECT_TIMEOUT);
    }
    if client.get_tcp_user_timeout().is_none() {
        client.tcp_user_timeout(TCP_USER_TIMEOUT);
    }
    if client.get_keepalives_idle() == DRIVER_KEEPALIVE {
        client.keepalives_idle(Duration::from_secs(5));
        client.keepalives_interval(Duration::from_secs(2));
        client.keepalives_retries(3);
    }
    if client.get_application_name().is_none() {
        client.application_name(format!("distlock {}", LockIds::default_label()));
    }
    // Of several hosts only the one that takes writes can serve us.
    if client.get_target_session_attrs() == TargetSessionAttrs::Any && client.get_hosts().len() > 1 {
        client.target_session_attrs(TargetSessionAttrs::ReadWrite);
    }
    client
}

fn invalid(what: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidInput, what).advise(url::SPELLING)
}

/// `postgres db:5432/app`: hosts and database, no secrets.
impl fmt::Display for PostgresConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("postgres ")?;
        let ports = self.client.get_ports();
        let mut hosts: Vec<String> = self
            .client
            .get_hosts()
            .iter()
            .map(|host| match host {
                Host::Tcp(name) if name.contains(':') => format!("[{name}]"),
                Host::Tcp(name) => name.clone(),
                #[cfg(unix)]
                Host::Unix(path) => path.display().to_string(),
            })
            .collect();
        if hosts.is_empty() {
            hosts = self.client.get_hostaddrs().iter().map(ToString::to_string).collect();
        }
        for (n, host) in hosts.iter().enumerate() {
            let port = ports.get(n).or(ports.first()).copied().unwrap_or(5432);
            write!(f, "{}{host}:{port}", if n > 0 { "," } else { "" })?;
        }
        match self.client.get_dbname() {
            Some(database) => write!(f, "/{}", plain(database)),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for PostgresConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresConfig")
            .field("server", &self.to_string())
            .field("schema", &self.schema)
            .field("table", &self.table)
            .field("listen", &self.listen)
            .finish_non_exhaustive()
    }
}
