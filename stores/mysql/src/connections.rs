//! Connections of a store: made when they are needed, kept for the next request, discarded after anything unusual.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use distlock_core::store::support::errors;
use distlock_core::{Error, ErrorKind, Result};
use futures_util::FutureExt;
#[cfg(feature = "sqlx")]
use mysql_async::DriverError;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, Pool, Row};

use crate::config::{CONNECT_TIMEOUT, MysqlConfig};
use crate::error::{self, Cause, Failure};
use crate::server::Product;

/// How long a request may take. The server's own limits for locked rows and tables are shorter.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How many idle connections are kept.
const MOST_IDLE: usize = 4;
/// After this long without use a connection is checked before it is used: the server, or a firewall, may have closed it.
const CHECK_AFTER: Duration = Duration::from_secs(30);

/// Where connections come from.
#[derive(Clone)]
pub(crate) enum Source {
    Own(Opts),
    /// The application's own.
    Pool(Pool),
}

impl Source {
    pub(crate) fn of_config(config: &MysqlConfig) -> Result<Self> {
        Ok(Source::Own(config.driver_options()?))
    }

    /// Opens a connection in a task of its own: if TLS is wanted and there is no crypto provider of rustls, or two and none
    /// chosen, the driver panics.
    fn connecting(&self) -> AbortOnDrop<mysql_async::Result<Conn>> {
        let source = self.clone();
        AbortOnDrop(tokio::spawn(async move {
            match source {
                Source::Own(opts) => Conn::new(opts).await,
                Source::Pool(pool) => pool.get_conn().await,
            }
        }))
    }

    /// False if the server says that it has no TLS. Other failures say nothing about it.
    #[cfg(feature = "sqlx")]
    pub(crate) async fn offers_tls(&self) -> bool {
        let mut task = self.connecting();
        match tokio::time::timeout(CONNECT_TIMEOUT, &mut task.0).await {
            Ok(Ok(Ok(conn))) => discard(conn),
            Ok(Ok(Err(mysql_async::Error::Driver(DriverError::NoClientSslFlagFromServer)))) => return false,
            _ => {}
        }
        true
    }

    /// Opens a connection and runs `setup` on it.
    pub(crate) async fn open(&self, setup: &str) -> Result<Connection> {
        let mut task = self.connecting();
        let conn = match tokio::time::timeout(CONNECT_TIMEOUT, &mut task.0).await {
            Err(_) => return Err(errors::connect_timeout(CONNECT_TIMEOUT)),
            Ok(Err(_)) => {
                return Err(Error::new(ErrorKind::Internal, "the driver panicked while it connected").advise(
                    "for TLS, enable one of the features tls-ring and tls-aws-lc-rs of distlock; with two rustls crypto \
                     providers in one program, choose one with CryptoProvider::install_default",
                ));
            }
            Ok(Ok(Err(error))) => return Err(error::of_connecting(&error)),
            Ok(Ok(Ok(conn))) => conn,
        };
        let mut connection = Connection { conn: Some(conn), used: Instant::now() };
        connection.query(setup, CONNECT_TIMEOUT).await.map_err(|failure| failure.error)?;
        Ok(connection)
    }
}

struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Between two statements of a request. No value contains it: they are written as hexadecimal digits.
const END_OF_STATEMENT: &str = ";\n";

/// One connection. Dropped while a request is in flight it is closed, and never goes back to a pool.
pub(crate) struct Connection {
    conn: Option<Conn>,
    used: Instant,
}

impl Connection {
    /// The server's number of this connection.
    pub(crate) fn id(&self) -> u32 {
        self.conn.as_ref().map_or(0, Conn::id)
    }

    pub(crate) fn version(&self) -> (u16, u16, u16) {
        self.conn.as_ref().map_or((0, 0, 0), Conn::server_version)
    }

    /// Runs statements and returns the rows of all of them. After a failure the connection is usable, unless the cause is
    /// [`Cause::Broken`]; a transaction may be open then.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub(crate) async fn query(&mut self, text: &str, limit: Duration) -> Result<Vec<Row>, Failure> {
        // Taken out while a request is in flight: if this future is dropped, so is the connection.
        let Some(conn) = self.conn.take() else {
            return Err(Failure::broken(errors::unavailable("the connection is closed")));
        };
        let mut busy = Busy(Some(conn));
        let outcome = tokio::time::timeout(limit, busy.query(text)).await;
        let failure = match outcome {
            Ok(Ok(rows)) => {
                self.restore(busy);
                return Ok(rows);
            }
            Ok(Err(error)) => error::of_statement(&error),
            Err(_) => Failure::broken(errors::no_reply(limit)),
        };
        if failure.cause != Cause::Broken {
            self.restore(busy);
        }
        Err(failure)
    }

    /// Runs the statements of a request one after the other, each in a message of its own.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    async fn query_apart(&mut self, text: &str, limit: Duration) -> Result<Vec<Row>, Failure> {
        let begun = Instant::now();
        let mut rows = Vec::new();
        for statement in text.split(END_OF_STATEMENT) {
            rows.extend(self.query(statement, limit.saturating_sub(begun.elapsed())).await?);
        }
        Ok(rows)
    }

    fn restore(&mut self, mut busy: Busy) {
        self.conn = busy.0.take();
        self.used = Instant::now();
    }

    pub(crate) fn is_open(&self) -> bool {
        self.conn.is_some()
    }

    /// Closes it now. What the session holds on the server ends with it.
    pub(crate) fn discard(self) {
        drop(self);
    }
}

