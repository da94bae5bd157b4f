//! Locks of a transaction of the caller: lock and write commit together.

use std::time::Duration;

use distlock_core::store::support::errors;
use distlock_core::{Error, ErrorKind, Resource, Result};
use futures_util::io::{AsyncRead, AsyncWrite};
use tiberius::{Client, Query};

use crate::config::SqlServerConfig;
use crate::error;
use crate::identifier::Names;
use crate::lock_name::LockName;
use crate::result_code::Outcome;
use crate::rows;

const LOCK: &str = include_str!("sql/transaction_lock.sql");
const NO_TRANSACTION: i32 = -1000;

/// Acquires application locks that end with a transaction of the caller, by commit or by rollback. They need no release, no table
/// and no rights, and exclude the mutexes and reader-writer locks of a [`SqlServerStore`](crate::SqlServerStore) with the same
/// schema, table and principal. They have no fencing token: the transaction is the fence.
///
/// The server writes such locks to its log: where their rate is high, above all with synchronous replicas, those of the store cost
/// less.
///
/// ```no_run
/// use distlock_core::{Kind, Resource};
/// use distlock_sqlserver::{SqlServerConfig, TransactionLocks};
///
/// # async fn run<S: futures_util::AsyncRead + futures_util::AsyncWrite + Unpin + Send>(
/// #     client: &mut tiberius::Client<S>, config: &SqlServerConfig,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// client.begin_transaction().await?;
/// let account = Resource::new(Kind::Mutex, "account/42")?;
/// TransactionLocks::of(client, config).lock(&account, None).await?;
/// client.execute("UPDATE account SET balance = balance - 10 WHERE id = 42", &[]).await?;
/// client.commit_transaction().await?; // the write is visible and the lock free at the same moment
/// # Ok(()) }
/// ```
pub struct TransactionLocks<'a, S: AsyncRead + AsyncWrite + Unpin + Send> {
    client: &'a mut Client<S>,
    names: Names,
    principal: String,
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin + Send> TransactionLocks<'a, S> {
    /// Locks that end with the transaction that this client has open, under the names of `config`.
    #[must_use]
    pub fn of(client: &'a mut Client<S>, config: &SqlServerConfig) -> Self {
        TransactionLocks { client, names: config.names.clone(), principal: config.principal.clone() }
    }

    /// Waits until the transaction holds the lock exclusively, for at most `limit`. The driver cuts a statement off after 30 seconds
    /// unless `Config::command_timeout` of the client says otherwise: set that for longer waits.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] if the time limit passed; the transaction can go on. [`ErrorKind::Deadlock`] if the server found that
    /// transactions wait for each other: roll back. [`ErrorKind::InvalidInput`] without a transaction, and for a semaphore.
    /// Otherwise if the server cannot be reached or refuses.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the client in the middle of a request: close it, which rolls the transaction back.
    pub async fn lock(&mut self, resource: &Resource, limit: Option<Duration>) -> Result<()> {
        self.wait(resource, "Exclusive", limit).await
    }

    /// The same in shared mode.
    ///
    /// # Errors
    /// As for [`lock`](TransactionLocks::lock).
    ///
    /// # Cancel safety
    /// As for [`lock`](TransactionLocks::lock).
    pub async fn lock_shared(&mut self, resource: &Resource, limit: Option<Duration>) -> Result<()> {
        self.wait(resource, "Shared", limit).await
    }

    /// One attempt to lock exclusively. Returns whether the transaction holds the lock.
    ///
    /// # Errors
    /// As for [`lock`](TransactionLocks::lock).
    ///
    /// # Cancel safety
    /// As for [`lock`](TransactionLocks::lock).
    pub async fn try_lock(&mut self, resource: &Resource) -> Result<bool> {
        self.call(resource, "Exclusive", 0).await
    }

    /// One attempt to lock in shared mode. Returns whether the transaction holds the lock.
    ///
    /// # Errors
    /// As for [`lock`](TransactionLocks::lock).
    ///
    /// # Cancel safety
    /// As for [`lock`](TransactionLocks::lock).
    pub async fn try_lock_shared(&mut self, resource: &Resource) -> Result<bool> {
        self.call(resource, "Shared", 0).await
    }

    async fn wait(&mut self, resource: &Resource, mode: &'static str, limit: Option<Duration>) -> Result<()> {
        let timeout = limit.map_or(-1, |limit| i32::try_from(limit.as_millis()).unwrap_or(i32::MAX));
        if self.call(resource, mode, timeout).await? {
            return Ok(());
        }
        let what = format!("timed out after {:?}", limit.unwrap_or_default());
        Err(Error::new(ErrorKind::Timeout, what).about(resource))
    }

    async fn call(&mut self, resource: &Resource, mode: &'static str, timeout_ms: i32) -> Result<bool> {
        use distlock_core::Kind;
        if !matches!(resource.kind(), Kind::Mutex | Kind::RwLock) {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "a transaction holds mutexes and reader-writer locks",
            )
            .about(resource)
            .advise("use the store for semaphores"));
        }
        let name = LockName::of(&self.names, resource);
        let mut query = Query::new(LOCK);
        query.bind(name.lock());
        query.bind(mode);
        query.bind(self.principal.as_str());
        query.bind(timeout_ms);
        let failed = |error| error::of_statement(&error).error.about(resource);
        let results = query.query(self.client).await.map_err(failed)?.into_results().await.map_err(failed)?;
        let row = results.iter().flatten().next();
        let free = rows::optional(row, "free")?.and_then(|free| i32::try_from(free).ok());
        let got: i32 = rows::number(row, "got")?;
        if got == NO_TRANSACTION {
            return Err(Error::new(ErrorKind::InvalidInput, "the client has no transaction open")
                .about(resource)
                .advise("call begin_transaction before, or use the store"));
        }
        match Outcome::of(got, timeout_ms, free) {
            Outcome::Granted => Ok(true),
            Outcome::Busy => Ok(false),
            Outcome::Cancelled => {
                Err(errors::unavailable("the wait was cancelled by the server").about(resource))
            }
            outcome => Err(outcome.error().about(resource)),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> std::fmt::Debug for TransactionLocks<'_, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TransactionLocks")
    }
}
