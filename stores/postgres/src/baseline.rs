//! The baseline for benchmarks: the bare driver with eight connections and no library.

use std::future::poll_fn;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use async_trait::async_trait;
use distlock_core::bench::{BareNotification, Baseline};
use distlock_core::store::support::errors;
use distlock_core::{Error, ErrorKind, Result};
use futures_core::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client, NoTls, Statement};

use crate::config::PostgresConfig;
use crate::error;
use crate::schema::StoreKind;
use crate::tables::Tables;

const CONNECTIONS: usize = 8;

/// A lock as a row, in a table of its own.
const ACQUIRE_ROW: &str = "INSERT INTO {bench} AS l (key, value, expire_time, token)
    VALUES ($1, $2, pg_catalog.now() + interval '30 seconds', 1)
    ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value, expire_time = EXCLUDED.expire_time, token = l.token + 1
    WHERE l.value = '' OR l.expire_time <= pg_catalog.now() RETURNING token";
const RELEASE_ROW: &str = "UPDATE {bench} SET value = '' WHERE key = $1 AND value = $2";
const CREATE: &str =
    "CREATE TABLE {bench} (key text PRIMARY KEY, value text NOT NULL, expire_time timestamptz NOT NULL,
    token bigint NOT NULL) WITH (fillfactor = 50)";
/// The second parameter has no effect: both pairs have the same parameters.
const ACQUIRE_ADVISORY: &str =
    "SELECT pg_catalog.pg_try_advisory_lock(pg_catalog.hashtextextended($1, 0)), $2";
const RELEASE_ADVISORY: &str = "SELECT pg_catalog.pg_advisory_unlock(pg_catalog.hashtextextended($1, 0)), $2";

/// Counts the transactions that wrote: each request of a lease table does. It is exact at once, while the statistics of other
/// sessions are seconds late, and reading it does not count.
const REQUESTS: &str = "SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint";

struct PooledConnection {
    client: Client,
    acquire: Statement,
    release: Statement,
}

/// Requests for advisory locks. Those of this process are counted here: few of them write. Other processes only contend, on
/// sessions of their own, and their requests write; the attempt that finds the lock contended does not, and is not counted.
#[derive(Default)]
struct AdvisoryCount {
    total: u64,
    sent: u64,
    written: u64,
}

impl AdvisoryCount {
    /// The count, if this process has sent and the server has written so many by now.
    fn update(&mut self, sent: u64, written: u64) -> u64 {
        let here = sent.saturating_sub(self.sent);
        self.total += if here > 0 { here } else { written.saturating_sub(self.written) };
        (self.sent, self.written) = (sent, written);
        self.total
    }
}