/// Closes it, also if it came from a pool: whatever the session was set to or holds, no other program meets it.
impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(conn) = self.conn.take() {
            discard(conn);
        }
    }
}

/// A connection with a request in flight.
struct Busy(Option<Conn>);

impl Busy {
    async fn query(&mut self, text: &str) -> mysql_async::Result<Vec<Row>> {
        let Some(conn) = &mut self.0 else { return Ok(Vec::new()) };
        let mut result = conn.query_iter(text).await?;
        let mut rows = Vec::new();
        loop {
            let is_last = result.is_empty();
            // `None` ends the rows of one statement. The driver keeps an error of a later statement for the call after
            // that, and says that nothing follows meanwhile: so there is always one more call.
            while let Some(row) = result.next().await? {
                rows.push(row);
            }
            if is_last {
                return Ok(rows);
            }
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        if let Some(conn) = self.0.take() {
            discard(conn);
        }
    }
}

/// One poll marks the connection as disconnected, so that no pool keeps it, and sends the farewell if the socket takes it.
/// Dropping the rest closes the socket.
fn discard(conn: Conn) {
    let _ = conn.disconnect().now_or_never();
}

/// The connections that requests of a store share.
pub(crate) struct Connections {
    source: Source,
    setup: String,
    idle: Mutex<Vec<Connection>>,
    requests: AtomicU64,
    statements_apart: bool,
}

impl Connections {
    pub(crate) fn new(source: Source, setup: String) -> Self {
        Connections {
            source,
            setup,
            idle: Mutex::default(),
            requests: AtomicU64::new(0),
            statements_apart: false,
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    /// Sends each statement in a message of its own: for a node of Galera. It ends a transaction of a client that is in conflict with
    /// one of another node, also between two statements. The next message is then answered by an error; the next statement of the
    /// same message is not always: a claim was answered as granted, and `COMMIT` as done, although nothing was written (seen on
    /// MariaDB 10.11.19 in one of a few hundred conflicts).
    ///
    /// A client may be paused between two messages now, so the server is told how long it may keep rows locked. For connections
    /// opened from now on.
    pub(crate) fn send_statements_apart(&mut self, product: Product) {
        self.statements_apart = true;
        // Not known to MySQL.
        if product == Product::MariaDb {
            self.setup.push_str(";\n    SET SESSION idle_transaction_timeout = 2");
        }
    }

    /// How many requests were sent.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    async fn take(&self) -> Result<Connection> {
        loop {
            let Some(mut connection) = self.idle().pop() else { return self.source.open(&self.setup).await };
            if connection.used.elapsed() < CHECK_AFTER
                || connection.query("DO 1", CONNECT_TIMEOUT).await.is_ok()
            {
                return Ok(connection);
            }
        }
    }

    /// Keeps a connection without a transaction for the next request.
    pub(crate) fn keep(&self, connection: Connection) {
        let mut idle = self.idle();
        if idle.len() < MOST_IDLE {
            idle.push(connection);
        }
    }

    /// A connection for a purpose of its own.
    pub(crate) async fn open(&self) -> Result<Connection> {
        self.source.open(&self.setup).await
    }

    /// Runs statements on a connection of its own and returns their rows. If they fail, their transaction is rolled back.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection; its transaction is rolled back or, if its end was sent, committed.
    pub(crate) async fn run(&self, text: &str) -> Result<Vec<Row>, Failure> {
        let mut connection = self.take().await.map_err(|error| Failure { error, cause: Cause::Other })?;
        self.requests.fetch_add(1, Ordering::Relaxed);
        let mut outcome = match self.statements_apart {
            true => connection.query_apart(text, REQUEST_TIMEOUT).await,
            false => connection.query(text, REQUEST_TIMEOUT).await,
        };
        if let Err(failure) = &outcome
            && failure.cause != Cause::Broken
            && let Err(rollback) = connection.query("ROLLBACK", CONNECT_TIMEOUT).await
            && !connection.is_open()
        {
            tracing::debug!(error = %rollback.error, "a rollback failed; the connection was closed");
        }
        if connection.is_open() {
            self.keep(connection);
        } else if let Err(failure) = &mut outcome {
            failure.cause = Cause::Broken;
        }
        outcome
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").field("idle", &self.idle().len()).finish_non_exhaustive()
    }
}
