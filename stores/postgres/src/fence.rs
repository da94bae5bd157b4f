//! The resource's side of fencing, for resources that live in this database.

use distlock_core::{Error, ErrorKind, FencingToken, Result, StaleToken};
use tokio_postgres::Transaction;
use tokio_postgres::types::{ToSql, Type};

use crate::config::PostgresConfig;
use crate::failure;
use crate::statement::Tables;
use crate::values::{number, token};

/// An index entry has room for about 2700 bytes.
const LONGEST: usize = 1024;

/// Refuses writes of holders that were overtaken, in the transaction that writes.
///
/// A holder may stand still between its last look at the lock and its write; when it goes on, somebody else has the lock
/// and has written. Its token tells: it is lower than one that was seen. [`admit`](Fence::admit) checks that in one
/// statement of the transaction which writes, so that check and write commit together or not at all.
///
/// ```no_run
/// use distlock_postgres::{Fence, PostgresConfig};
///
/// # async fn run(
/// #     client: &mut tokio_postgres::Client, guard: distlock_core::Guard, config: PostgresConfig,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let fence = Fence::new(&config); // its table: `fence.commands()`
/// let transaction = client.transaction().await?;
/// fence.admit(&transaction, "ledger/7", guard.token()).await?; // Err(Lost) for a stale token
/// transaction.execute("INSERT INTO ledger VALUES (7, 'entry')", &[]).await?;
/// transaction.commit().await?;
/// # Ok(()) }
/// ```
///
/// A table that can have a column for it needs no other: write the token with the row, and only where it is not lower.
/// No row changed means that the token is stale.
///
/// ```sql
/// UPDATE account SET balance = $2, token = $3 WHERE id = $1 AND token <= $3;
///
/// INSERT INTO account AS a (id, balance, token) VALUES ($1, $2, $3)
/// ON CONFLICT (id) DO UPDATE SET balance = EXCLUDED.balance, token = EXCLUDED.token WHERE a.token <= EXCLUDED.token;
/// ```
#[derive(Clone, Debug)]
pub struct Fence {
    tables: Tables,
    admit: String,
    look: String,
}

impl Fence {
    /// A fence whose table is called like the lease table with `_fence` behind it, in the same schema:
    /// `public.distribute_lock_fence`.
    #[must_use]
    pub fn new(config: &PostgresConfig) -> Self {
        let tables = Tables::of(config);
        let admit = tables.fill(include_str!("sql/fence_admit.sql"));
        let look = tables.fill("SELECT f.token FROM {fence} f WHERE f.resource OPERATOR(pg_catalog.=) $1");
        Fence { tables, admit, look }
    }

    /// The command that creates its table.
    #[must_use]
    pub fn commands(&self) -> String {
        self.tables.fill(include_str!("sql/fence_schema.sql"))
    }

    /// Lets a token pass if it is at least the highest that the resource has seen, and remembers it with the
    /// transaction. Writers of one resource come one after the other from here to the end of their transactions.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] for a stale token: roll the transaction back, the lock was lost.
    /// [`ErrorKind::InvalidInput`] for a name that is empty, longer than 1024 bytes or has a NUL in it; otherwise if the
    /// server cannot be reached or refuses.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the check carried out or not: roll the transaction back.
    pub async fn admit(
        &self,
        transaction: &Transaction<'_>,
        resource: &str,
        passing: FencingToken,
    ) -> Result<()> {
        if resource.is_empty() || resource.len() > LONGEST || resource.contains('\0') {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "a resource needs a name of 1 to 1024 bytes without NUL",
            )
            .doing("check a fencing token"));
        }
        let told =
            |error: tokio_postgres::Error| failure::of_statement(&error).doing("check a fencing token");
        let (name, wanted) = (resource, number(passing));
        let typed: &[(&(dyn ToSql + Sync), Type)] = &[(&name, Type::TEXT), (&wanted, Type::INT8)];
        if !transaction.query_typed(&self.admit, typed).await.map_err(told)?.is_empty() {
            return Ok(());
        }
        let rows = transaction.query_typed(&self.look, &typed[..1]).await.map_err(told)?;
        let seen = rows.first().and_then(|row| row.try_get::<_, i64>(0).ok()).map_or(passing, token);
        Err(StaleToken { token: passing, seen }.into())
    }
}
