//! Where the locks are kept: database, collection, and the URL that names them. Everything is checked here,
//! before anything is sent.

use std::time::Duration;

use distlock_core::store::StoreUrl;
use distlock_core::{Error, ErrorKind, Result};
use mongodb::options::{ClientOptions, ConnectionString};

/// The collection of the documents that other programs share with us.
pub const DEFAULT_COLLECTION: &str = "distributed.locks";

/// The database where a URL names none.
pub const DEFAULT_DATABASE: &str = "distlock";

/// For how long the token of a released name is remembered.
pub const DEFAULT_RETENTION: Duration = Duration::from_secs(3600);

/// What the collection of pools and waiters is called: the collection of the locks with this behind it.
pub(crate) const QUEUES_SUFFIX: &str = ".queues";

/// A driver waits half a minute for a server by default. Nobody who asks for a lock waits that long for a store that
/// is down, and an election in between takes less.
const SERVER_SELECTION: Duration = Duration::from_secs(5);
/// With the heartbeat this bounds how long a request hangs on a server that stands still: the driver's monitor
/// gives up after both, and then ends every connection to that server.
const CONNECT: Duration = Duration::from_secs(3);
const HEARTBEAT: Duration = Duration::from_secs(2);

/// Database, collection and retention. The defaults are those of the programs that share their locks with us.
///
/// ```
/// use distlock_mongodb::MongoOptions;
///
/// # fn main() -> distlock_core::Result<()> {
/// let options = MongoOptions::new().database("app")?.collection("app.locks")?;
/// assert!(MongoOptions::new().collection("bad$name").is_err());
/// # let _ = options; Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MongoOptions {
    database: Option<String>,
    collection: String,
    retention: Duration,
}

impl Default for MongoOptions {
    fn default() -> Self {
        MongoOptions {
            database: None,
            collection: DEFAULT_COLLECTION.to_owned(),
            retention: DEFAULT_RETENTION,
        }
    }
}

impl MongoOptions {
    /// The defaults: the database of the URL, `distributed.locks` in it, tokens remembered for an hour.
    #[must_use]
    pub fn new() -> Self {
        MongoOptions::default()
    }

    /// The database. Default: that of the URL, and `distlock` where it names none.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a name that MongoDB does not allow, or of a database that is not replicated.
    pub fn database(mut self, name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        check_database(&name)?;
        self.database = Some(name);
        Ok(self)
    }

    /// The collection of the mutexes; pools and waiters are in a second one, with `.queues` behind the name.
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

    /// For how long the token of a released name is remembered. Default an hour. After that the server's clock
    /// alone keeps tokens rising. It is written into an index: give everybody the same.
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

    /// The names to use, given the database of a URL.
    pub(crate) fn names(&self, from_url: Option<&str>) -> Result<Names> {
        let database = self.database.as_deref().or(from_url).unwrap_or(DEFAULT_DATABASE);
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
                    "{}.{} has {length} bytes, and at most {LONGEST_NAMESPACE} are allowed",
                    names.database, names.queues
                ),
                "use a shorter name for the database or the collection",
            ));
        }
        Ok(names)
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

/// Databases whose content is each server's own, or the cluster's.
const NOT_FOR_USERS: [&str; 2] = ["local", "config"];

fn check_database(name: &str) -> Result<()> {
    let bad = |c: char| c.is_whitespace() || c.is_control() || "/\\.\"$*<>:|?".contains(c);
    if name.is_empty() || name.len() > LONGEST_DATABASE || name.contains(bad) {
        return Err(refuse(
            format!("{name:?} is no name for a MongoDB database"),
            "use 1 to 63 bytes without spaces and without any of / \\ . \" $ * < > : | ?",
        ));
    }
    if NOT_FOR_USERS.iter().any(|reserved| name.eq_ignore_ascii_case(reserved)) {
        return Err(refuse(
            format!("the database {name:?} belongs to the server and is not replicated"),
            "use a database of your own",
        ));
    }
    Ok(())
}

