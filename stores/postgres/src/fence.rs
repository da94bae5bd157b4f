//! The resource's side of fencing, for resources in this database.

use distlock_core::{Error, ErrorKind, FencingToken, Result, StaleToken};
use tokio_postgres::Transaction;
use tokio_postgres::types::{ToSql, Type};

use crate::config::PostgresConfig;
use crate::error;
use crate::tables::Tables;
use crate::values::{from_token, to_token};

/// An index entry has room for about 2700 bytes.
const MAX_NAME: usize = 1024;

/// Refuses writes of stale holders, in the transaction that writes.
///
/// A holder may stall between its last check of the lock and its write. When it resumes, another client may hold the lock and
/// have written. Its token is then lower than the highest that the resource has seen. [`admit`](Fence::admit) compares them in
/// one statement of the transaction that writes, so that check and write commit together or not at all.
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
/// [`FencingToken`] is a `BIGINT` parameter in tokio-postgres, and in sqlx with the feature `sqlx`. A table with a column for
/// the token needs no fence: write the token with the row, unless it is lower. If no row changed,
/// the token is stale.
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
    last_seen: String,
}

impl Fence {
    /// A fence whose table has the name of the lease table with the suffix `_fence`, in the same schema:
    /// `public.distribute_lock_fence`.
    #[must_use]
    pub fn new(config: &PostgresConfig) -> Self {
        let tables = Tables::new(config);
        let admit = tables.fill(include_str!("sql/fence_admit.sql"));
        let last_seen =
            tables.fill("SELECT f.token FROM {fence} f WHERE f.resource OPERATOR(pg_catalog.=) $1");
        Fence { tables, admit, last_seen }
    }

    /// The command that creates its table.
    #[must_use]
    pub fn commands(&self) -> String {
        self.tables.fill(include_str!("sql/fence_schema.sql"))
    }

    /// Admits a token that is at least the highest that the resource has seen, and stores it with the transaction. From here
    /// to the end of their transactions, writers of one resource run one after the other.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] for a stale token: roll the transaction back, the lock was lost.
    /// [`ErrorKind::InvalidInput`] for a name that is empty, longer than 1024 bytes or contains NUL. Otherwise if the server
    /// cannot be reached or refuses.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the outcome unknown: roll the transaction back.
    pub async fn admit(
        &self,
        transaction: &Transaction<'_>,
        resource: &str,
        token: FencingToken,
    ) -> Result<()> {
        self.check_name(resource)?;
        let failed =
            |error: tokio_postgres::Error| error::from_statement(error).doing("check a fencing token");
        let number = from_token(token);
        let typed: &[(&(dyn ToSql + Sync), Type)] = &[(&resource, Type::TEXT), (&number, Type::INT8)];
        if !transaction.query_typed(&self.admit, typed).await.map_err(failed)?.is_empty() {
            return Ok(());
        }
        let rows = transaction.query_typed(&self.last_seen, &typed[..1]).await.map_err(failed)?;
        let seen = rows.first().and_then(|row| row.try_get::<_, i64>(0).ok()).map_or(token, to_token);
        Err(StaleToken { token, seen }.into())
    }

    pub(crate) fn check_name(&self, resource: &str) -> Result<()> {
        if resource.is_empty() || resource.len() > MAX_NAME || resource.contains('\0') {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "the name of a resource has 1 to 1024 bytes without NUL",
            )
            .doing("check a fencing token"));
        }
        Ok(())
    }

    #[cfg(feature = "sqlx")]
    pub(crate) fn admit_statement(&self) -> &str {
        &self.admit
    }

    #[cfg(feature = "sqlx")]
    pub(crate) fn last_seen_statement(&self) -> &str {
        &self.last_seen
    }
}
