//! What the first connection finds: product, version, identity.

use distlock_core::{Error, ErrorKind, Result};

use crate::connections::{Connection, REQUEST_TIMEOUT};
use crate::rows::{optional, text};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Product {
    MySql,
    MariaDb,
}

#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) product: Product,
    pub(crate) version: (u16, u16, u16),
    /// As the server shows it.
    pub(crate) shown: String,
    /// The database of the connection.
    pub(crate) database: Option<String>,
    /// Part of a Galera cluster.
    pub(crate) galera: bool,
}

const EXAMINE: &str = "SELECT VERSION() AS version, DATABASE() AS db;
    SHOW GLOBAL VARIABLES LIKE 'wsrep_on'";

impl Server {
    pub(crate) async fn examine(connection: &mut Connection) -> Result<Self> {
        let rows = connection.query(EXAMINE, REQUEST_TIMEOUT).await.map_err(|failure| failure.error)?;
        let row = rows
            .first()
            .ok_or_else(|| Error::new(ErrorKind::Internal, "the server does not tell its version"))?;
        let shown = text(row, "version")?;
        let galera = rows.get(1).is_some_and(|row| text(row, "Value").is_ok_and(|value| value == "ON"));
        let database: Option<Vec<u8>> = optional(row, "db")?;
        Ok(Server {
            product: if shown.contains("MariaDB") { Product::MariaDb } else { Product::MySql },
            version: read_version(&shown).unwrap_or(connection.version()),
            shown,
            database: database.map(|name| String::from_utf8_lossy(&name).into_owned()),
            galera,
        })
    }

    /// Refuses servers that lack what the lease table needs: `SKIP LOCKED`, `JSON_TABLE`, window functions.
    pub(crate) fn check_lease(&self) -> Result<()> {
        if self.shown.contains("TiDB") {
            return Err(self.unsupported("TiDB has no InnoDB", "use MySQL 8.0 or MariaDB 10.6 or later"));
        }
        let enough = match self.product {
            Product::MySql => self.version >= (8, 0, 11),
            Product::MariaDb => self.version >= (10, 6, 0),
        };
        if enough {
            return Ok(());
        }
        Err(self.unsupported("the server is too old", "use MySQL 8.0 or MariaDB 10.6 or later"))
    }

    /// Refuses servers whose second `GET_LOCK` frees the first, and clusters whose nodes do not know each other's locks. On
    /// MySQL 5.6.24 `SELECT GET_LOCK('x', 0), GET_LOCK('y', 0), IS_USED_LOCK('x')` is `1, 1, NULL`.
    pub(crate) fn check_session(&self) -> Result<()> {
        let enough = match self.product {
            Product::MySql => self.version >= (5, 7, 5),
            Product::MariaDb => self.version >= (10, 0, 2),
        };
        if !enough {
            return Err(self.unsupported(
                "a second GET_LOCK of a session frees the first one there",
                "use MySQL 5.7.5 or MariaDB 10.0.2 or later",
            ));
        }
        if self.galera {
            return Err(self.unsupported(
                "it is a Galera node: GET_LOCK is not known to the other nodes",
                "use mysql:// (the lease table) instead of mysql+session://",
            ));
        }
        Ok(())
    }

    fn unsupported(&self, why: &str, advice: &'static str) -> Error {
        Error::new(ErrorKind::Unsupported, format!("{}: {why}", self.shown)).advise(advice)
    }
}

/// MariaDB may put `5.5.5-` before its version, for old clients.
fn read_version(shown: &str) -> Option<(u16, u16, u16)> {
    let shown = shown.strip_prefix("5.5.5-").unwrap_or(shown);
    let mut numbers = shown.split(['.', '-', '+']).map(str::parse::<u16>);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(shown: &str) -> Server {
        let product = if shown.contains("MariaDB") { Product::MariaDb } else { Product::MySql };
        let version = read_version(shown).unwrap();
        Server { product, version, shown: shown.to_owned(), database: None, galera: false }
    }

    #[test]
    fn servers_without_what_a_store_needs_are_refused() {
        for (shown, lease, session) in [
            ("5.6.24", false, false),
            ("5.7.44-log", false, true),
            ("8.0.40", true, true),
            ("9.7.4-1", true, true),
            ("5.5.5-10.6.20-MariaDB-log", true, true),
            ("10.11.19-MariaDB-0+deb12u1", true, true),
            ("10.3.39-MariaDB", false, true),
            ("5.5.68-MariaDB", false, false),
            ("8.0.11-TiDB-v8.5.0", false, true),
        ] {
            let server = server(shown);
            assert_eq!(server.check_lease().is_ok(), lease, "{shown}");
            assert_eq!(server.check_session().is_ok(), session, "{shown}");
        }
        assert!(Server { galera: true, ..server("10.11.19-MariaDB") }.check_session().is_err());
    }
}