pub(crate) struct BaselineDriver {
    idle: Mutex<Vec<Arc<PooledConnection>>>,
    free: Semaphore,
    /// Outside the pool.
    observer: Client,
    /// For advisory locks.
    advisory: Option<Mutex<AdvisoryCount>>,
    /// The baseline's own table; dropped at the end.
    own_table: Option<String>,
    /// The tables of the store, with the prefix of their keys.
    store_tables: Vec<(String, &'static str)>,
    config: PostgresConfig,
}

/// Opens the connections, and creates the baseline's table if it needs one.
pub(crate) async fn open(
    config: &PostgresConfig,
    tables: &Tables,
    kind: StoreKind,
) -> Result<Box<dyn Baseline>> {
    let observer = connect(config).await?;
    let bench = tables.named(&format!("_bench_{:08x}", fastrand::u32(..)));
    let (acquire, release, store_tables) = match kind {
        StoreKind::Lease => {
            observer
                .batch_execute(&CREATE.replace("{bench}", &bench))
                .await
                .map_err(error::from_statement)?;
            (ACQUIRE_ROW, RELEASE_ROW, vec![(tables.named(""), ""), (tables.named("_pool"), "%:")])
        }
        StoreKind::Advisory => {
            (ACQUIRE_ADVISORY, RELEASE_ADVISORY, vec![(tables.named("_session_pool"), "%:")])
        }
    };
    let mut idle = Vec::new();
    for _ in 0..CONNECTIONS {
        let client = connect(config).await?;
        let prepare = |text: &str| text.replace("{bench}", &bench);
        let types = [Type::TEXT, Type::TEXT];
        let acquire = client.prepare_typed(&prepare(acquire), &types).await.map_err(error::from_statement)?;
        let release = client.prepare_typed(&prepare(release), &types).await.map_err(error::from_statement)?;
        idle.push(Arc::new(PooledConnection { client, acquire, release }));
    }
    let own_table = (kind == StoreKind::Lease).then_some(bench);
    Ok(Box::new(BaselineDriver {
        idle: Mutex::new(idle),
        free: Semaphore::new(CONNECTIONS),
        observer,
        advisory: (kind == StoreKind::Advisory).then(Mutex::default),
        own_table,
        store_tables,
        config: config.clone(),
    }))
}

async fn connect(config: &PostgresConfig) -> Result<Client> {
    connect_with(config, None).await
}

async fn connect_with(config: &PostgresConfig, notified: Option<UnboundedSender<()>>) -> Result<Client> {
    if let Some(tls) = config.tls.connector()? {
        let (client, connection) = config.client.connect(tls).await.map_err(error::from_connect)?;
        tokio::spawn(drive(connection, notified));
        return Ok(client);
    }
    let (client, connection) = config.client.connect(NoTls).await.map_err(error::from_connect)?;
    tokio::spawn(drive(connection, notified));
    Ok(client)
}

/// Drives a connection. Says when notifications come.
async fn drive<S, T>(mut connection: tokio_postgres::Connection<S, T>, notified: Option<UnboundedSender<()>>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
        if let (AsyncMessage::Notification(_), Some(notified)) = (message, &notified) {
            let _ = notified.send(());
        }
    }
}

/// A row that is updated, and a notification in the same transaction.
struct RowNotification {
    sender: Client,
    update: Statement,
    _receiver: Client,
    notified: Arc<tokio::sync::Mutex<UnboundedReceiver<()>>>,
    name: String,
}

const NOTIFYING_UPDATE: &str =
    "UPDATE {bench} SET token = token + 1 WHERE key = $1 RETURNING pg_catalog.pg_notify($2, 'baseline')";

#[async_trait]
impl BareNotification for RowNotification {
    async fn receive(&mut self) -> Result<BoxFuture<'static, Result<Instant>>> {
        let notified = Arc::clone(&self.notified);
        Ok(Box::pin(async move {
            let received = notified.lock().await.recv().await.map(|()| Instant::now());
            received.ok_or_else(|| errors::connection_lost("the listening connection ended"))
        }))
    }

    async fn send(&mut self) -> Result<()> {
        let channel = channel_of(&self.name);
        let sent = self.sender.query(&self.update, &[&self.name, &channel]).await;
        sent.map(drop).map_err(error::from_statement)
    }
}

fn channel_of(name: &str) -> String {
    name.replace('"', "_")
}

/// A lock that one session unlocks, and for which another one waits.
struct UnlockNotification {
    sessions: [Arc<PooledConnection>; 2],
    name: String,
}

const WAIT_ADVISORY: &str =
    "SELECT pg_catalog.pg_advisory_lock(pg_catalog.hashtextextended($1, 0)), $2::text";

#[async_trait]
impl BareNotification for UnlockNotification {
    async fn receive(&mut self) -> Result<BoxFuture<'static, Result<Instant>>> {
        let (name, [holder, waiter]) = (self.name.clone(), &self.sessions);
        holder.client.query(&holder.acquire, &[&name, &""]).await.map_err(error::from_statement)?;
        let waiter = Arc::clone(waiter);
        Ok(Box::pin(async move {
            let none = "";
            waiter.client.query(&waiter.acquire, &[&name, &none]).await.map_err(error::from_statement)?;
            let granted = Instant::now();
            waiter.client.query(&waiter.release, &[&name, &none]).await.map_err(error::from_statement)?;
            Ok(granted)
        }))
    }

    async fn send(&mut self) -> Result<()> {
        let holder = &self.sessions[0];
        let sent = holder.client.query(&holder.release, &[&self.name, &""]).await;
        sent.map(drop).map_err(error::from_statement)
    }
}

