//! What we create in a database, and whether it is there.

use distlock_core::store::StoreUrl;
use distlock_core::{Error, ErrorKind, Result};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use crate::config::PostgresConfig;
use crate::failure;
use crate::statement::Tables;

/// Those who create at the same time stand in line for this key: `CREATE TABLE IF NOT EXISTS` is not safe by itself,
/// two at once may both find nothing and one of them fails.
const TURN: i64 = 0x6469_7374_6c6f_636b; // "distlock"

/// Who needs which tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Lease,
    Advisory,
}

/// The tables of one store.
#[derive(Clone, Debug)]
pub(crate) struct Schema {
    tables: Tables,
    purpose: Purpose,
    create: bool,
}

impl Schema {
    pub(crate) fn new(config: &PostgresConfig, purpose: Purpose) -> Self {
        Schema { tables: Tables::of(config), purpose, create: config.create }
    }

    pub(crate) fn tables(&self) -> &Tables {
        &self.tables
    }

    /// The commands that create what we need; for people too.
    pub(crate) fn commands(&self) -> String {
        self.tables.fill(match self.purpose {
            Purpose::Lease => include_str!("sql/lease_schema.sql"),
            Purpose::Advisory => include_str!("sql/advisory_schema.sql"),
        })
    }

    /// Endings of the names of what must be there, and the columns it must have.
    fn needs(&self) -> &'static [(&'static str, &'static [&'static str])] {
        match self.purpose {
            Purpose::Lease => &[
                (
                    "",
                    &[
                        "key",
                        "value",
                        "expire_time",
                        "token",
                        "acquired_at",
                        "inbox",
                        "waits",
                        "in_turn",
                        "waiters",
                        "name",
                    ],
                ),
                ("_pool", &["key", "capacity", "token", "holders", "queue", "used_until", "name"]),
            ],
            Purpose::Advisory => &[
                (
                    "_session",
                    &["session", "key", "lock_id", "kind", "name", "weight", "capacity", "token", "since"],
                ),
                ("_session_pool", &["key", "capacity", "token", "holders", "queue", "used_until", "name"]),
                ("_token", &[]),
            ],
        }
    }

    /// Creates what is missing, if that is wanted and allowed.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] if the role may not create, [`ErrorKind::Corrupt`] if a table of that name is not ours.
    pub(crate) async fn ensure(&self, client: &Client) -> Result<()> {
        if self.is_there(client).await? {
            return Ok(());
        }
        if !self.create {
            return Err(Error::new(ErrorKind::Corrupt, self.missing())
                .advise("create them as `distlock schema` prints them, or leave distlock.create=off out"));
        }
        // One implicit transaction: all of it or nothing, and no session is left inside of one.
        // Many that start together wait for each other, for longer than for a row.
        let mut batch = format!(
            "SELECT pg_catalog.set_config('lock_timeout', '10000', true), pg_catalog.pg_advisory_xact_lock({TURN});"
        );
        if !self.has_schema(client).await? {
            batch.push_str(&self.tables.fill("CREATE SCHEMA IF NOT EXISTS {schema};"));
        }
        batch.push_str(&self.commands());
        let created = client.batch_execute(&batch).await;
        let Err(error) = created else { return Ok(()) };
        let somebody_was_faster = [
            SqlState::UNIQUE_VIOLATION,
            SqlState::DUPLICATE_TABLE,
            SqlState::DUPLICATE_OBJECT,
            SqlState::DUPLICATE_SCHEMA,
        ];
        if failure::has_code(&error, &somebody_was_faster) && self.is_there(client).await? {
            return Ok(());
        }
        let said = failure::of_statement(&error);
        if said.kind() == ErrorKind::Denied {
            let detail = format!("{}, and this role may not create them: {error}", self.missing());
            let advice = "let the owner of the database run what `distlock schema` prints, and grant this role SELECT, \
                          INSERT, UPDATE and DELETE on the tables";
            return Err(Error::new(ErrorKind::Denied, detail).caused_by(error).advise(advice));
        }
        Err(said.doing("create the lock tables"))
    }

    fn missing(&self) -> String {
        let names: Vec<String> = self.needs().iter().map(|(ending, _)| self.tables.named(ending)).collect();
        format!("not all of {} are there", names.join(", "))
    }

    async fn has_schema(&self, client: &Client) -> Result<bool> {
        let schema = self.tables.schema().as_str();
        let typed: &[(&(dyn ToSql + Sync), Type)] = &[(&schema, Type::TEXT)];
        let rows = client
            .query_typed(
                "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace n WHERE n.nspname::text = $1)",
                typed,
            )
            .await
            .map_err(|error| failure::of_statement(&error))?;
        Ok(rows.first().is_some_and(|row| row.try_get(0).unwrap_or(false)))
    }

    async fn is_there(&self, client: &Client) -> Result<bool> {
        let needs = self.needs();
        let names: Vec<String> = needs.iter().map(|(ending, _)| self.tables.named(ending)).collect();
        let typed: &[(&(dyn ToSql + Sync), Type)] = &[(&names, Type::TEXT_ARRAY)];
        let rows = client
            .query_typed(include_str!("sql/schema_look.sql"), typed)
            .await
            .map_err(|error| failure::of_statement(&error))?;
        for (row, (_, columns)) in rows.iter().zip(needs) {
            let unreadable =
                |error: tokio_postgres::Error| Error::new(ErrorKind::Internal, error.to_string());
            let (name, there): (String, bool) =
                (row.try_get(0).map_err(unreadable)?, row.try_get(1).map_err(unreadable)?);
            let found: Vec<String> = row.try_get(2).map_err(unreadable)?;
            if !there {
                return Ok(false);
            }
            if let Some(absent) = columns.iter().find(|column| !found.iter().any(|found| found == *column)) {
                let detail = format!("there is a table {name}, but not ours: it has no column {absent}");
                return Err(Error::new(ErrorKind::Corrupt, detail)
                    .advise("name another table with distlock.table, or change this one to what `distlock schema` prints"));
            }
        }
        Ok(rows.len() == needs.len())
    }
}

/// What `distlock schema` prints.
pub(crate) fn print(url: &StoreUrl, purpose: Purpose) -> Result<String> {
    let config = PostgresConfig::from_store_url(url.clone())?;
    let schema = Schema::new(&config, purpose);
    let head = if config.schema == crate::identifier::Identifier::PUBLIC {
        String::new()
    } else {
        schema.tables.fill("CREATE SCHEMA IF NOT EXISTS {schema};\n\n")
    };
    let rights = match purpose {
        Purpose::Lease => "GRANT SELECT, INSERT, UPDATE, DELETE ON {table}, {pool} TO your_role;",
        Purpose::Advisory => {
            "GRANT SELECT, INSERT, UPDATE, DELETE ON {session}, {session_pool} TO your_role;\n\
             -- GRANT USAGE, SELECT, UPDATE ON SEQUENCE {token} TO your_role;"
        }
    };
    Ok(format!("{head}{}\n-- {}\n", schema.commands(), schema.tables.fill(rights)))
}
