//! Fencing and advisory locks in a transaction of sqlx.

use distlock_core::store::support::errors;
use distlock_core::{Error, ErrorKind, FencingToken, Result, StaleToken};
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{Postgres, Row, Transaction};
use tokio_postgres::error::SqlState;

use crate::advisory::transaction::{LockFunction, deadlock, lock_timeout_passed};
use crate::advisory::transaction_wait::{ROLL_BACK, SETTINGS, WaitParts};
use crate::values::to_token;
use crate::{AdvisoryKey, Fence, error};

impl Fence {
    /// As [`admit`](Fence::admit), in a transaction of sqlx.
    ///
    /// ```no_run
    /// use distlock_postgres::{Fence, PostgresConfig};
    ///
    /// # async fn run(
    /// #     pool: sqlx::PgPool, guard: distlock_core::Guard, config: PostgresConfig,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let fence = Fence::new(&config);
    /// let mut transaction = pool.begin().await?;
    /// fence.admit_sqlx(&mut transaction, "ledger/7", guard.token()).await?; // Err(Lost) for a stale token
    /// sqlx::query("INSERT INTO ledger VALUES (7, $1)").bind(guard.token()).execute(&mut *transaction).await?;
    /// transaction.commit().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As for [`admit`](Fence::admit).
    ///
    /// # Cancel safety
    /// As for [`admit`](Fence::admit).
    pub async fn admit_sqlx(
        &self,
        transaction: &mut Transaction<'_, Postgres>,
        resource: &str,
        token: FencingToken,
    ) -> Result<()> {
        self.check_name(resource)?;
        let failed = |error: sqlx::Error| from_sqlx(&error).doing("check a fencing token");
        let admit = unnamed(self.admit_statement()).bind(resource).bind(token);
        if admit.fetch_optional(&mut **transaction).await.map_err(failed)?.is_some() {
            return Ok(());
        }
        let last_seen = unnamed(self.last_seen_statement()).bind(resource);
        let row = last_seen.fetch_optional(&mut **transaction).await.map_err(failed)?;
        let seen = row.and_then(|row| row.try_get::<i64, _>(0).ok()).map_or(token, to_token);
        Err(StaleToken { token, seen }.into())
    }
}

/// Acquires advisory locks that end with a transaction of sqlx, by commit or by rollback. As
/// [`TransactionLocks`](crate::TransactionLocks), which takes a transaction of tokio-postgres.
///
/// ```no_run
/// use distlock_core::Kind;
/// use distlock_postgres::{AdvisoryKey, SqlxTransactionLocks};
///
/// # async fn run(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// let mut transaction = pool.begin().await?;
/// SqlxTransactionLocks::of(&mut transaction).lock(AdvisoryKey::of(Kind::Mutex, "account/42")).await?;
/// sqlx::query("UPDATE account SET balance = balance - 10 WHERE id = 42").execute(&mut *transaction).await?;
/// transaction.commit().await?; // the write is visible and the lock free at the same moment
/// # Ok(()) }
/// ```
pub struct SqlxTransactionLocks<'a, 'c>(&'a mut Transaction<'c, Postgres>);

impl<'a, 'c> SqlxTransactionLocks<'a, 'c> {
    /// Locks that end with this transaction.
    #[must_use]
    pub fn of(transaction: &'a mut Transaction<'c, Postgres>) -> Self {
        SqlxTransactionLocks(transaction)
    }

    /// Waits until the transaction holds the lock exclusively. `SET LOCAL lock_timeout` limits the wait.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] if `lock_timeout` passed, and [`ErrorKind::Deadlock`] if the server found that transactions wait for
    /// each other: the transaction can go on with what it has. Otherwise if the server cannot be reached or refuses; the
    /// transaction can only be rolled back then.
    ///
    /// # Cancel safety
    /// After the future was dropped the server may wait for the lock for two seconds more, or until a second after
    /// `deadlock_timeout`. Drop the transaction too: sqlx rolls it back then, before it uses the connection again.
    pub async fn lock(&mut self, key: AdvisoryKey) -> Result<()> {
        self.wait(key, LockFunction::TryLock, LockFunction::Lock).await
    }

