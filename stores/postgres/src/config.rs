//! Where the server is, which tables are ours, and how wake-ups travel. Everything is checked before anything is sent.

use std::fmt;
use std::time::Duration;

use distlock_core::store::StoreUrl;
use distlock_core::store::url::plain;
use distlock_core::{Error, ErrorKind, LockIds, Result};
use tokio_postgres::config::{Host, TargetSessionAttrs};

use crate::identifier::Identifier;
use crate::tls::TlsOptions;

/// How long the token of an unused name is remembered, unless set otherwise.
pub const DEFAULT_RETENTION: Duration = Duration::from_secs(3600);

/// After this long without a word from its client the server ends a session of ours, unless set otherwise.
pub const DEFAULT_SESSION_TIMEOUT: Duration = Duration::from_secs(15);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// After this long without an acknowledgement of what was sent a connection counts as dead.
const SILENCE: Duration = Duration::from_secs(10);
const DRIVERS_KEEPALIVE: Duration = Duration::from_secs(2 * 60 * 60);

/// Whether waiters are woken by `LISTEN` and `NOTIFY`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Listen {
    /// If the connection leads to the server itself. Behind a pooler such as PgBouncer, which may give each
    /// transaction another session, waiters poll.
    #[default]
    Auto,
    /// Always: behind a pooler in session mode that is right.
    On,
    /// Never: waiters poll.
    Off,
}

/// What the names of advisory locks mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyScheme {
    /// Any name; its key is a hash of it. See [`AdvisoryKey::of`](crate::AdvisoryKey::of).
    #[default]
    Hashed,
    /// A name is the key itself, as decimal numbers: `42` for a 64-bit key, `7,9` for a pair of 32-bit keys. For
    /// those who share keys with programs that call `pg_advisory_lock` themselves.
    Raw,
}

/// A PostgreSQL server and what we use of it.
///
/// ```
/// use distlock_postgres::PostgresConfig;
///
/// # fn main() -> distlock_core::Result<()> {
/// let config = PostgresConfig::from_url("postgres://app@db:5432/app?sslmode=verify-full")?
///     .schema("locks")?
///     .table("distribute_lock")?;
/// assert_eq!(config.to_string(), "postgres db:5432/app");
/// assert!(PostgresConfig::from_url("postgres://db/app")?.table("x; DROP TABLE y").is_err());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct PostgresConfig {
    pub(crate) driver: tokio_postgres::Config,
    pub(crate) tls: TlsOptions,
    pub(crate) schema: Identifier,
    pub(crate) table: Identifier,
    pub(crate) listen: Listen,
    pub(crate) create: bool,
    pub(crate) retention: Duration,
    pub(crate) keys: KeyScheme,
    pub(crate) session_timeout: Duration,
}

impl PostgresConfig {
    /// Reads a URL as libpq spells it, with our own parameters beside: `distlock.schema`, `distlock.table`,
    /// `distlock.listen` (`auto`, `on`, `off`), `distlock.create` (`on`, `off`), `distlock.retention` (such as `2h`; a bare
    /// number means seconds); and `distlock.keys` (`hashed`, `raw`) and `distlock.session_timeout` (such as `30s`) with the
    /// scheme `postgres+advisory`. How a URL is read: [`StoreUrl`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for anything it does not know. No text of the URL is part of the message.
    pub fn from_url(url: &str) -> Result<Self> {
        PostgresConfig::from_store_url(StoreUrl::parse(url)?)
    }

    /// For those who have the driver's own configuration already. TLS certificates are not part of it: they are
    /// read from a URL only.
    #[must_use]
    pub fn from_driver(driver: tokio_postgres::Config) -> Self {
        let tls = TlsOptions::of_mode(driver.get_ssl_mode());
        PostgresConfig::with_driver(driver, tls)
    }

