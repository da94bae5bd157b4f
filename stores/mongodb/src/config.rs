//! The configuration: how to connect, and where the locks are kept. Everything is checked before anything is sent.

mod url;

use std::fmt;
use std::time::Duration;

use distlock_core::store::UrlOption;
use distlock_core::store::url::plain;
use distlock_core::{Error, ErrorKind, Result};
use mongodb::options::{ClientOptions, ConnectionString};

/// The default collection of the mutexes, shared with other programs.
pub const DEFAULT_COLLECTION: &str = "distributed.locks";

/// The database if the URL names none.
pub const DEFAULT_DATABASE: &str = "distlock";

/// The default of [`MongoConfig::retention`].
pub const DEFAULT_RETENTION: Duration = Duration::from_secs(3600);

/// The `distlock.` options of a URL.
pub(crate) const URL_OPTIONS: &[UrlOption] = &[
    UrlOption {
        name: "collection",
        value: "name",
        default: DEFAULT_COLLECTION,
        meaning: "the collection of the mutexes; pools and wait queues are in a second one, with .queues appended",
    },
    UrlOption {
        name: "retention",
        value: "duration",
        default: "1h",
        meaning: "how long the token of a released name is remembered; use one value everywhere",
    },
];

/// What the collection of pools and wait queues appends to the name of the mutexes' collection.
pub(crate) const QUEUES_SUFFIX: &str = ".queues";

/// The driver's default is half a minute. A client that wants a lock does not wait that long for a store that is down, and
/// an election takes less.
const SERVER_SELECTION_TIMEOUT: Duration = Duration::from_secs(5);
/// With the heartbeat interval this bounds how long a request hangs on a stalled server: the driver's monitor gives up
/// after both, and then closes every connection to that server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);

/// How to connect, and where the locks are kept. The defaults are those of other programs that share the mutexes.
///
/// ```
/// use distlock_core::store::StoreUrl;
/// use distlock_mongodb::MongoConfig;
///
/// # fn main() -> distlock_core::Result<()> {
/// let url = StoreUrl::parse("mongodb://db1,db2/app?replicaSet=rs0&distlock.retention=2h")?;
/// let config = MongoConfig::from_url(&url)?.collection("app.locks")?;
/// assert!(MongoConfig::default().collection("bad$name").is_err());
/// # let _ = config; Ok(()) }
/// ```
#[derive(Clone)]
pub struct MongoConfig {
    connection: ConnectionSource,
    database: Option<String>,
    collection: String,
    retention: Duration,
}

/// How to reach the servers.
#[derive(Clone)]
enum ConnectionSource {
    Options(Box<ClientOptions>),
    /// `hosts` are as written in the URL.
    Url {
        connection: Box<ConnectionString>,
        hosts: Vec<String>,
    },
}

impl MongoConfig {
    /// Connects with these options of the driver. Time limits that they leave open are shorter than the driver's own.
    #[must_use]
    pub fn new(client: ClientOptions) -> Self {
        MongoConfig {
            connection: ConnectionSource::Options(Box::new(client)),
            database: None,
            collection: DEFAULT_COLLECTION.to_owned(),
            retention: DEFAULT_RETENTION,
        }
    }

    /// The database. Default: that of the URL or the client, otherwise `distlock`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a name that MongoDB does not allow, or of a database that is not replicated.
    pub fn database(mut self, name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        check_database(&name)?;
        self.database = Some(name);
        Ok(self)
    }

    /// The collection of the mutexes. Pools and wait queues are in a second one, with `.queues` appended to its name.
    /// Default `distributed.locks`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a name that MongoDB does not allow.
    pub fn collection(mut self, name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        check_collection(&name)?;
        self.collection = name;
        Ok(self)
    }