fn check_collection(name: &str) -> Result<()> {
    let bad = name.is_empty()
        || name.contains(['$', '\0'])
        || name.contains(char::is_control)
        || name.starts_with('.')
        || name.ends_with('.')
        || name.contains("..");
    if bad || name.starts_with("system.") {
        return Err(refuse(
            format!("{name:?} is no name for a MongoDB collection of locks"),
            "use a name such as distributed.locks: not empty, without $ and control characters, without a dot in \
             front or behind, not beginning with system.",
        ));
    }
    Ok(())
}

/// A URL, taken apart and checked; nothing was sent or looked up.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) connection: ConnectionString,
    pub(crate) names: Names,
}

/// The parameters of ours that a URL may have.
const PARAMETERS: [&str; 1] = ["collection"];

impl Target {
    /// Reads a store URL with our parameters.
    pub(crate) fn from_url(mut url: StoreUrl) -> Result<Target> {
        let mut options = MongoOptions::new();
        if let Some(collection) = url.take("collection") {
            options = options.collection(collection)?;
        }
        url.refuse_unknown(&PARAMETERS)?;
        Target::new(url.driver_part(), &options)
    }

    /// Reads the driver's part of a URL.
    pub(crate) fn new(uri: &str, options: &MongoOptions) -> Result<Target> {
        // The driver's own words may hold what was given, a password included: they are not repeated.
        let connection = ConnectionString::parse(uri).map_err(|_| {
            Error::new(ErrorKind::InvalidInput, "the driver does not understand the URL")
                .doing("read the store URL")
                .advise(
                    "write it like mongodb://user:password@host:27017/database, with % escapes in user, password \
                     and database, and only options that MongoDB knows",
                )
        })?;
        let names = options.names(connection.default_database.as_deref())?;
        Ok(Target { connection, names })
    }

    /// What to give to the driver. Resolves `mongodb+srv` names.
    pub(crate) async fn client_options(&self) -> mongodb::error::Result<ClientOptions> {
        let mut options = ClientOptions::parse(self.connection.clone()).await?;
        options.app_name.get_or_insert_with(|| "distlock".to_owned());
        options.server_selection_timeout.get_or_insert(SERVER_SELECTION);
        options.connect_timeout.get_or_insert(CONNECT);
        options.heartbeat_freq.get_or_insert(HEARTBEAT);
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(url: &str) -> Result<Target> {
        Target::from_url(StoreUrl::parse(url)?)
    }

    #[test]
    fn a_url_names_database_and_collection() {
        let default = target("mongodb://h/").unwrap().names;
        assert_eq!(
            (default.database.as_str(), default.locks.as_str()),
            (DEFAULT_DATABASE, DEFAULT_COLLECTION)
        );
        let named =
            target("mongodb://u:p@a:1,b:2/app?replicaSet=r&distlock.collection=my.locks").unwrap().names;
        assert_eq!((named.database.as_str(), named.locks.as_str()), ("app", "my.locks"));
        assert_eq!(named.queues, "my.locks.queues");
    }

    #[test]
    fn illegal_names_and_unknown_parameters_are_refused_before_anything_is_sent() {
        for bad in [
            "mongodb://h/local",
            "mongodb://h/config",
            "mongodb://h/app?distlock.collection=",
            "mongodb://h/app?distlock.collection=a%24b",
            "mongodb://h/app?distlock.collection=.a",
            "mongodb://h/app?distlock.collection=a..b",
            "mongodb://h/app?distlock.collection=a%00b",
            "mongodb://h/app?distlock.collection=system.users",
            "mongodb://h/app?distlock.table=locks",
            "mongodb://h/app?nonsense",
            "mongodb://",
        ] {
            let error = target(bad).err().unwrap_or_else(|| panic!("{bad} was accepted"));
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{bad}: {error}");
        }
        let long = "x".repeat(240);
        for options in [
            MongoOptions::new().collection(long).unwrap().names(None),
            MongoOptions::new().names(Some("a b")),
        ] {
            assert_eq!(options.unwrap_err().kind(), ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn a_password_is_not_repeated_in_errors() {
        let error = target("mongodb://u:s3cr@t:/@h/app").err().unwrap();
        assert!(!error.to_string().contains("s3cr"), "{error}");
    }
}
