//! The bare driver, for benchmarks: what programs write that have eight connections and no library.

use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use distlock_core::bench::Baseline;
use distlock_core::store::StoreUrl;
use distlock_core::{Error, ErrorKind, Result};
use mysql_async::Row;
use tokio::sync::Semaphore;

use crate::batch::literal;
use crate::config::MysqlConfig;
use crate::connections::{Connection, REQUEST_TIMEOUT};
use crate::identifier::Tables;
use crate::{MysqlSessionStore, MysqlStore};

const CONNECTIONS: usize = 8;

/// A lock as a row, in a table of the bare round trips.
const CREATE: &str = "CREATE TABLE {bench} (k VARBINARY(200) PRIMARY KEY, holder VARBINARY(64) NOT NULL,
    expires_at DATETIME(6) NOT NULL, token BIGINT NOT NULL) ENGINE = InnoDB";
const ACQUIRE_ROW: &str = "INSERT INTO {bench} (k, holder, expires_at, token)
    VALUES ({name}, {id}, UTC_TIMESTAMP(6) + INTERVAL 30 SECOND, LAST_INSERT_ID(1))
    ON DUPLICATE KEY UPDATE
        token = IF(expires_at <= UTC_TIMESTAMP(6), LAST_INSERT_ID(token + 1), token),
        holder = IF(expires_at <= UTC_TIMESTAMP(6), VALUES(holder), holder),
        expires_at = IF(holder = VALUES(holder), VALUES(expires_at), expires_at)";
const RELEASE_ROW: &str =
    "UPDATE {bench} SET expires_at = UTC_TIMESTAMP(6) WHERE k = {name} AND holder = {id}";
const ACQUIRE_LOCK: &str = "SELECT GET_LOCK(SHA1({name}), 0)";
const RELEASE_LOCK: &str = "SELECT RELEASE_LOCK(SHA1({name}))";

struct BareDriver {
    idle: Mutex<Vec<Connection>>,
    free: Semaphore,
    watch: tokio::sync::Mutex<Connection>,
    acquire: String,
    release: String,
    tables: Tables,
    bench: Option<String>,
    endings: &'static [&'static str],
}

pub(crate) async fn connect_lease(url: StoreUrl) -> Result<Option<Box<dyn Baseline>>> {
    let store = MysqlStore::connect(MysqlConfig::from_url(&url)?).await?;
    let state = store.state();
    let bench = state.tables.quoted(&format!("_bench_{:08x}", fastrand::u32(..)));
    let fill = |text: &str| text.replace("{bench}", &bench);
    let mut watch = state.connections.open().await?;
    watch.query(&fill(CREATE), REQUEST_TIMEOUT).await.map_err(|failure| failure.error)?;
    let mut idle = Vec::new();
    for _ in 0..CONNECTIONS {
        idle.push(state.connections.open().await?);
    }
    Ok(Some(Box::new(BareDriver {
        idle: Mutex::new(idle),
        free: Semaphore::new(CONNECTIONS),
        watch: tokio::sync::Mutex::new(watch),
        acquire: fill(ACQUIRE_ROW),
        release: fill(RELEASE_ROW),
        tables: state.tables.clone(),
        bench: Some(bench.clone()),
        endings: &["", "_pool"],
    })))
}

pub(crate) async fn connect_session(url: StoreUrl) -> Result<Option<Box<dyn Baseline>>> {
    let store = MysqlSessionStore::connect(MysqlConfig::from_url(&url)?).await?;
    let state = store.state();
    let mut idle = Vec::new();
    for _ in 0..CONNECTIONS {
        idle.push(state.connections.open().await?);
    }
    Ok(Some(Box::new(BareDriver {
        idle: Mutex::new(idle),
        free: Semaphore::new(CONNECTIONS),
        watch: tokio::sync::Mutex::new(state.connections.open().await?),
        acquire: ACQUIRE_LOCK.to_owned(),
        release: RELEASE_LOCK.to_owned(),
        tables: state.tables.clone(),
        bench: None,
        endings: &["_session"],
    })))
}

impl BareDriver {
    async fn watch(&self, text: &str) -> Result<Vec<Row>> {
        self.watch.lock().await.query(text, REQUEST_TIMEOUT).await.map_err(|failure| failure.error)
    }
}

#[async_trait]
impl Baseline for BareDriver {
    async fn cycle(&self, name: &str) -> Result<()> {
        let closed = |_| Error::new(ErrorKind::Internal, "the pool of the bare round trips is closed");
        let _one = self.free.acquire().await.map_err(closed)?;
        let taken = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let Some(mut connection) = taken else {
            return Err(Error::new(ErrorKind::Internal, "a connection of the bare round trips is missing"));
        };
        let id = literal(format!("{:016x}", fastrand::u64(..)).as_bytes());
        let name = literal(name.as_bytes());
        let fill = |text: &str| text.replace("{name}", &name).replace("{id}", &id);
        let mut done = connection.query(&fill(&self.acquire), REQUEST_TIMEOUT).await;
        if done.is_ok() {
            done = connection.query(&fill(&self.release), REQUEST_TIMEOUT).await;
        }
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        done.map(drop).map_err(|failure| failure.error)
    }

    async fn server_requests(&self) -> Result<Option<u64>> {
        // The server counts statements, and one request of ours carries several.
        Ok(None)
    }

    async fn clean_up(&self, prefix: &str) -> Result<()> {
        if prefix.is_empty() {
            return Err(Error::new(ErrorKind::InvalidInput, "an empty prefix would remove every lock")
                .advise("use the prefix of the benchmark's names"));
        }
        if let Some(bench) = &self.bench {
            self.watch(&format!("DROP TABLE IF EXISTS {bench}")).await?;
        }
        for ending in self.endings {
            let table = self.tables.quoted(ending);
            let wanted = format!("LEFT(name, {}) = {}", prefix.len(), literal(prefix.as_bytes()));
            if *ending != "_session" {
                let entries = self.tables.quoted("_entry");
                self.watch(&format!("DELETE e FROM {table} t JOIN {entries} e ON e.k = t.k WHERE {wanted}"))
                    .await?;
            }
            self.watch(&format!("DELETE FROM {table} WHERE {wanted}")).await?;
        }
        Ok(())
    }
}
