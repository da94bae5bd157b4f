//! The tables: created on first use where the user may, and checked.

use distlock_core::{Error, ErrorKind, Result};
use mysql_async::Row;

use crate::connections::{Connection, REQUEST_TIMEOUT};
use crate::identifier::Tables;
use crate::rows::{required, text};

/// Which tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Lease,
    Session,
}

impl Purpose {
    fn endings(self) -> &'static [&'static str] {
        match self {
            Purpose::Lease => &["", "_pool", "_entry"],
            Purpose::Session => &["_session"],
        }
    }

    fn file(self) -> &'static str {
        match self {
            Purpose::Lease => include_str!("sql/lease_schema.sql"),
            Purpose::Session => include_str!("sql/session_schema.sql"),
        }
    }

    /// The column that was added last, and the ending of its table.
    fn newest_column(self) -> Option<(&'static str, &'static str)> {
        match self {
            Purpose::Lease => None,
            Purpose::Session => Some(("_session", "pending_process")),
        }
    }
}

/// The statements that create the tables.
pub(crate) fn print(tables: &Tables, purpose: Purpose) -> String {
    tables.schema(purpose.file())
}

/// Creates what is missing, and refuses tables of another engine and of earlier versions.
pub(crate) async fn ensure(connection: &mut Connection, tables: &Tables, purpose: Purpose) -> Result<()> {
    let mut found = look(connection, tables, purpose).await?;
    if found.len() < purpose.endings().len() {
        let create = connection.query(&print(tables, purpose), REQUEST_TIMEOUT).await;
        create.map_err(|failure| failure.error.doing("create the lock tables"))?;
        found = look(connection, tables, purpose).await?;
    }
    for (name, engine) in found {
        if !engine.eq_ignore_ascii_case("InnoDB") {
            let what = format!("the table {name} has the engine {engine}, and locks need transactions");
            return Err(Error::new(ErrorKind::Unsupported, what)
                .advise("change it: ALTER TABLE … ENGINE = InnoDB, or use other names (distlock.table)"));
        }
    }
    match purpose.newest_column() {
        Some((ending, column)) => check_column(connection, tables, ending, column).await,
        None => Ok(()),
    }
}

async fn check_column(
    connection: &mut Connection,
    tables: &Tables,
    ending: &str,
    column: &str,
) -> Result<()> {
    let name = tables.name(ending);
    // The server shows columns that the user may read, and without that right the first statement tells which one is missing.
    let query = format!(
        "SELECT COUNT(*) AS n, COALESCE(SUM(column_name = '{column}'), 0) AS found FROM information_schema.columns
         WHERE table_schema = '{}' AND table_name = '{}'",
        tables.database(),
        name.as_str()
    );
    let rows = connection.query(&query, REQUEST_TIMEOUT).await.map_err(|failure| failure.error)?;
    let number = |column: &str| rows.first().map_or(Ok(0), |row| required::<i64>(row, column));
    if number("n")? == 0 || number("found")? > 0 {
        return Ok(());
    }
    let what = format!("the table {} has no column {column}: it is of an earlier version", name.as_str());
    Err(Error::new(ErrorKind::Unsupported, what)
        .advise("drop it while no lock is held, or use another name (distlock.table); tokens still rise"))
}

/// The tables that are there, with their engines.
pub(crate) async fn look(
    connection: &mut Connection,
    tables: &Tables,
    purpose: Purpose,
) -> Result<Vec<(String, String)>> {
    // Identifiers are letters, digits, _ and -, so they can stand in quotes.
    let names: Vec<String> =
        purpose.endings().iter().map(|ending| format!("'{}'", tables.name(ending).as_str())).collect();
    let query = format!(
        "SELECT table_name AS name, COALESCE(engine, table_type) AS engine FROM information_schema.tables
         WHERE table_schema = '{}' AND table_name IN ({})",
        tables.database(),
        names.join(", ")
    );
    let rows = connection.query(&query, REQUEST_TIMEOUT).await.map_err(|failure| failure.error)?;
    rows.iter().map(|row: &Row| Ok((text(row, "name")?, text(row, "engine")?))).collect()
}
