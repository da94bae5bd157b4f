//! The configuration: how to connect, and where the locks are kept. Everything is checked before anything is sent.

pub(crate) mod tls;
mod url;

use std::fmt;
use std::time::Duration;

use distlock_core::store::UrlOption;
use distlock_core::store::url::plain;
use distlock_core::{Error, ErrorKind, Result};
use mysql_async::{Opts, OptsBuilder};

use crate::identifier::{Identifier, Tables};
use tls::Tls;

/// The default name of the lock table, which the names of the others are made from.
pub const DEFAULT_TABLE: &str = "distribute_lock";

/// The default of [`MysqlConfig::retention`].
pub const DEFAULT_RETENTION: Duration = Duration::from_secs(3600);

/// The default of [`MysqlConfig::session_timeout`].
pub const DEFAULT_SESSION_TIMEOUT: Duration = Duration::from_secs(15);

/// The default of [`MysqlConfig::heartbeat_timeout`].
pub const DEFAULT_HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(3);

const TABLE: UrlOption = UrlOption {
    name: "table",
    value: "name",
    default: DEFAULT_TABLE,
    meaning: "the table of the mutexes; the other tables have its name with an ending",
};
const RETENTION: UrlOption = UrlOption {
    name: "retention",
    value: "duration",
    default: "1h",
    meaning: "how long the token of an unused name is remembered",
};
const SESSION_TIMEOUT: UrlOption = UrlOption {
    name: "session_timeout",
    value: "duration",
    default: "15s",
    meaning: "after this long without a word from its client a session ends and its locks are free",
};
const HEARTBEAT_TIMEOUT: UrlOption = UrlOption {
    name: "heartbeat_timeout",
    value: "duration",
    default: "3s",
    meaning: "a guard is lost if no heartbeat of its session was answered for this long; after a holder that did not \
              release, the next one waits this long, unless the holder's process has ended and ran on the same machine",
};

/// The `distlock.` options of `mysql://`.
pub(crate) const LEASE_OPTIONS: &[UrlOption] = &[TABLE, RETENTION];
/// The `distlock.` options of `mysql+session://`.
pub(crate) const SESSION_OPTIONS: &[UrlOption] = &[TABLE, RETENTION, SESSION_TIMEOUT, HEARTBEAT_TIMEOUT];

/// How long connecting may take.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const KEEPALIVE: Duration = Duration::from_secs(30);
/// Larger than any of our requests and replies. The server has a limit of its own.
const MAX_PACKET: usize = 64 << 20;

/// How to connect, and where the locks are kept.
///
/// ```
/// use distlock_core::store::StoreUrl;
/// use distlock_mysql::MysqlConfig;
///
/// # fn main() -> distlock_core::Result<()> {
/// let url = StoreUrl::parse("mysql://app:secret@db.example/orders?ssl-mode=VERIFY_IDENTITY&distlock.retention=2h")?;
/// let config = MysqlConfig::from_url(&url)?.table("order_locks")?;
/// assert!(config.table("bad`name").is_err());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct MysqlConfig {
    opts: Opts,
    tls: Option<Tls>,
    database: Option<Identifier>,
    table: Identifier,
    retention: Duration,
    session_timeout: Duration,
    heartbeat_timeout: Duration,
}

impl MysqlConfig {
    /// Connects with these options of the driver. Encryption is as they say.
    #[must_use]
    pub fn new(opts: impl Into<Opts>) -> Self {
        MysqlConfig::build(opts.into(), None)
    }

    fn build(opts: Opts, tls: Option<Tls>) -> Self {
        MysqlConfig {
            opts,
            tls,
            database: None,
            table: Identifier::distribute_lock(),
            retention: DEFAULT_RETENTION,
            session_timeout: DEFAULT_SESSION_TIMEOUT,
            heartbeat_timeout: DEFAULT_HEARTBEAT_TIMEOUT,
        }
    }

    /// The same tables and time limits on another server.
    #[cfg(feature = "sqlx")]
    pub(crate) fn on_server(self, opts: Opts, tls: Tls) -> Self {
        MysqlConfig { opts, tls: Some(tls), ..self }
    }

    #[cfg(feature = "sqlx")]
    pub(crate) fn opts(&self) -> &Opts {
        &self.opts
    }

    /// The database of the tables. Default: that of the connection.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a name with other characters than ASCII letters, digits, `_` and `-`.
    pub fn database(mut self, name: &str) -> Result<Self> {
        self.database = Some(Identifier::new("database", name)?);
        Ok(self)
    }

    /// The table of the mutexes, whose name the names of the others are made from. Default `distribute_lock`.
    ///
    /// # Errors
    /// As for [`database`](MysqlConfig::database).
    pub fn table(mut self, name: &str) -> Result<Self> {
        self.table = Identifier::new("table", name)?;
        Ok(self)
    }

    /// How long the token of an unused name is remembered. Default one hour. After that the server's clock alone keeps
    /// tokens rising.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] below a second or above a year.
    pub fn retention(mut self, retention: Duration) -> Result<Self> {
        check_range("retention", retention, Duration::from_secs(1), Duration::from_secs(365 * 24 * 3600))?;
        self.retention = retention;
        Ok(self)
    }