    /// Waits until the transaction holds the lock in shared mode.
    ///
    /// # Errors
    /// As for [`lock`](SqlxTransactionLocks::lock).
    ///
    /// # Cancel safety
    /// As for [`lock`](SqlxTransactionLocks::lock).
    pub async fn lock_shared(&mut self, key: AdvisoryKey) -> Result<()> {
        self.wait(key, LockFunction::TryLockShared, LockFunction::LockShared).await
    }

    /// One attempt to lock exclusively. Returns whether the transaction holds the lock.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the outcome unknown: the transaction may hold the lock.
    pub async fn try_lock(&mut self, key: AdvisoryKey) -> Result<bool> {
        self.call(key, LockFunction::TryLock).await
    }

    /// One attempt to lock in shared mode. Returns whether the transaction holds the lock.
    ///
    /// # Errors
    /// As for [`try_lock`](SqlxTransactionLocks::try_lock).
    ///
    /// # Cancel safety
    /// As for [`try_lock`](SqlxTransactionLocks::try_lock).
    pub async fn try_lock_shared(&mut self, key: AdvisoryKey) -> Result<bool> {
        self.call(key, LockFunction::TryLockShared).await
    }

    /// One attempt, which does not overtake waiters, and then a wait with a savepoint around it.
    async fn wait(&mut self, key: AdvisoryKey, attempt: LockFunction, wait: LockFunction) -> Result<()> {
        if self.call(key, attempt).await? {
            return Ok(());
        }
        let parts = self.wait_parts().await?;
        loop {
            self.execute(&parts.begin()).await?;
            let Err(error) = self.call(key, wait).await else { return self.execute(&parts.end()).await };
            // If this fails too, the connection is gone, and the first error says why.
            let rolled_back = self.execute(ROLL_BACK).await;
            if rolled_back.is_err() || !parts.goes_on(&error) {
                return Err(error);
            }
        }
    }

    async fn wait_parts(&mut self) -> Result<WaitParts> {
        let row = unnamed(SETTINGS).fetch_one(&mut **self.0).await.map_err(failed)?;
        let setting = |column: usize| row.try_get::<String, _>(column).map_err(failed);
        WaitParts::new(&setting(0)?, &setting(1)?)
    }

    async fn execute(&mut self, statements: &str) -> Result<()> {
        sqlx::raw_sql(statements).execute(&mut **self.0).await.map(drop).map_err(failed)
    }

    async fn call(&mut self, key: AdvisoryKey, function: LockFunction) -> Result<bool> {
        let text = function.statement(key);
        let query = match key {
            AdvisoryKey::One(key) => unnamed(&text).bind(key),
            AdvisoryKey::Pair(first, second) => unnamed(&text).bind(first).bind(second),
        };
        let row = query.fetch_one(&mut **self.0).await.map_err(|error| {
            let code = error.as_database_error().and_then(|error| error.code());
            if code.as_deref() == Some(SqlState::LOCK_NOT_AVAILABLE.code()) {
                return lock_timeout_passed(key);
            }
            if code.as_deref() == Some(SqlState::T_R_DEADLOCK_DETECTED.code()) {
                return deadlock(key);
            }
            failed(error)
        })?;
        Ok(row.try_get(0).unwrap_or(false))
    }
}

impl std::fmt::Debug for SqlxTransactionLocks<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SqlxTransactionLocks")
    }
}

/// An unnamed statement, which works through a pooler.
fn unnamed(text: &str) -> Query<'_, Postgres, PgArguments> {
    sqlx::query(text).persistent(false)
}

fn failed(error: sqlx::Error) -> Error {
    from_sqlx(&error).doing("acquire an advisory lock in a transaction")
}

fn from_sqlx(error: &sqlx::Error) -> Error {
    match error {
        sqlx::Error::Database(reply) => {
            let code = reply.code().unwrap_or_default();
            error::from_server(&SqlState::from_code(&code), reply.message())
        }
        sqlx::Error::Io(cause) => errors::connection_lost(cause),
        other => Error::new(ErrorKind::Internal, other.to_string()).with_unknown_outcome(),
    }
}
