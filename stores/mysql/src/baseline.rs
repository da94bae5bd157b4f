//! The bare driver, for benchmarks: what programs write that have eight connections and no library.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use async_trait::async_trait;
use distlock_core::bench::{BareNotification, Baseline};
use distlock_core::store::StoreUrl;
use distlock_core::{Error, ErrorKind, Result};
use futures_util::future::BoxFuture;
use mysql_async::Row;
use tokio::sync::Semaphore;

use crate::batch::literal;
use crate::config::MysqlConfig;
use crate::connections::{Connection, Connections, REQUEST_TIMEOUT};
use crate::identifier::Tables;
use crate::{MysqlSessionStore, MysqlStore};

const CONNECTIONS: usize = 8;

/// A lock as a row, in a table of the baseline.
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
const WAIT_FOR_LOCK: &str = "SELECT GET_LOCK(SHA1({name}), 4)";
const RELEASE_LOCK: &str = "SELECT RELEASE_LOCK(SHA1({name}))";

/// What the baseline of a store executes and counts.
struct Plan {
    acquire: String,
    release: String,
    /// The baseline's own table; dropped at the end.
    own_table: Option<String>,
    /// The endings of the store's tables with names.
    endings: &'static [&'static str],
    /// The server's counter that grows by one with each request of the store.
    counter: &'static str,
}

struct BareDriver {
    idle: Mutex<Vec<Connection>>,
    free: Semaphore,
    /// Outside the pool.
    observer: tokio::sync::Mutex<Connection>,
    tables: Tables,
    plan: Plan,
}

pub(crate) async fn connect_lease(url: StoreUrl) -> Result<Option<Box<dyn Baseline>>> {
    let store = MysqlStore::connect(MysqlConfig::from_url(&url)?).await?;
    let state = store.state();
    let own_table = state.tables.quoted(&format!("_bench_{:08x}", fastrand::u32(..)));
    let fill = |text: &str| text.replace("{bench}", &own_table);
    let plan = Plan {
        acquire: fill(ACQUIRE_ROW),
        release: fill(RELEASE_ROW),
        own_table: Some(own_table.clone()),
        endings: &["", "_pool"],
        // Each request is one transaction; the plain reads of waiters are not counted.
        counter: "Com_commit",
    };
    let driver = BareDriver::open(&state.connections, &state.tables, plan).await?;
    driver.observe(&fill(CREATE)).await?;
    Ok(Some(Box::new(driver)))
}

pub(crate) async fn connect_session(url: StoreUrl) -> Result<Option<Box<dyn Baseline>>> {
    let store = MysqlSessionStore::connect(MysqlConfig::from_url(&url)?).await?;
    let state = store.state();
    let plan = Plan {
        acquire: ACQUIRE_LOCK.to_owned(),
        release: RELEASE_LOCK.to_owned(),
        own_table: None,
        endings: &["_session"],
        counter: "Com_select",
    };
    Ok(Some(Box::new(BareDriver::open(&state.connections, &state.tables, plan).await?)))
}

impl BareDriver {
    async fn open(connections: &Connections, tables: &Tables, plan: Plan) -> Result<Self> {
        let mut idle = Vec::new();
        for _ in 0..CONNECTIONS {
            idle.push(connections.open().await?);
        }
        Ok(BareDriver {
            idle: Mutex::new(idle),
            free: Semaphore::new(CONNECTIONS),
            observer: tokio::sync::Mutex::new(connections.open().await?),
            tables: tables.clone(),
            plan,
        })
    }

    async fn status(&self, name: &str) -> Result<Option<u64>> {
        let rows = self.observe(&format!("SHOW GLOBAL STATUS LIKE '{name}'")).await?;
        let count = rows.first().and_then(|row| row.get_opt::<String, _>(1)?.ok());
        Ok(count.and_then(|count| count.parse().ok()))
    }

    async fn observe(&self, text: &str) -> Result<Vec<Row>> {
        self.observer.lock().await.query(text, REQUEST_TIMEOUT).await.map_err(|failure| failure.error)
    }
}

