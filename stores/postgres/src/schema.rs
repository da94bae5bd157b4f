//! The tables of a store: creating them, and checking that they exist.

use distlock_core::store::StoreUrl;
use distlock_core::{Error, ErrorKind, Result};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use crate::config::PostgresConfig;
use crate::error;
use crate::identifier::Identifier;
use crate::tables::{PoolTable, Tables};

/// The advisory lock of clients that create tables. `CREATE TABLE IF NOT EXISTS` is not safe by itself: of two at once both
/// may find no table, and one of them fails.
const SCHEMA_LOCK: i64 = 0x6469_7374_6c6f_636b; // "distlock"

const POOL_COLUMNS: &[&str] = &["key", "capacity", "token", "holders", "queue", "used_until", "name"];

/// Which store the tables are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreKind {
    Lease,
    Advisory,
}

/// The tables of one store.
#[derive(Clone, Debug)]
pub(crate) struct Schema {
    tables: Tables,
    kind: StoreKind,
    create: bool,
}

impl Schema {
    pub(crate) fn new(config: &PostgresConfig, kind: StoreKind) -> Self {
        Schema { tables: Tables::new(config), kind, create: config.create }
    }

    pub(crate) fn tables(&self) -> &Tables {
        &self.tables
    }

    /// The commands that create the tables.
    pub(crate) fn commands(&self) -> String {
        let (own, pool) = match self.kind {
            StoreKind::Lease => (include_str!("sql/lease_schema.sql"), PoolTable::Leases),
            StoreKind::Advisory => (include_str!("sql/advisory_schema.sql"), PoolTable::Sessions),
        };
        self.tables.fill(&format!("{own}{}", pool.template(include_str!("sql/pool_table.sql"))))
    }

    /// The suffixes of the names of our tables, and the columns that each must have.
    fn required(&self) -> &'static [(&'static str, &'static [&'static str])] {
        match self.kind {
            StoreKind::Lease => &[
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
                ("_pool", POOL_COLUMNS),
            ],
            StoreKind::Advisory => &[
                (
                    "_session",
                    &["session", "key", "lock_id", "kind", "name", "weight", "capacity", "token", "since"],
                ),
                ("_session_pool", POOL_COLUMNS),
                ("_token", &[]),
            ],
        }
    }

    /// Creates missing tables, if the configuration and the role's rights allow it.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] if the role may not create, [`ErrorKind::Corrupt`] if a table of that name is not ours.
    pub(crate) async fn ensure(&self, client: &Client) -> Result<()> {
        if self.exists(client).await? {
            return Ok(());
        }
        if !self.create {
            return Err(Error::new(ErrorKind::Corrupt, self.missing())
                .advise("create them as `distlock schema` prints them, or leave distlock.create=off out"));
        }
        // One implicit transaction: all of it or nothing, and no session is left inside of one. Many clients that start
        // together wait for each other, for longer than for a row.
        let mut batch = format!(
            "SELECT pg_catalog.set_config('lock_timeout', '10000', true), pg_catalog.pg_advisory_xact_lock({SCHEMA_LOCK});"
        );
        if !self.has_schema(client).await? {
            batch.push_str(&self.tables.fill("CREATE SCHEMA IF NOT EXISTS {schema};"));
        }
        batch.push_str(&self.commands());
        let Err(refusal) = client.batch_execute(&batch).await else { return Ok(()) };
        let created_by_another_client = [
            SqlState::UNIQUE_VIOLATION,
            SqlState::DUPLICATE_TABLE,
            SqlState::DUPLICATE_OBJECT,
            SqlState::DUPLICATE_SCHEMA,
        ];
        if error::has_code(&refusal, &created_by_another_client) && self.exists(client).await? {
            return Ok(());
        }
        let error = error::from_statement(&refusal);
        if error.kind() == ErrorKind::Denied {
            let detail = format!("{}, and this role may not create them", self.missing());
            let advice = "let the owner of the database run what `distlock schema` prints, and grant this role SELECT, \
                          INSERT, UPDATE and DELETE on the tables";
            return Err(Error::new(ErrorKind::Denied, detail).caused_by(refusal).advise(advice));
        }
        Err(error.doing("create the lock tables"))
    }

    fn names(&self) -> Vec<String> {
        self.required().iter().map(|(suffix, _)| self.tables.named(suffix)).collect()
    }

    fn missing(&self) -> String {
        format!("not all of {} exist", self.names().join(", "))
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
            .map_err(error::from_statement)?;
        Ok(rows.first().is_some_and(|row| row.try_get(0).unwrap_or(false)))
    }

    async fn exists(&self, client: &Client) -> Result<bool> {
        let (required, names) = (self.required(), self.names());
        let typed: &[(&(dyn ToSql + Sync), Type)] = &[(&names, Type::TEXT_ARRAY)];
        let rows = client
            .query_typed(include_str!("sql/schema_check.sql"), typed)
            .await
            .map_err(error::from_statement)?;
        for (row, (_, columns)) in rows.iter().zip(required) {
            let unexpected =
                |error: tokio_postgres::Error| Error::new(ErrorKind::Internal, error.to_string());
            let (name, found): (String, bool) =
                (row.try_get(0).map_err(unexpected)?, row.try_get(1).map_err(unexpected)?);
            let present: Vec<String> = row.try_get(2).map_err(unexpected)?;
            if !found {
                return Ok(false);
            }
            let wrong_time: Option<String> = row.try_get(3).map_err(unexpected)?;
            if let Some(wrong) = wrong_time.filter(|_| columns.contains(&"expire_time")) {
                return Err(time_without_zone(&name, &wrong));
            }
            if let Some(absent) = columns.iter().find(|column| !present.iter().any(|other| other == *column))
            {
                let detail = format!("the table {name} is not ours: it has no column {absent}");
                return Err(Error::new(ErrorKind::Corrupt, detail).advise(MIGRATE));
            }
        }
        Ok(rows.len() == required.len())
    }
}

const MIGRATE: &str = "name another table with distlock.table, or change this one as the documentation of \
                       distlock-postgres says under \"Sharing mutexes with other programs\"";

/// The table of a program that writes local times, such as the first user of this format.
fn time_without_zone(table: &str, found: &str) -> Error {
    let detail = format!(
        "the table {table} was created by another program: its expire_time is a {found}, which each session reads in its own \
         time zone, so that clients would not agree when a lock expires"
    );
    Error::new(ErrorKind::Corrupt, detail).advise(MIGRATE)
}

/// What `distlock schema` prints.
pub(crate) fn print(url: &StoreUrl, kind: StoreKind) -> Result<String> {
    let config = PostgresConfig::from_url(url)?;
    let schema = Schema::new(&config, kind);
    let head = if config.schema == Identifier::PUBLIC {
        String::new()
    } else {
        schema.tables.fill("CREATE SCHEMA IF NOT EXISTS {schema};\n\n")
    };
    let rights = match kind {
        StoreKind::Lease => "GRANT SELECT, INSERT, UPDATE, DELETE ON {table}, {pool} TO your_role;",
        StoreKind::Advisory => {
            "GRANT SELECT, INSERT, UPDATE, DELETE ON {session}, {session_pool} TO your_role;\n\
             -- GRANT USAGE, SELECT, UPDATE ON SEQUENCE {token} TO your_role;"
        }
    };
    Ok(format!("{head}{}\n-- {}\n", schema.commands(), schema.tables.fill(rights)))
}