    pub(crate) fn with_driver(mut driver: tokio_postgres::Config, tls: TlsOptions) -> Self {
        driver.ssl_mode(tls.driver_mode());
        if driver.get_hosts().is_empty() && driver.get_hostaddrs().is_empty() {
            driver.host("localhost");
        }
        if driver.get_connect_timeout().is_none() {
            driver.connect_timeout(CONNECT_TIMEOUT);
        }
        if driver.get_tcp_user_timeout().is_none() {
            driver.tcp_user_timeout(SILENCE);
        }
        if driver.get_keepalives_idle() == DRIVERS_KEEPALIVE {
            driver.keepalives_idle(Duration::from_secs(5));
            driver.keepalives_interval(Duration::from_secs(2));
            driver.keepalives_retries(3);
        }
        if driver.get_application_name().is_none() {
            driver.application_name(format!("distlock {}", LockIds::default_label()));
        }
        // Of several hosts only the one that takes writes is of use.
        if driver.get_target_session_attrs() == TargetSessionAttrs::Any && driver.get_hosts().len() > 1 {
            driver.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        PostgresConfig {
            driver,
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

    /// The schema of our tables. Default `public`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] unless it is made of letters, digits and `_`, does not begin with a digit, and
    /// has at most 63 bytes.
    pub fn schema(mut self, name: &str) -> Result<Self> {
        self.schema = Identifier::new("schema", name)?;
        Ok(self)
    }

    /// The lease table, whose name the others are derived from. Default `distribute_lock`.
    ///
    /// # Errors
    /// As for [`schema`](PostgresConfig::schema).
    pub fn table(mut self, name: &str) -> Result<Self> {
        self.table = Identifier::new("table", name)?;
        Ok(self)
    }

    /// Whether waiters are woken by the server. Default [`Listen::Auto`].
    #[must_use]
    pub fn listen(mut self, listen: Listen) -> Self {
        self.listen = listen;
        self
    }

    /// Whether missing tables are created on first use (the default) or are an error.
    #[must_use]
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// For how long the token of an unused name is remembered. Default an hour.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] below a minute: a statement that takes long must not meet a token that is
    /// forgotten already.
    pub fn retention(mut self, retention: Duration) -> Result<Self> {
        if retention < Duration::from_secs(60) {
            return Err(bad(format!("a retention of {retention:?} is below a minute")));
        }
        self.retention = retention;
        Ok(self)
    }

    /// After how long without a word from its client the server ends a session that holds advisory locks. Default 15 s;
    /// we send a word every third of it, one for each connection and not for each lock. A holder that stands still or
    /// is cut off for longer than this has lost its locks, and knows it. PostgreSQL 12 and 13 cannot do that: there a
    /// session ends with its connection only.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] below a second or above an hour.
    pub fn session_timeout(mut self, timeout: Duration) -> Result<Self> {
        if !(Duration::from_secs(1)..=Duration::from_secs(3600)).contains(&timeout) {
            return Err(bad(format!(
                "a session time-out of {timeout:?} is not between a second and an hour"
            )));
        }
        self.session_timeout = timeout;
        Ok(self)
    }

    /// What the names of advisory locks mean. Default [`KeyScheme::Hashed`].
    #[must_use]
    pub fn keys(mut self, keys: KeyScheme) -> Self {
        self.keys = keys;
        self
    }
}

fn bad(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidInput, what)
        .advise("write it like postgres://user@host:5432/database?distlock.table=distribute_lock")
}

/// `postgres db:5432/app`: hosts and database, nothing secret.
impl fmt::Display for PostgresConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("postgres ")?;
        let ports = self.driver.get_ports();
        let mut hosts: Vec<String> = self
            .driver
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
            hosts = self.driver.get_hostaddrs().iter().map(ToString::to_string).collect();
        }
        for (n, host) in hosts.iter().enumerate() {
            let port = ports.get(n).or(ports.first()).copied().unwrap_or(5432);
            write!(f, "{}{host}:{port}", if n > 0 { "," } else { "" })?;
        }
        match self.driver.get_dbname() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_parameters_and_the_drivers_are_told_apart() {
        let url = "postgres://u:pw@h1:1,h2:2/db?connect_timeout=3&distlock.schema=s&distlock.table=t\
                   &distlock.listen=off&distlock.create=off&distlock.retention=120";
        let config = PostgresConfig::from_url(url).unwrap();
        assert_eq!((config.schema.as_str(), config.table.as_str()), ("s", "t"));
        assert_eq!((config.listen, config.create), (Listen::Off, false));
        assert_eq!(config.retention, Duration::from_secs(120));
        assert_eq!(config.driver.get_connect_timeout(), Some(&Duration::from_secs(3)));
        assert_eq!(config.driver.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
        assert_eq!(config.to_string(), "postgres h1:1,h2:2/db");
        let advisory = PostgresConfig::from_url("postgres+advisory://h/db?distlock.keys=raw").unwrap();
        assert_eq!(advisory.keys, KeyScheme::Raw);
    }

    #[test]
    fn what_is_not_known_is_refused_and_no_password_shows() {
        for url in [
            "postgres://u:s3cret@h/db?distlock.tabel=x",
            "postgres://u:s3cret@h/db?distlock.keys=raw",
            "postgres+advisory://u:s3cret@h/db?distlock.listen=on",
            "postgres://u:s3cret@h/db?distlock.table=a%22b",
            "postgres://u:s3cret@h/db?distlock.table=",
            "postgres://u:s3cret@h/db?distlock.schema=1a",
            "postgres://u:s3cret@h/db?distlock.listen=maybe",
            "postgres://u:s3cret@h/db?distlock.retention=1",
            "postgres://u:s3cret@h/db?port=x",
            "postgres://u:s3cret@h/db?unheard=of",
            "postgres://u:s3cret@h:port/db",
            "postgres://u:s3cret@h/db?sslmode=never",
        ] {
            let error = PostgresConfig::from_url(url).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{url}: {error}");
            assert!(!format!("{error} {error:?}").contains("s3cret"), "{error}");
        }
        for url in ["postgres://u:s3cret@h/db", "postgres://s3cret@h", "postgres://h/db?password=s3cret"] {
            let config = PostgresConfig::from_url(url).unwrap();
            assert!(!format!("{config} {config:?}").contains("s3cret"));
        }
    }
}