/// A lock that one session releases, and for which another one waits.
struct ReleaseNotification {
    holder: Connection,
    waiter: Arc<tokio::sync::Mutex<Connection>>,
    name: String,
}

async fn run(connection: &mut Connection, text: &str, name: &str) -> Result<()> {
    let text = text.replace("{name}", &literal(name.as_bytes()));
    connection.query(&text, REQUEST_TIMEOUT).await.map(drop).map_err(|failure| failure.error)
}

#[async_trait]
impl BareNotification for ReleaseNotification {
    async fn receive(&mut self) -> Result<BoxFuture<'static, Result<Instant>>> {
        run(&mut self.holder, WAIT_FOR_LOCK, &self.name).await?;
        let (waiter, name) = (Arc::clone(&self.waiter), self.name.clone());
        Ok(Box::pin(async move {
            let mut waiter = waiter.lock().await;
            run(&mut waiter, WAIT_FOR_LOCK, &name).await?;
            let granted = Instant::now();
            run(&mut waiter, RELEASE_LOCK, &name).await?;
            Ok(granted)
        }))
    }

    async fn send(&mut self) -> Result<()> {
        run(&mut self.holder, RELEASE_LOCK, &self.name).await
    }
}

#[async_trait]
impl Baseline for BareDriver {
    async fn cycle(&self, name: &str) -> Result<()> {
        let closed = |_| Error::new(ErrorKind::Internal, "the pool of the baseline is closed");
        let _one = self.free.acquire().await.map_err(closed)?;
        let taken = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let Some(mut connection) = taken else {
            return Err(Error::new(ErrorKind::Internal, "a connection of the baseline is missing"));
        };
        let id = literal(format!("{:016x}", fastrand::u64(..)).as_bytes());
        let name = literal(name.as_bytes());
        let fill = |text: &str| text.replace("{name}", &name).replace("{id}", &id);
        let mut done = connection.query(&fill(&self.plan.acquire), REQUEST_TIMEOUT).await;
        if done.is_ok() {
            done = connection.query(&fill(&self.plan.release), REQUEST_TIMEOUT).await;
        }
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        done.map(drop).map_err(|failure| failure.error)
    }

    async fn server_requests(&self) -> Result<Option<u64>> {
        self.status(self.plan.counter).await
    }

    async fn server_statements(&self) -> Result<Option<u64>> {
        self.status("Questions").await
    }

    /// Only of `GET_LOCK`: the server sends no notification of a row.
    async fn notifications(&self, name: &str) -> Result<Option<Box<dyn BareNotification>>> {
        if self.plan.own_table.is_some() {
            return Ok(None);
        }
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(holder), Some(waiter)) = (idle.pop(), idle.pop()) else { return Ok(None) };
        self.free.forget_permits(2);
        let waiter = Arc::new(tokio::sync::Mutex::new(waiter));
        Ok(Some(Box::new(ReleaseNotification { holder, waiter, name: name.to_owned() })))
    }

    async fn clean_up(&self, prefix: &str) -> Result<()> {
        if prefix.is_empty() {
            return Err(Error::new(ErrorKind::InvalidInput, "an empty prefix would remove every lock")
                .advise("use the prefix of the benchmark's names"));
        }
        if let Some(own_table) = &self.plan.own_table {
            self.observe(&format!("DROP TABLE IF EXISTS {own_table}")).await?;
        }
        for ending in self.plan.endings {
            let table = self.tables.quoted(ending);
            let wanted = format!("LEFT(name, {}) = {}", prefix.len(), literal(prefix.as_bytes()));
            if *ending != "_session" {
                let entries = self.tables.quoted("_entry");
                self.observe(&format!(
                    "DELETE e FROM {table} t JOIN {entries} e ON e.k = t.k WHERE {wanted}"
                ))
                .await?;
            }
            self.observe(&format!("DELETE FROM {table} WHERE {wanted}")).await?;
        }
        Ok(())
    }
}