    /// After this long without a word from its client a session of [`MysqlSessionStore`](crate::MysqlSessionStore) ends, and
    /// its locks are free. Default 15 seconds; whole seconds.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] below two seconds or above an hour.
    pub fn session_timeout(mut self, timeout: Duration) -> Result<Self> {
        check_range("session time-out", timeout, Duration::from_secs(2), Duration::from_secs(3600))?;
        self.session_timeout = Duration::from_secs(timeout.as_secs());
        Ok(self)
    }

    /// A guard of [`MysqlSessionStore`](crate::MysqlSessionStore) is lost if no heartbeat of its session was answered for this
    /// long. Heartbeats are sent four times as often. After a holder that did not release (a crash, `KILL`, a restart of the
    /// server), the next client waits for the holder's time before it is granted the lock, unless it runs on the same machine and
    /// the kernel tells it that the holder's process has ended. Default 3 seconds. A shorter time recovers sooner, and loses guards
    /// when the server or the disk stalls for three quarters of it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] below 200 ms or above a minute.
    pub fn heartbeat_timeout(mut self, timeout: Duration) -> Result<Self> {
        check_range("heartbeat time-out", timeout, Duration::from_millis(200), Duration::from_secs(60))?;
        self.heartbeat_timeout = timeout;
        Ok(self)
    }

    /// The retention.
    #[must_use]
    pub fn get_retention(&self) -> Duration {
        self.retention
    }

    /// The session time-out.
    #[must_use]
    pub fn get_session_timeout(&self) -> Duration {
        self.session_timeout
    }

    /// The heartbeat time-out.
    #[must_use]
    pub fn get_heartbeat_timeout(&self) -> Duration {
        self.heartbeat_timeout
    }

    /// The names to use, given the database of the connection.
    pub(crate) fn tables(&self, connected_to: Option<&str>) -> Result<Tables> {
        let database = match (&self.database, connected_to) {
            (Some(database), _) => database.clone(),
            (None, Some(name)) => Identifier::new("database", name)?,
            (None, None) => {
                return Err(Error::new(ErrorKind::InvalidInput, "no database is selected")
                    .advise("name one: mysql://user@host/database"));
            }
        };
        Ok(Tables::new(database, self.table.clone()))
    }

    pub(crate) fn connected_to(&self) -> Option<&str> {
        self.opts.db_name()
    }

    /// Where the locks are, without secrets.
    pub(crate) fn location(&self) -> String {
        let server = match self.opts.socket() {
            Some(path) => path.to_owned(),
            None => format!("{}:{}", self.opts.ip_or_hostname(), self.opts.tcp_port()),
        };
        let database = self.database.as_ref().map(Identifier::as_str).or(self.opts.db_name());
        format!("mysql {server}/{}.{}", plain(database.unwrap_or_default()), plain(self.table.as_str()))
    }

    /// The options for the driver, with the certificates read.
    pub(crate) fn driver_options(&self) -> Result<Opts> {
        let mut builder = OptsBuilder::from_opts(self.opts.clone())
            // Otherwise the driver leaves a loopback address for the server's socket: past a tunnel, and without TLS.
            .prefer_socket(false)
            .tcp_nodelay(true)
            .tcp_keepalive(Some(self.opts.tcp_keepalive().unwrap_or(KEEPALIVE)))
            .max_allowed_packet(Some(self.opts.max_allowed_packet().unwrap_or(MAX_PACKET)))
            .wait_timeout(Some(self.opts.wait_timeout().unwrap_or(0)));
        if let Some(tls) = &self.tls {
            builder = builder.ssl_opts(tls.options()?);
        }
        Ok(builder.into())
    }

    /// Whether the network sees what is sent.
    pub(crate) fn is_plain_text(&self) -> bool {
        let encrypted = match &self.tls {
            Some(tls) => tls.is_encrypted(),
            None => self.opts.ssl_opts().is_some(),
        };
        !encrypted && self.opts.socket().is_none() && !self.opts.addr_is_loopback()
    }
}

fn check_range(what: &str, value: Duration, least: Duration, most: Duration) -> Result<()> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    let what = format!("a {what} of {value:?} is not between {least:?} and {most:?}");
    Err(Error::new(ErrorKind::InvalidInput, what).advise("the default is a good choice"))
}

/// A server at `localhost:3306`, and the default names. For
/// [`MysqlStore::with_client`](crate::MysqlStore::with_client), which uses the names alone.
impl Default for MysqlConfig {
    fn default() -> Self {
        MysqlConfig::new(OptsBuilder::default())
    }
}

/// Without the connection: it has secrets.
impl fmt::Debug for MysqlConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MysqlConfig")
            .field("location", &self.location())
            .field("retention", &self.retention)
            .field("session_timeout", &self.session_timeout)
            .field("heartbeat_timeout", &self.heartbeat_timeout)
            .finish_non_exhaustive()
    }
}
