//! Statements over a connection that a pool of deadpool opened.

use std::fmt;
use std::time::Duration;

use deadpool_postgres::{Object, Pool, PoolError};
use distlock_core::store::support::errors;
use distlock_core::{Error, ErrorKind, Result};

use crate::PostgresStore;
use crate::config::PostgresConfig;
use crate::connect::{self, CONNECT_TIMEOUT};
use crate::connection::{ClientHandle, Connection, Driver};
use crate::error;

/// How long the pool may take to return a connection. Shorter than [`CONNECT_TIMEOUT`], so that the error names the pool.
const POOL_TIMEOUT: Duration = Duration::from_secs(5);

impl PostgresStore {
    /// Sends statements over a connection that the pool opens, with its address, login and TLS.
    ///
    /// The store takes one connection out of the pool when it connects, and another one when that ends. It does not return it:
    /// the pool opens a new one in its place when it needs one, so the application can use as many as before, and the server has
    /// one more than the pool's `max_size`. Renewals do not wait for connections of the application, and our settings never
    /// reach it. Only while the store connects does it wait for the pool, for at most five seconds.
    ///
    /// A connection of the pool cannot listen: the pool discards notifications. So while the process has waiters, the store opens
    /// a second connection as `config` says, with its address, login and TLS; deadpool does not show those of the pool.
    /// With [`Listen::Off`](crate::Listen::Off) it opens none, and waiters poll.
    ///
    /// ```no_run
    /// use distlock_core::{Locks, store::Backend};
    /// use distlock_postgres::{PostgresConfig, PostgresStore};
    ///
    /// # async fn example(settings: deadpool_postgres::Config) -> Result<(), Box<dyn std::error::Error>> {
    /// let pool = settings.create_pool(None, tokio_postgres::NoTls)?;
    /// let config = PostgresConfig::new(settings.get_pg_config()?).schema("locks")?;
    /// let locks = Locks::new(Backend::lease(PostgresStore::with_deadpool(pool, config).await?))?;
    /// # drop(locks); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As for [`connect`](PostgresStore::connect). [`ErrorKind::Unavailable`] if the pool is exhausted or closed.
    ///
    /// # Cancel safety
    /// As for [`connect`](PostgresStore::connect).
    pub async fn with_deadpool(pool: Pool, config: PostgresConfig) -> Result<Self> {
        PostgresStore::connect_through(config, Some(ConnectionPool(pool))).await
    }
}

/// A pool of the application.
#[derive(Clone)]
pub(crate) struct ConnectionPool(Pool);

impl ConnectionPool {
    /// Takes a connection out of the pool, with the settings of our statements.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind: a connection that was taken out is closed.
    pub(crate) async fn open(&self) -> Result<Connection> {
        connect::within(CONNECT_TIMEOUT, async {
            let object = match tokio::time::timeout(POOL_TIMEOUT, self.0.get()).await {
                Ok(object) => object.map_err(from_pool)?,
                Err(_) => return Err(self.exhausted()),
            };
            let client = Object::take(object);
            let server = connect::server_info(&client).await?;
            let connection = Connection::new(ClientHandle::Pooled(client), server, Driver::of_another_task());
            connect::with_settings(connection).await
        })
        .await
    }

    fn exhausted(&self) -> Error {
        let max_size = self.0.status().max_size;
        errors::unavailable(format!("the pool has no free connection within {POOL_TIMEOUT:?}, of {max_size}"))
            .advise("raise max_size of the pool, or find out what keeps its connections")
    }
}

impl fmt::Debug for ConnectionPool {
    // Not the pool's own, which shows its manager.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ConnectionPool").field(&self.0.status()).finish()
    }
}

fn from_pool(failed: PoolError) -> Error {
    match failed {
        PoolError::Backend(error) => error::from_connect(error),
        PoolError::Timeout(_) => errors::unavailable("the pool has no connection within its own time limit"),
        PoolError::Closed => Error::new(ErrorKind::Unavailable, "the pool is closed")
            .with_retry(false)
            .advise("close the pool after the locks are shut down"),
        other => Error::new(ErrorKind::Unavailable, format!("the pool has no connection: {other}")),
    }
}
