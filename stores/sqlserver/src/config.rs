//! The configuration: how to connect, and where holders are recorded. Everything is checked before anything is sent.

mod ado;
mod url;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::store::UrlOption;
use distlock_core::store::support::config::write_host_and_port;
use distlock_core::store::url::{Secret, plain};
use distlock_core::{Error, ErrorKind, Result};

use crate::identifier::{Identifier, Names};

/// The default name that the names of the table and the sequence are made from.
pub const DEFAULT_TABLE: &str = "distribute_lock";
/// The default schema.
pub const DEFAULT_SCHEMA: &str = "dbo";
/// The default of [`SqlServerConfig::principal`].
pub const DEFAULT_PRINCIPAL: &str = "public";
/// The default of [`SqlServerConfig::heartbeat_timeout`].
pub const DEFAULT_HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(3);

pub(crate) const PORT: u16 = 1433;

/// The `distlock.` options of `sqlserver://`.
pub(crate) const OPTIONS: &[UrlOption] = &[
    UrlOption {
        name: "schema",
        value: "name",
        default: DEFAULT_SCHEMA,
        meaning: "the schema of the table and the sequence",
    },
    UrlOption {
        name: "table",
        value: "name",
        default: DEFAULT_TABLE,
        meaning: "what the names of the table, the sequence and the locks begin with",
    },
    UrlOption {
        name: "principal",
        value: "name",
        default: DEFAULT_PRINCIPAL,
        meaning: "the database principal whose members may take the locks; all clients must name the same one",
    },
    UrlOption {
        name: "tokens",
        value: "on|off",
        default: "on",
        meaning: "off: no table and no sequence are used, every token is 0, and there are no semaphores and no lists of holders",
    },
    UrlOption {
        name: "heartbeat_timeout",
        value: "duration",
        default: "3s",
        meaning: "a guard is lost if no heartbeat of its session was answered for this long; the next holder waits this long if \
                  the session ended and its client may not know",
    },
];

/// How a connection is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encrypt {
    /// TLS before anything else is said (TDS 8.0).
    Strict,
    Mandatory,
    /// The login alone; everything else is plain text.
    LoginOnly,
    Plaintext,
}

/// Who logs in.
#[derive(Clone, Default)]
pub(crate) enum Login {
    #[default]
    None,
    Sql {
        user: String,
        password: Secret,
    },
    /// Of Azure AD (Entra).
    AccessToken(Secret),
    AccessTokenFrom(TokenSource),
}

type TokenFuture = Pin<Box<dyn Future<Output = Result<String>> + Send>>;

/// Where access tokens come from, since they expire.
#[derive(Clone)]
pub(crate) struct TokenSource(Arc<dyn Fn() -> TokenFuture + Send + Sync>);

impl TokenSource {
    pub(crate) async fn token(&self) -> Result<Secret> {
        (self.0)().await.map(Secret::new)
    }
}

/// How to connect, and where holders are recorded.
///
/// ```
/// use distlock_core::store::StoreUrl;
/// use distlock_sqlserver::SqlServerConfig;
///
/// # fn main() -> distlock_core::Result<()> {
/// let url = StoreUrl::parse("sqlserver://app:secret@db.example/orders?distlock.schema=locks")?;
/// let config = SqlServerConfig::from_url(&url)?.table("order_locks")?;
/// let config = SqlServerConfig::from_connection_string("Server=tcp:db.example,1433;Database=orders;User Id=app;Password=secret")?;
/// assert!(config.table("bad]name").is_err());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct SqlServerConfig {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) instance: Option<String>,
    pub(crate) database: Option<String>,
    pub(crate) login: Login,
    pub(crate) encrypt: Encrypt,
    /// Any certificate is accepted.
    pub(crate) trust_any: bool,
    /// Certificates in PEM or DER that are trusted beside the system's.
    pub(crate) trust_ca: Option<Vec<u8>>,
    pub(crate) host_in_certificate: Option<String>,
    pub(crate) application_name: String,
    pub(crate) multi_subnet_failover: bool,
    pub(crate) names: Names,
    pub(crate) principal: String,
    pub(crate) tokens: bool,
    pub(crate) heartbeat_timeout: Duration,
}

impl SqlServerConfig {
    /// A server at this host, with encryption. The port is 1433.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if the built-in names cannot be used, which does not happen.
    pub fn new(host: impl Into<String>) -> Result<Self> {
        Ok(SqlServerConfig {
            host: host.into(),
            port: PORT,
            instance: None,
            database: None,
            login: Login::None,
            encrypt: Encrypt::Mandatory,
            trust_any: false,
            trust_ca: None,
            host_in_certificate: None,
            application_name: "distlock".to_owned(),
            multi_subnet_failover: false,
            names: Names {
                schema: Identifier::new("schema", DEFAULT_SCHEMA)?,
                table: Identifier::new("table", DEFAULT_TABLE)?,
            },
            principal: DEFAULT_PRINCIPAL.to_owned(),
            tokens: true,
            heartbeat_timeout: DEFAULT_HEARTBEAT_TIMEOUT,
        })
    }

