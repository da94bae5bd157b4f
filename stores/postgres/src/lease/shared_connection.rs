//! The connection that all requests of a store share, opened again when it ends.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use distlock_core::Result;
use distlock_core::store::support::errors;
use distlock_core::store::support::reconnect::Reconnect;
use tokio_postgres::Row;

use crate::clients::ConnectionPool;
use crate::config::PostgresConfig;
use crate::connect::{CONNECT_TIMEOUT, Notifications, open_with_settings};
use crate::connection::Connection;
use crate::error;
use crate::schema::Schema;
use crate::statement::Request;

const FIRST_BACKOFF: Duration = Duration::from_millis(20);
const LAST_BACKOFF: Duration = Duration::from_secs(1);
/// How long the requests in flight on a silent connection may still be answered.
const SILENT_CONNECTION_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct SharedConnection {
    pub(super) config: PostgresConfig,
    pub(super) schema: Schema,
    pool: Option<ConnectionPool>,
    current: Reconnect<Connection>,
    /// A silent connection that was replaced and may still answer.
    retired: Mutex<Weak<Connection>>,
    statements: AtomicU64,
}

impl SharedConnection {
    /// Connects, and creates missing tables.
    pub(super) async fn open(
        config: PostgresConfig,
        schema: Schema,
        pool: Option<ConnectionPool>,
    ) -> Result<Self> {
        let shared = SharedConnection {
            config,
            schema,
            pool,
            current: Reconnect::new(CONNECT_TIMEOUT).with_backoff(FIRST_BACKOFF, LAST_BACKOFF),
            retired: Mutex::default(),
            statements: AtomicU64::new(0),
        };
        let connection = shared.get().await?;
        shared.schema.ensure(connection.client()).await?;
        Ok(shared)
    }

    /// How many statements were sent.
    #[cfg_attr(not(feature = "bench"), allow(dead_code))]
    pub(super) fn statements(&self) -> u64 {
        self.statements.load(Ordering::Relaxed)
    }

    /// The connection, opened now if there is none.
    pub(super) async fn get(&self) -> Result<Arc<Connection>> {
        if let Some(connection) = self.current.current().filter(|connection| connection.is_silent()) {
            self.retire(&connection);
        }
        self.current.get(|| self.open_connection()).await
    }

    async fn open_connection(&self) -> Result<Connection> {
        match &self.pool {
            #[cfg(feature = "deadpool-postgres")]
            Some(pool) => pool.open().await,
            _ => open_with_settings(&self.config, None).await,
        }
    }

    /// Replaces a connection that is half-open, or whose server is stalled: new requests do not wait for it. One at a time:
    /// if the new connection is silent as well, the server is stalled, and a third one does not help.
    fn retire(&self, connection: &Arc<Connection>) {
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        if retired.upgrade().is_some_and(|retired| retired.is_open()) || !self.current.discard(connection) {
            return;
        }
        *retired = Arc::downgrade(connection);
        let silent = retired.clone();
        tokio::spawn(async move {
            tokio::time::sleep(SILENT_CONNECTION_LIMIT).await;
            if let Some(connection) = silent.upgrade() {
                connection.close();
            }
        });
    }

    /// A separate connection, for notifications.
    pub(super) async fn open_listener(&self, notifications: Notifications) -> Result<Connection> {
        open_with_settings(&self.config, Some(notifications)).await
    }

    /// Runs a statement in one round trip.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the outcome unknown. The connection stays usable.
    pub(super) async fn query(&self, request: &Request<'_>) -> Result<Vec<Row>> {
        let (mut created, mut was_idle) = (false, false);
        loop {
            let connection = self.get().await?;
            self.statements.fetch_add(1, Ordering::Relaxed);
            let outcome = tokio::select! {
                biased;
                outcome = connection.run(request) => outcome,
                () = connection.abandoned() => return Err(errors::connection_lost("it stopped replying")),
            };
            let error = match outcome {
                Ok(rows) => return Ok(rows),
                Err(error) => error,
            };
            if error::is_missing_table(&error) && !created {
                created = true;
                self.schema.ensure(connection.client()).await?;
                continue;
            }
            if connection.was_idle(&error) && !was_idle {
                // Sent while the server was closing the session: sent again on another one.
                was_idle = true;
                self.current.discard(&connection);
                continue;
            }
            if error::is_read_only(&error) {
                // Another server may be the primary now. Requests in flight on this connection are not disturbed.
                self.current.discard(&connection);
            }
            return Err(error::from_statement(error));
        }
    }
}
