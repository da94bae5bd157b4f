//! Opening a connection: TLS, the driver's handshake, what is at the other end, and the settings of the session.

mod pooler;

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use distlock_core::store::support::errors;
use distlock_core::{Error, ErrorKind, Result};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, NoTls, Notification};
use tokio_util::sync::CancellationToken;

use crate::config::PostgresConfig;
use crate::connection::{ClientHandle, Connection, Driver, ServerInfo};
use crate::error;
use crate::statement::RowLockTimeout;

/// How long connecting may take in all. The driver limits the socket's part only.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The oldest server that knows the syntax of our statements.
const OLDEST: i32 = 120_000;

/// Settings for our statements. One plan for all batch sizes, by key and never by a sequential scan of a table that was small
/// when the plan was made. A limit for rows that another session has locked.
const SETTINGS: &str = "SET lock_timeout = {lock_timeout}; SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET jit = off;
                        SET default_transaction_isolation = 'read committed'";
/// The first version that ends a statement whose client is gone, on systems that can tell.
const CHECKS_CLIENT: i32 = 140_000;
pub(crate) const CHECK_CLIENT: &str = "SET client_connection_check_interval = 1000";

/// Receives the notifications of a connection.
pub(crate) type Notifications = mpsc::UnboundedSender<Notification>;

/// Opens a connection with the settings of our statements. Behind a pooler it sets nothing: other clients would get the
/// settings.
pub(crate) async fn open_with_settings(
    config: &PostgresConfig,
    notifications: Option<Notifications>,
) -> Result<Connection> {
    within(CONNECT_TIMEOUT, async { with_settings(open(config, notifications).await?).await }).await
}

/// Sets what our statements need in a session that is ours.
pub(crate) async fn with_settings(connection: Connection) -> Result<Connection> {
    if connection.server.pooled {
        return Ok(connection);
    }
    let milliseconds = RowLockTimeout::Default.milliseconds().to_string();
    let settings = SETTINGS.replace("{lock_timeout}", &milliseconds);
    if connection.server.version >= CHECKS_CLIENT {
        match connection.client().batch_execute(&format!("{settings}; {CHECK_CLIENT}")).await {
            Ok(()) => return Ok(connection),
            Err(error) => {
                tracing::debug!(%error, "statements of dead clients end late on this server");
            }
        }
    }
    connection.client().batch_execute(&settings).await.map_err(error::from_statement)?;
    Ok(connection)
}

/// Limits the time of connecting.
pub(crate) async fn within<T>(limit: Duration, connecting: impl Future<Output = Result<T>>) -> Result<T> {
    match tokio::time::timeout(limit, connecting).await {
        Ok(connected) => connected,
        Err(_) => Err(errors::connect_timeout(limit)),
    }
}

/// Opens a connection and asks the server what it is. Notifications go to `notifications`.
pub(crate) async fn open(
    config: &PostgresConfig,
    notifications: Option<Notifications>,
) -> Result<Connection> {
    let (client, driver) = match config.tls.connector()? {
        Some(tls) => {
            let (client, connection) = config.client.connect(tls).await.map_err(error::from_connect)?;
            (client, drive(connection, notifications))
        }
        None => {
            let (client, connection) = config.client.connect(NoTls).await.map_err(error::from_connect)?;
            (client, drive(connection, notifications))
        }
    };
    let server = server_info(&client).await?;
    Ok(Connection::new(ClientHandle::Own(client), server, driver))
}

/// Starts the task that drives a connection.
fn drive<S, T>(
    mut connection: tokio_postgres::Connection<S, T>,
    notifications: Option<Notifications>,
) -> Driver
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let ended = CancellationToken::new();
    let end_guard = ended.clone().drop_guard();
    let ended_idle = Arc::new(AtomicBool::new(false));
    let idle = Arc::clone(&ended_idle);
    let task = tokio::spawn(async move {
        // Dropped with this task, also if the task is aborted or its runtime ends.
        let _end_guard = end_guard;
        while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
            match message {
                Ok(AsyncMessage::Notification(notification)) => {
                    if let Some(notifications) = &notifications {
                        let _ = notifications.send(notification);
                    }
                }
                Ok(AsyncMessage::Notice(notice)) => {
                    tracing::debug!(notice = notice.message(), "a notice of the server");
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(%error, "a connection ended");
                    // Stored before the requests in flight learn of the end.
                    idle.store(error::is_idle_timeout(&error), Ordering::SeqCst);
                    return;
                }
            }
        }
    });
    Driver { ended, ended_idle, task: Some(task.abort_handle()) }
}

/// Asks the server what it is.
pub(crate) async fn server_info(client: &Client) -> Result<ServerInfo> {
    let handshake_process = pooler::handshake_process(client).await;
    let typed: &[(&(dyn ToSql + Sync), Type)] = &[(&handshake_process, Type::INT4)];
    let rows = client
        .query_typed(include_str!("sql/connection_info.sql"), typed)
        .await
        .map_err(error::from_statement)?;
    let unexpected = |error: tokio_postgres::Error| Error::new(ErrorKind::Internal, error.to_string());
    let row = rows.first().ok_or_else(errors::too_few_answers)?;
    let process: i32 = row.try_get(0).map_err(unexpected)?;
    let server = ServerInfo {
        version: row.try_get(1).map_err(unexpected)?,
        pooled: handshake_process != Some(process),
        utf8: row.try_get(2).map_err(unexpected)?,
    };
    // Functions in the schema of temporary tables are not found without their schema.
    let schemas: Vec<String> = row.try_get(4).map_err(unexpected)?;
    let first = schemas.iter().find(|schema| !schema.starts_with("pg_temp")).map_or("", String::as_str);
    if server.pooled && first != "pg_catalog" {
        let detail = format!("search_path names the schema {first} before pg_catalog, behind a pooler");
        return Err(Error::new(ErrorKind::Unsupported, detail).advise(
            "leave pg_catalog out of search_path, where it comes first, or connect to the server itself",
        ));
    }
    if server.version < OLDEST {
        let version = server.version / 10_000;
        return Err(Error::new(ErrorKind::Unsupported, format!("the server is PostgreSQL {version}"))
            .advise("use PostgreSQL 12 or later"));
    }
    Ok(server)
}
