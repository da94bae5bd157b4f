//! Advisory locks of a transaction of the caller: lock and write commit together, also through PgBouncer.

use distlock_core::{Error, ErrorKind, Result};
use tokio_postgres::Transaction;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use super::key::AdvisoryKey;
use crate::error;

/// Acquires advisory locks that end with a transaction, by commit or by rollback. They need no release and no tables.
///
/// ```no_run
/// use distlock_core::Kind;
/// use distlock_postgres::{AdvisoryKey, TransactionLocks};
///
/// # async fn run(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let transaction = client.transaction().await?;
/// TransactionLocks::of(&transaction).lock(AdvisoryKey::of(Kind::Mutex, "account/42")).await?;
/// transaction.execute("UPDATE account SET balance = balance - 10 WHERE id = 42", &[]).await?;
/// transaction.commit().await?; // the write is visible and the lock free at the same moment
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

    /// Waits until the transaction holds the lock exclusively. `SET LOCAL lock_timeout` limits the wait.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] if `lock_timeout` passed. Otherwise if the server cannot be reached or refuses. The transaction
    /// can only be rolled back then.
    ///
    /// # Cancel safety
    /// Dropping the future may leave the transaction waiting for the lock: drop the transaction too.
    pub async fn lock(&self, key: AdvisoryKey) -> Result<()> {
        self.call(key, LockFunction::Lock).await.map(drop)
    }

    /// Waits until the transaction holds the lock in shared mode.
    ///
    /// # Errors
    /// As for [`lock`](TransactionLocks::lock).
    ///
    /// # Cancel safety
    /// As for [`lock`](TransactionLocks::lock).
    pub async fn lock_shared(&self, key: AdvisoryKey) -> Result<()> {
        self.call(key, LockFunction::LockShared).await.map(drop)
    }

    /// One attempt to lock exclusively. Returns whether the transaction holds the lock.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the outcome unknown: the transaction may hold the lock.
    pub async fn try_lock(&self, key: AdvisoryKey) -> Result<bool> {
        self.call(key, LockFunction::TryLock).await
    }

    /// One attempt to lock in shared mode. Returns whether the transaction holds the lock.
    ///
    /// # Errors
    /// As for [`try_lock`](TransactionLocks::try_lock).
    ///
    /// # Cancel safety
    /// As for [`try_lock`](TransactionLocks::try_lock).
    pub async fn try_lock_shared(&self, key: AdvisoryKey) -> Result<bool> {
        self.call(key, LockFunction::TryLockShared).await
    }

    /// An unnamed statement in one round trip, which works through a pooler.
    async fn call(&self, key: AdvisoryKey, function: LockFunction) -> Result<bool> {
        let text = function.statement(key);
        let rows = match key {
            AdvisoryKey::One(key) => {
                let typed: &[(&(dyn ToSql + Sync), Type)] = &[(&key, Type::INT8)];
                self.0.query_typed(&text, typed).await
            }
            AdvisoryKey::Pair(first, second) => {
                let typed: &[(&(dyn ToSql + Sync), Type)] = &[(&first, Type::INT4), (&second, Type::INT4)];
                self.0.query_typed(&text, typed).await
            }
        };
        let rows = rows.map_err(|error| {
            if error::has_code(&error, &[SqlState::LOCK_NOT_AVAILABLE]) {
                return lock_timeout_passed(key);
            }
            error::from_statement(error).doing("acquire an advisory lock in a transaction")
        })?;
        Ok(rows.first().is_some_and(|row| row.try_get(0).unwrap_or(false)))
    }
}

/// The server's functions for advisory locks of a transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LockFunction {
    Lock,
    LockShared,
    TryLock,
    TryLockShared,
}

impl LockFunction {
    /// A statement that returns whether the transaction holds the lock; the functions that wait return `void`.
    pub(crate) fn statement(self, key: AdvisoryKey) -> String {
        let (function, granted) = match self {
            LockFunction::Lock => ("pg_advisory_xact_lock", " IS NOT NULL"),
            LockFunction::LockShared => ("pg_advisory_xact_lock_shared", " IS NOT NULL"),
            LockFunction::TryLock => ("pg_try_advisory_xact_lock", ""),
            LockFunction::TryLockShared => ("pg_try_advisory_xact_lock_shared", ""),
        };
        let parameters = match key {
            AdvisoryKey::One(_) => "$1",
            AdvisoryKey::Pair(..) => "$1, $2",
        };
        format!("SELECT pg_catalog.{function}({parameters}){granted}")
    }
}

pub(crate) fn lock_timeout_passed(key: AdvisoryKey) -> Error {
    let what = format!("timed out waiting for the advisory lock {key}: lock_timeout passed");
    Error::new(ErrorKind::Timeout, what)
}

impl std::fmt::Debug for TransactionLocks<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TransactionLocks")
    }
}
