//! Advisory locks of a transaction that the caller owns: lock and write commit together, and through PgBouncer too.

use distlock_core::{Error, ErrorKind, Result};
use tokio_postgres::Transaction;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use super::key::AdvisoryKey;
use crate::failure;

/// Takes advisory locks that end with a transaction, whichever way it ends. Nothing has to be given back, and nothing
/// of ours has to be in the database.
///
/// ```no_run
/// use distlock_core::Kind;
/// use distlock_postgres::{AdvisoryKey, TransactionLocks};
///
/// # async fn run(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let transaction = client.transaction().await?;
/// TransactionLocks::of(&transaction).lock(AdvisoryKey::of(Kind::Mutex, "account/42")).await?;
/// transaction.execute("UPDATE account SET balance = balance - 10 WHERE id = 42", &[]).await?;
/// transaction.commit().await?; // the write is there, and the lock is free, at the same moment
/// # Ok(()) }
/// ```
#[derive(Clone, Copy)]
pub struct TransactionLocks<'a>(&'a Transaction<'a>);

impl<'a> TransactionLocks<'a> {
    /// Locks that end with this transaction.
    #[must_use]
    pub fn of(transaction: &'a Transaction<'a>) -> Self {
        TransactionLocks(transaction)
    }

    /// Waits until the lock is the transaction's alone. `SET LOCAL lock_timeout` limits the wait.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] if `lock_timeout` passed; otherwise if the server cannot be reached or refuses. The
    /// transaction can only be rolled back then.
    ///
    /// # Cancel safety
    /// Dropping the future may leave the transaction waiting for the lock: drop the transaction too.
    pub async fn lock(&self, key: AdvisoryKey) -> Result<()> {
        self.ask(key, false, "pg_advisory_xact_lock").await.map(drop)
    }

    /// Waits until the transaction has the lock together with others who share it.
    ///
    /// # Errors
    /// As for [`lock`](TransactionLocks::lock).
    ///
    /// # Cancel safety
    /// As for [`lock`](TransactionLocks::lock).
    pub async fn lock_shared(&self, key: AdvisoryKey) -> Result<()> {
        self.ask(key, false, "pg_advisory_xact_lock_shared").await.map(drop)
    }

    /// One attempt: whether the transaction has the lock, alone.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses.
    ///
    /// # Cancel safety
    /// Dropping the future may leave the transaction with the lock or without.
    pub async fn try_lock(&self, key: AdvisoryKey) -> Result<bool> {
        self.ask(key, true, "pg_try_advisory_xact_lock").await
    }

    /// One attempt: whether the transaction has the lock, with others who share it.
    ///
    /// # Errors
    /// As for [`try_lock`](TransactionLocks::try_lock).
    ///
    /// # Cancel safety
    /// As for [`try_lock`](TransactionLocks::try_lock).
    pub async fn try_lock_shared(&self, key: AdvisoryKey) -> Result<bool> {
        self.ask(key, true, "pg_try_advisory_xact_lock_shared").await
    }

    /// The unnamed statement, in one round trip: a pooler passes it on. The function's name is one of ours above.
    async fn ask(&self, key: AdvisoryKey, answers: bool, function: &str) -> Result<bool> {
        let given = if answers { "" } else { " IS NOT NULL" };
        let rows = match key {
            AdvisoryKey::One(key) => {
                let typed: &[(&(dyn ToSql + Sync), Type)] = &[(&key, Type::INT8)];
                self.0.query_typed(&format!("SELECT pg_catalog.{function}($1){given}"), typed).await
            }
            AdvisoryKey::Pair(first, second) => {
                let typed: &[(&(dyn ToSql + Sync), Type)] = &[(&first, Type::INT4), (&second, Type::INT4)];
                self.0.query_typed(&format!("SELECT pg_catalog.{function}($1, $2){given}"), typed).await
            }
        };
        let rows = rows.map_err(|error| {
            if failure::has_code(&error, &[SqlState::LOCK_NOT_AVAILABLE]) {
                return Error::new(
                    ErrorKind::Timeout,
                    format!("somebody else had the advisory lock {key} until lock_timeout passed"),
                );
            }
            failure::of_statement(&error).doing("take an advisory lock in a transaction")
        })?;
        Ok(rows.first().is_some_and(|row| row.try_get(0).unwrap_or(false)))
    }
}

impl std::fmt::Debug for TransactionLocks<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TransactionLocks")
    }
}
