//! The driver alone, for benchmarks: what people write who have eight connections and no library.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use distlock_core::bench::Baseline;
use distlock_core::{Error, ErrorKind, Result};
use tokio::sync::Semaphore;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Statement};

use crate::config::PostgresConfig;
use crate::failure;
use crate::schema::Purpose;
use crate::statement::Tables;

const CONNECTIONS: usize = 8;

/// A lock as a row, in the table of the bare round trips.
const TAKE_ROW: &str = "INSERT INTO {bench} AS l (key, value, expire_time, token)
    VALUES ($1, $2, pg_catalog.now() + interval '30 seconds', 1)
    ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value, expire_time = EXCLUDED.expire_time, token = l.token + 1
    WHERE l.value = '' OR l.expire_time <= pg_catalog.now() RETURNING token";
const GIVE_ROW: &str = "UPDATE {bench} SET value = '' WHERE key = $1 AND value = $2";
const CREATE: &str =
    "CREATE TABLE {bench} (key text PRIMARY KEY, value text NOT NULL, expire_time timestamptz NOT NULL,
    token bigint NOT NULL) WITH (fillfactor = 50)";
/// The second parameter only keeps the two pairs alike.
const TAKE_ADVISORY: &str = "SELECT pg_catalog.pg_try_advisory_lock(pg_catalog.hashtextextended($1, 0)), $2";
const GIVE_ADVISORY: &str = "SELECT pg_catalog.pg_advisory_unlock(pg_catalog.hashtextextended($1, 0)), $2";

/// Transactions that wrote something: each of our requests does. It is there at once, where the statistics of other
/// sessions come seconds later, and looking does not count.
const REQUESTS: &str = "SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint";

struct Connection {
    client: Client,
    take: Statement,
    give: Statement,
}

pub(crate) struct BaselineDriver {
    idle: Mutex<Vec<Arc<Connection>>>,
    free: Semaphore,
    watch: Client,
    /// Of the bare round trips; dropped at the end.
    bench: Option<String>,
    /// Where our own records are.
    ours: Vec<(String, &'static str)>,
}

/// Opens eight connections, and creates the table of the bare round trips where one is needed.
pub(crate) async fn open(
    config: &PostgresConfig,
    tables: &Tables,
    purpose: Purpose,
) -> Result<Box<dyn Baseline>> {
    let watch = connect(config).await?;
    let bench = tables.named(&format!("_bench_{:08x}", fastrand::u32(..)));
    let (take, give, ours) = match purpose {
        Purpose::Lease => {
            watch
                .batch_execute(&CREATE.replace("{bench}", &bench))
                .await
                .map_err(|error| failure::of_statement(&error))?;
            (TAKE_ROW, GIVE_ROW, vec![(tables.named(""), ""), (tables.named("_pool"), "%:")])
        }
        Purpose::Advisory => (TAKE_ADVISORY, GIVE_ADVISORY, vec![(tables.named("_session_pool"), "%:")]),
    };
    let mut idle = Vec::new();
    for _ in 0..CONNECTIONS {
        let client = connect(config).await?;
        let prepare = |text: &str| text.replace("{bench}", &bench);
        let types = [Type::TEXT, Type::TEXT];
        let take = client
            .prepare_typed(&prepare(take), &types)
            .await
            .map_err(|error| failure::of_statement(&error))?;
        let give = client
            .prepare_typed(&prepare(give), &types)
            .await
            .map_err(|error| failure::of_statement(&error))?;
        idle.push(Arc::new(Connection { client, take, give }));
    }
    let bench = (purpose == Purpose::Lease).then_some(bench);
    Ok(Box::new(BaselineDriver {
        idle: Mutex::new(idle),
        free: Semaphore::new(CONNECTIONS),
        watch,
        bench,
        ours,
    }))
}

async fn connect(config: &PostgresConfig) -> Result<Client> {
    let tls = config.tls.connector()?;
    let (client, connection) =
        config.driver.connect(tls).await.map_err(|error| failure::of_connecting(&error))?;
    tokio::spawn(connection);
    Ok(client)
}

impl BaselineDriver {
    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Connection>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Baseline for BaselineDriver {
    async fn cycle(&self, name: &str) -> Result<()> {
        let closed = |_| Error::new(ErrorKind::Internal, "the pool of the bare round trips is closed");
        let _one = self.free.acquire().await.map_err(closed)?;
        let Some(connection) = self.idle().pop() else {
            return Err(Error::new(ErrorKind::Internal, "a connection of the bare round trips is missing"));
        };
        let id = format!("{:016x}", fastrand::u64(..));
        let client = &connection.client;
        let mut done = client.query(&connection.take, &[&name, &id]).await;
        if done.is_ok() {
            done = client.query(&connection.give, &[&name, &id]).await;
        }
        self.idle().push(Arc::clone(&connection));
        done.map(|_| ()).map_err(|error| failure::of_statement(&error))
    }

    async fn server_requests(&self) -> Result<Option<u64>> {
        let row =
            self.watch.query_typed(REQUESTS, &[]).await.map_err(|error| failure::of_statement(&error))?;
        let count: i64 = row.first().and_then(|row| row.try_get(0).ok()).unwrap_or(0);
        Ok(u64::try_from(count).ok())
    }

    async fn clean_up(&self, prefix: &str) -> Result<()> {
        if let Some(bench) = &self.bench {
            let drop = format!("DROP TABLE IF EXISTS {bench}");
            self.watch.batch_execute(&drop).await.map_err(|error| failure::of_statement(&error))?;
        }
        let escaped = prefix.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_");
        for (table, kind) in &self.ours {
            let pattern = format!("{kind}{escaped}%");
            let delete = format!("DELETE FROM {table} WHERE key LIKE $1");
            self.watch
                .query_typed(&delete, &[(&pattern, Type::TEXT)])
                .await
                .map_err(|error| failure::of_statement(&error))?;
        }
        Ok(())
    }
}