    /// How long the token of a released name is remembered. Default one hour. After that the server's clock alone keeps
    /// tokens rising. It is part of an index: use one value everywhere.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] below a second or above a year.
    pub fn retention(mut self, retention: Duration) -> Result<Self> {
        if retention < Duration::from_secs(1) || retention > Duration::from_secs(365 * 24 * 3600) {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("a retention of {retention:?} is not between a second and a year"),
            )
            .advise("an hour is a good choice"));
        }
        self.retention = retention;
        Ok(self)
    }

    /// The name of the database, if one was set.
    #[must_use]
    pub fn get_database(&self) -> Option<&str> {
        self.database.as_deref()
    }

    /// The name of the collection.
    #[must_use]
    pub fn get_collection(&self) -> &str {
        &self.collection
    }

    /// The retention.
    #[must_use]
    pub fn get_retention(&self) -> Duration {
        self.retention
    }

    /// The database that the URL or the client options name.
    pub(crate) fn default_database(&self) -> Option<&str> {
        match &self.connection {
            ConnectionSource::Options(options) => options.default_database.as_deref(),
            ConnectionSource::Url { connection, .. } => connection.default_database.as_deref(),
        }
    }

    /// The names to use, given the database of the connection.
    pub(crate) fn names(&self, default_database: Option<&str>) -> Result<Names> {
        let database = self.database.as_deref().or(default_database).unwrap_or(DEFAULT_DATABASE);
        check_database(database)?;
        let names = Names {
            database: database.to_owned(),
            locks: self.collection.clone(),
            queues: format!("{}{QUEUES_SUFFIX}", self.collection),
            retention: self.retention,
        };
        let length = names.database.len() + 1 + names.queues.len();
        if length > LONGEST_NAMESPACE {
            return Err(refuse(
                format!(
                    "the names of the database and the collection have {length} bytes together with {QUEUES_SUFFIX}, \
                     and at most {LONGEST_NAMESPACE} are allowed"
                ),
                "use a shorter name for the database or the collection",
            ));
        }
        Ok(names)
    }

    /// Where the locks are, without secrets.
    pub(crate) fn location(&self) -> String {
        let hosts = match &self.connection {
            ConnectionSource::Options(options) => {
                options.hosts.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
            }
            ConnectionSource::Url { hosts, .. } => hosts.join(","),
        };
        let database = self.database.as_deref().or(self.default_database()).unwrap_or(DEFAULT_DATABASE);
        format!("mongodb {hosts}/{}.{}", plain(database), plain(&self.collection))
    }

    /// The options for the driver. Resolves `mongodb+srv` names.
    pub(crate) async fn client_options(&self) -> mongodb::error::Result<ClientOptions> {
        let mut options = match &self.connection {
            ConnectionSource::Options(options) => (**options).clone(),
            ConnectionSource::Url { connection, .. } => ClientOptions::parse((**connection).clone()).await?,
        };
        options.app_name.get_or_insert_with(|| "distlock".to_owned());
        options.server_selection_timeout.get_or_insert(SERVER_SELECTION_TIMEOUT);
        options.connect_timeout.get_or_insert(CONNECT_TIMEOUT);
        options.heartbeat_freq.get_or_insert(HEARTBEAT_INTERVAL);
        Ok(options)
    }
}

/// A server at `localhost:27017`, and the default names. For
/// [`MongoStore::with_client`](crate::MongoStore::with_client), which uses the names alone.
impl Default for MongoConfig {
    fn default() -> Self {
        MongoConfig::new(ClientOptions::default())
    }
}

/// Without the connection: it has secrets.
impl fmt::Debug for MongoConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MongoConfig")
            .field("location", &self.location())
            .field("retention", &self.retention)
            .finish_non_exhaustive()
    }
}

/// The names that a store uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Names {
    pub(crate) database: String,
    pub(crate) locks: String,
    pub(crate) queues: String,
    pub(crate) retention: Duration,
}

const LONGEST_NAMESPACE: usize = 255;
const LONGEST_DATABASE: usize = 63;

fn refuse(what: String, advice: &'static str) -> Error {
    Error::new(ErrorKind::InvalidInput, what).doing("choose where the locks are kept").advise(advice)
}

/// Databases whose content belongs to one server, or to the cluster.
const RESERVED_DATABASES: [&str; 2] = ["local", "config"];

fn check_database(name: &str) -> Result<()> {
    let is_illegal = |c: char| c.is_whitespace() || c.is_control() || "/\\.\"$*<>:|?".contains(c);
    if name.is_empty() || name.len() > LONGEST_DATABASE || name.contains(is_illegal) {
        return Err(refuse(
            "MongoDB does not allow this name for a database".to_owned(),
            "use 1 to 63 bytes without spaces and without any of / \\ . \" $ * < > : | ?",
        ));
    }
    if RESERVED_DATABASES.iter().any(|reserved| name.eq_ignore_ascii_case(reserved)) {
        return Err(refuse(
            "the databases local and config belong to the server and are not replicated".to_owned(),
            "use a database of your own",
        ));
    }
    Ok(())
}

fn check_collection(name: &str) -> Result<()> {
    let is_illegal = name.is_empty()
        || name.contains(['$', '\0'])
        || name.contains(char::is_control)
        || name.starts_with('.')
        || name.ends_with('.')
        || name.contains("..");
    if is_illegal || name.starts_with("system.") {
        return Err(refuse(
            "MongoDB does not allow this name for a collection of locks".to_owned(),
            "use a name such as distributed.locks: not empty, no $ or control characters, no dot at either end, not \
             beginning with system.",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_too_long_or_illegal_are_refused() {
        let long = MongoConfig::default().collection("x".repeat(240)).unwrap();
        for names in [long.names(None), MongoConfig::default().names(Some("a b"))] {
            assert_eq!(names.unwrap_err().kind(), ErrorKind::InvalidInput);
        }
    }
}