impl BaselineDriver {
    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Arc<PooledConnection>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Baseline for BaselineDriver {
    async fn cycle(&self, name: &str) -> Result<()> {
        let closed = |_| Error::new(ErrorKind::Internal, "the connection pool of the baseline is closed");
        let _permit = self.free.acquire().await.map_err(closed)?;
        let Some(connection) = self.idle().pop() else {
            return Err(Error::new(ErrorKind::Internal, "a connection of the baseline is missing"));
        };
        let id = format!("{:016x}", fastrand::u64(..));
        let client = &connection.client;
        let mut done = client.query(&connection.acquire, &[&name, &id]).await;
        if done.is_ok() {
            done = client.query(&connection.release, &[&name, &id]).await;
        }
        self.idle().push(Arc::clone(&connection));
        done.map(|_| ()).map_err(error::from_statement)
    }

    async fn server_requests(&self) -> Result<Option<u64>> {
        let row = self.observer.query_typed(REQUESTS, &[]).await.map_err(error::from_statement)?;
        let count: i64 = row.first().and_then(|row| row.try_get(0).ok()).unwrap_or(0);
        let Ok(written) = u64::try_from(count) else { return Ok(None) };
        let Some(advisory) = &self.advisory else { return Ok(Some(written)) };
        let sent = crate::connection::SENT.load(Ordering::Relaxed);
        Ok(Some(advisory.lock().unwrap_or_else(PoisonError::into_inner).update(sent, written)))
    }

    async fn notifications(&self, name: &str) -> Result<Option<Box<dyn BareNotification>>> {
        let prepare = async |client: &Client, text: &str| {
            let types = [Type::TEXT, Type::TEXT];
            client.prepare_typed(text, &types).await.map_err(error::from_statement)
        };
        let Some(table) = &self.own_table else {
            let mut sessions = Vec::new();
            for _ in 0..2 {
                let client = connect(&self.config).await?;
                let acquire = prepare(&client, WAIT_ADVISORY).await?;
                let release = prepare(&client, RELEASE_ADVISORY).await?;
                sessions.push(Arc::new(PooledConnection { client, acquire, release }));
            }
            let sessions = sessions.try_into().map_err(|_| errors::too_few_answers())?;
            return Ok(Some(Box::new(UnlockNotification { sessions, name: name.to_owned() })));
        };
        // The row that the notifying updates change.
        self.cycle(name).await?;
        let (sender, notified) = unbounded_channel();
        let receiver = connect_with(&self.config, Some(sender)).await?;
        let listen = format!("LISTEN \"{}\"", channel_of(name));
        receiver.batch_execute(&listen).await.map_err(error::from_statement)?;
        let sender = connect(&self.config).await?;
        let update = prepare(&sender, &NOTIFYING_UPDATE.replace("{bench}", table)).await?;
        let notified = Arc::new(tokio::sync::Mutex::new(notified));
        let name = name.to_owned();
        Ok(Some(Box::new(RowNotification { sender, update, _receiver: receiver, notified, name })))
    }

    async fn clean_up(&self, prefix: &str) -> Result<()> {
        if let Some(table) = &self.own_table {
            let drop = format!("DROP TABLE IF EXISTS {table}");
            self.observer.batch_execute(&drop).await.map_err(error::from_statement)?;
        }
        let escaped = prefix.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_");
        for (table, prefix_of_kind) in &self.store_tables {
            let pattern = format!("{prefix_of_kind}{escaped}%");
            let delete = format!("DELETE FROM {table} WHERE key LIKE $1");
            self.observer
                .query_typed(&delete, &[(&pattern, Type::TEXT)])
                .await
                .map_err(error::from_statement)?;
        }
        Ok(())
    }
}