    /// The port. Default 1433.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self.instance = None;
        self
    }

    /// The database.
    #[must_use]
    pub fn database(mut self, name: impl Into<String>) -> Self {
        self.database = Some(name.into());
        self
    }

    /// Logs in as a user of the server.
    #[must_use]
    pub fn login(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.login = Login::Sql { user: user.into(), password: Secret::new(password) };
        self
    }

    /// Logs in with an access token of Azure AD (Entra). It expires, and sessions that are opened later fail then: a program
    /// that runs for long uses [`access_token_from`](SqlServerConfig::access_token_from).
    #[must_use]
    pub fn access_token(mut self, token: impl Into<String>) -> Self {
        self.login = Login::AccessToken(Secret::new(token));
        self
    }

    /// Logs in with an access token that is asked for whenever a session is opened.
    #[must_use]
    pub fn access_token_from<F>(mut self, source: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<String>> + Send + 'static,
    {
        self.login = Login::AccessTokenFrom(TokenSource(Arc::new(move || Box::pin(source()))));
        self
    }

    /// Connects to all addresses of the host at once: for availability groups in several subnets. Default off.
    #[must_use]
    pub fn multi_subnet_failover(mut self, on: bool) -> Self {
        self.multi_subnet_failover = on;
        self
    }

    /// The schema of the table and the sequence. Default `dbo`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a name with other characters than ASCII letters, digits, `_` and `-`.
    pub fn schema(mut self, name: &str) -> Result<Self> {
        self.names.schema = Identifier::new("schema", name)?;
        self.check_names()
    }

    /// What the names of the table, the sequence and the locks begin with. Default `distribute_lock`.
    ///
    /// # Errors
    /// As for [`schema`](SqlServerConfig::schema).
    pub fn table(mut self, name: &str) -> Result<Self> {
        self.names.table = Identifier::new("table", name)?;
        self.check_names()
    }

    /// Both stand in the name of each lock, which has 255 characters at most.
    fn check_names(self) -> Result<Self> {
        if self.names.schema.as_str().len() + self.names.table.as_str().len() <= 120 {
            return Ok(self);
        }
        Err(Error::new(
            ErrorKind::InvalidInput,
            "the names of the schema and of the table are too long together",
        )
        .advise("use at most 120 characters for both"))
    }

    /// The database principal whose members may take the locks: `public` (the default), or a role. Locks of different principals
    /// do not exclude each other, so all clients must name the same one.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for an empty name, or one of more than 32 characters.
    pub fn principal(mut self, name: &str) -> Result<Self> {
        // `sp_getapplock` declares the parameter as sysname; a compatible server cuts it off at 32 characters.
        if name.is_empty() || name.chars().count() > 32 || name.chars().any(char::is_control) {
            return Err(Error::new(ErrorKind::InvalidInput, "the name of the principal cannot be used")
                .advise("use the name of a role or user of the database, with at most 32 characters"));
        }
        self.principal = name.to_owned();
        Ok(self)
    }

    /// Off: for logins that may not write. No table and no sequence are used. Every token is 0, so the resource cannot
    /// tell a late write of an earlier holder; there are no semaphores and no lists of holders; and after a session that
    /// ended without its client's knowledge the next holder does not wait for the client's guard to be lost. Default on.
    #[must_use]
    pub fn tokens(mut self, on: bool) -> Self {
        self.tokens = on;
        self
    }

    /// A guard is lost if no heartbeat of its session was answered for this long. Heartbeats are sent four times as often. If the
    /// session of a holder ended and its client may not know (a fail-over, `KILL` while it cannot be reached), the next client
    /// waits for the holder's time before it is granted the lock. Default 3 seconds.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] below 200 ms, or above 20 seconds: the server drops a silent client after 30.
    pub fn heartbeat_timeout(mut self, timeout: Duration) -> Result<Self> {
        let (least, most) = (Duration::from_millis(200), Duration::from_secs(20));
        if !(least..=most).contains(&timeout) {
            let what = format!("a heartbeat time-out of {timeout:?} is not between {least:?} and {most:?}");
            return Err(Error::new(ErrorKind::InvalidInput, what).advise("the default is a good choice"));
        }
        self.heartbeat_timeout = timeout;
        Ok(self)
    }

    /// Whether the network sees what is sent.
    pub(crate) fn is_plain_text(&self) -> bool {
        let is_local =
            matches!(self.host.as_str(), "localhost" | "::1" | ".") || self.host.starts_with("127.");
        matches!(self.encrypt, Encrypt::Plaintext | Encrypt::LoginOnly) && !is_local
    }
}

/// Where the locks are, without secrets.
impl fmt::Display for SqlServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sqlserver ")?;
        match &self.instance {
            Some(instance) => write!(f, "{}\\{}", plain(&self.host), plain(instance))?,
            None => write_host_and_port(f, plain(&self.host), self.port)?,
        }
        let database = self.database.as_deref().unwrap_or_default();
        write!(f, "/{} {}.{}", plain(database), self.names.schema.as_str(), self.names.table.as_str())
    }
}

/// Without the login.
impl fmt::Debug for SqlServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlServerConfig")
            .field("location", &self.to_string())
            .field("encrypt", &self.encrypt)
            .field("tokens", &self.tokens)
            .field("heartbeat_timeout", &self.heartbeat_timeout)
            .finish_non_exhaustive()
    }
}
