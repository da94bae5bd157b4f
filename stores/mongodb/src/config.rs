//! Where the locks are kept: database and collection. Everything is checked here, before anything is sent.

use std::time::Duration;

use distlock_core::{Error, ErrorKind, Result};

pub(crate) use crate::url::Target;

/// The collection of the documents that other programs share with us.
pub const DEFAULT_COLLECTION: &str = "distributed.locks";

/// The database where a URL names none.
pub const DEFAULT_DATABASE: &str = "distlock";

/// For how long the token of a released name is remembered.
pub const DEFAULT_RETENTION: Duration = Duration::from_secs(3600);

/// What the collection of pools and waiters is called: the collection of the locks with this behind it.
pub(crate) const QUEUES_SUFFIX: &str = ".queues";

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
                    "the names of the database and the collection have {length} bytes together with {QUEUES_SUFFIX}, \
                     and at most {LONGEST_NAMESPACE} are allowed"
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
            "the name of the database is not one that MongoDB allows".to_owned(),
            "use 1 to 63 bytes without spaces and without any of / \\ . \" $ * < > : | ?",
        ));
    }
    if NOT_FOR_USERS.iter().any(|reserved| name.eq_ignore_ascii_case(reserved)) {
        return Err(refuse(
            "the databases local and config belong to the server and are not replicated".to_owned(),
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
            "the name of the collection is not one that MongoDB allows for locks".to_owned(),
            "use a name such as distributed.locks: not empty, without $ and control characters, without a dot in \
             front or behind, not beginning with system.",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_too_long_or_illegal_are_refused() {
        let long = "x".repeat(240);
        for options in [
            MongoOptions::new().collection(long).unwrap().names(None),
            MongoOptions::new().names(Some("a b")),
        ] {
            assert_eq!(options.unwrap_err().kind(), ErrorKind::InvalidInput);
        }
    }
}
