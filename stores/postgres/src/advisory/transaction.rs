//! Advisory locks of a transaction of the caller: lock and write commit together, also through PgBouncer.

use distlock_core::store::support::errors;
use distlock_core::{Error, ErrorKind, Result};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{CancelToken, NoTls, Transaction};

use super::key::AdvisoryKey;
use super::transaction_wait::{ROLL_BACK, SETTINGS, WaitParts};
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
    /// A lock that is free costs one round trip. Only a wait has savepoints around it, so that a wait that ends without the lock
    /// leaves the transaction usable. The statement of a wait ends every two seconds, or a second after `deadlock_timeout` if that
    /// is later, and is sent again: transactions that wait for longer get the lock in any order.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] if `lock_timeout` passed, and [`ErrorKind::Deadlock`] if the server found that transactions wait for
    /// each other: the transaction can go on with what it has. Otherwise if the server cannot be reached or refuses; the
    /// transaction can only be rolled back then.
    ///
    /// # Cancel safety
    /// Dropping the future ends the wait: a cancel request is sent to the server, over a connection of its own and without TLS
    /// (the request has no secret but its number). A client that insists on TLS (`sslmode=require`) cannot send it; the wait then
    /// ends with its statement, after two seconds. The transaction can only be rolled back.
    pub async fn lock(&self, key: AdvisoryKey) -> Result<()> {
        self.wait(key, LockFunction::TryLock, LockFunction::Lock).await
    }

    /// Waits until the transaction holds the lock in shared mode.
    ///
    /// # Errors
    /// As for [`lock`](TransactionLocks::lock).
    ///
    /// # Cancel safety
    /// As for [`lock`](TransactionLocks::lock).
    pub async fn lock_shared(&self, key: AdvisoryKey) -> Result<()> {
        self.wait(key, LockFunction::TryLockShared, LockFunction::LockShared).await
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

    /// One attempt, which does not overtake waiters, and then a wait.
    async fn wait(&self, key: AdvisoryKey, attempt: LockFunction, wait: LockFunction) -> Result<()> {
        if self.call(key, attempt).await? {
            return Ok(());
        }
        let parts = self.wait_parts().await?;
        loop {
            self.execute(&parts.begin()).await?;
            let cancel = CancelOnDrop(Some(self.0.cancel_token()));
            let waited = self.call(key, wait).await;
            cancel.disarm();
            let Err(error) = waited else { return self.execute(&parts.end()).await };
            // If this fails too, the connection is gone, and the first error says why.
            let rolled_back = self.execute(ROLL_BACK).await;
            if rolled_back.is_err() || !parts.goes_on(&error) {
                return Err(error);
            }
        }
    }

    async fn wait_parts(&self) -> Result<WaitParts> {
        let rows = self.0.query_typed(SETTINGS, &[]).await.map_err(failed)?;
        let row = rows.first().ok_or_else(errors::too_few_answers)?;
        let setting = |column| row.try_get::<_, &str>(column).map_err(failed);
        WaitParts::new(setting(0)?, setting(1)?)
    }

    async fn execute(&self, statements: &str) -> Result<()> {
        self.0.batch_execute(statements).await.map_err(failed)
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
            if error::has_code(&error, &[SqlState::T_R_DEADLOCK_DETECTED]) {
                return deadlock(key);
            }
            failed(error)
        })?;
        Ok(rows.first().is_some_and(|row| row.try_get(0).unwrap_or(false)))
    }
}

fn failed(error: tokio_postgres::Error) -> Error {
    error::from_statement(error).doing("acquire an advisory lock in a transaction")
}

pub(crate) fn deadlock(key: AdvisoryKey) -> Error {
    let what = format!("the wait for the advisory lock {key} ended: transactions wait for each other");
    Error::new(ErrorKind::Deadlock, what)
        .advise("roll back and try again, and acquire locks in the same order everywhere")
}

/// Ends the statement of a wait whose future was dropped. Its connection is of no use to others before that.
struct CancelOnDrop(Option<CancelToken>);

impl CancelOnDrop {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        let Some(token) = self.0.take() else { return };
        // Without a runtime the connection has no task either, and ends.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if let Err(error) = token.cancel_query(NoTls).await {
                    tracing::debug!(%error, "the wait of a dropped lock was not cancelled");
                }
            });
        }
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
