//! The baseline of benchmarks: the bare driver with `SET NX PX` and compare-and-delete, on a connection of its own.

use async_trait::async_trait;
use distlock_core::bench::Baseline;
use distlock_core::store::StoreUrl;
use distlock_core::{Error, ErrorKind, Result};
use redis::aio::MultiplexedConnection;
use redis::{Script, Value};

use crate::config::RedisConfig;
use crate::error;
use crate::inspect::scan;
use crate::keys::ParsedKey;
use crate::net::{ServerConnection, ServerSet};

const EXPIRY_MS: u64 = 30_000;
const UNLINK_COUNT: usize = 1000;
const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

/// The commands that clients send. The server also counts the commands inside scripts, which are no requests; the store never
/// sends SET outside a script.
const REQUESTS: [&str; 8] =
    ["evalsha", "eval", "subscribe", "unsubscribe", "wait", "ping", "hello", "asking"];

pub(crate) struct BaselineDriver {
    config: RedisConfig,
    connection: MultiplexedConnection,
    compare_and_delete: Script,
    server: std::sync::Arc<ServerConnection>,
}

/// Opens the baseline; `None` on a Cluster and on a Redlock, which need more than one connection.
pub(crate) async fn open(url: StoreUrl) -> Result<Option<Box<dyn Baseline>>> {
    if url.scheme().starts_with("redlock") {
        return Ok(None);
    }
    let config = RedisConfig::from_url(&url)?;
    let ServerSet::One(handle) = ServerSet::new(&config)? else { return Ok(None) };
    let server = handle.connection().await.map_err(|error| error.doing("connect"))?;
    let Some(connection) = server.driver_connection() else { return Ok(None) };
    let compare_and_delete = Script::new(COMPARE_AND_DELETE);
    Ok(Some(Box::new(BaselineDriver { config, connection, compare_and_delete, server })))
}

#[async_trait]
impl Baseline for BaselineDriver {
    async fn cycle(&self, name: &str) -> Result<()> {
        let mut connection = self.connection.clone();
        let key = format!("{}{name}", self.config.keys.prefix());
        let id = format!("{:016x}", fastrand::u64(..));
        let mut set = redis::cmd("SET");
        set.arg(&key).arg(&id).arg("NX").arg("PX").arg(EXPIRY_MS);
        let _: Value = set.query_async(&mut connection).await.map_err(error::connection_lost)?;
        let mut release = self.compare_and_delete.key(&key);
        let _: i64 = release.arg(&id).invoke_async(&mut connection).await.map_err(error::connection_lost)?;
        Ok(())
    }

    async fn server_requests(&self) -> Result<Option<u64>> {
        let mut connection = self.connection.clone();
        let mut info = redis::cmd("INFO");
        let text: String =
            info.arg("commandstats").query_async(&mut connection).await.map_err(error::connection_lost)?;
        let calls = |command: &str| {
            let line = text.lines().find_map(|line| {
                line.strip_prefix("cmdstat_")?.strip_prefix(command)?.strip_prefix(":calls=")
            });
            line.and_then(|rest| rest.split(',').next()?.parse::<u64>().ok()).unwrap_or(0)
        };
        Ok(Some(REQUESTS.iter().map(|command| calls(command)).sum()))
    }

    async fn clean_up(&self, prefix: &str) -> Result<()> {
        if prefix.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "an empty prefix would remove every lock and token",
            ));
        }
        let limit = self.config.response_timeout;
        let mut ours = Vec::new();
        let add = |key, parsed: ParsedKey| ours.extend(parsed.name.starts_with(prefix).then_some(key));
        scan(&self.server, &self.config.keys, limit, add).await?;
        for keys in ours.chunks(UNLINK_COUNT) {
            error::accepted(self.server.send(redis::cmd("UNLINK").arg(keys), limit).await?)?;
        }
        Ok(())
    }
}
