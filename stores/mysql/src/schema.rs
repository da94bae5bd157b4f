//! The tables: created on first use where the user may, and checked.

use distlock_core::{Error, ErrorKind, Result};
use mysql_async::Row;

use crate::connections::{Connection, REQUEST_TIMEOUT};
use crate::identifier::Tables;
use crate::rows::text;

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
}

/// The statements that create the tables.
pub(crate) fn print(tables: &Tables, purpose: Purpose) -> String {
    tables.schema(purpose.file())
}

/// Creates what is missing, and refuses tables of another engine.
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
    Ok(())
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
