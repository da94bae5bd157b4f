//! The driver alone, for benchmarks: `SET NX PX` and compare-and-delete on a connection of its own.

use async_trait::async_trait;
use distlock_core::Result;
use distlock_core::bench::Baseline;
use distlock_core::store::Store;
use redis::aio::MultiplexedConnection;
use redis::{Script, Value};

use crate::config::RedisConfig;
use crate::net::{Fleet, Live};
use crate::store::RedisStore;
use crate::trouble;

const EXPIRY_MS: u64 = 30_000;
const SCAN_COUNT: u32 = 1000;
const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

/// What clients send. The server counts what scripts call inside as well; that is not a request. A lock is never
/// set by us outside a script, so SET is none either.
const REQUESTS: [&str; 8] =
    ["evalsha", "eval", "subscribe", "unsubscribe", "wait", "ping", "hello", "asking"];

pub(crate) struct BaselineDriver {
    config: RedisConfig,
    connection: MultiplexedConnection,
    compare_and_delete: Script,
    /// Keeps the connection.
    live: std::sync::Arc<Live>,
}

/// `None` on a Cluster, where one connection is not enough.
pub(crate) async fn open(store: &RedisStore) -> Result<Option<Box<dyn Baseline>>> {
    let config = store.0.config.clone();
    let Fleet::One(link) = Fleet::new(&config)? else { return Ok(None) };
    let live = link.live().await.map_err(|error| error.doing("connect").on(store.describe()))?;
    let connection = live.connection();
    Ok(Some(Box::new(BaselineDriver {
        config,
        connection,
        compare_and_delete: Script::new(COMPARE_AND_DELETE),
        live,
    })))
}

#[async_trait]
impl Baseline for BaselineDriver {
    async fn cycle(&self, name: &str) -> Result<()> {
        let mut connection = self.connection.clone();
        let key = format!("{}{name}", self.config.keys.prefix());
        let id = format!("{:016x}", fastrand::u64(..));
        let mut set = redis::cmd("SET");
        set.arg(&key).arg(&id).arg("NX").arg("PX").arg(EXPIRY_MS);
        let _: Value = set.query_async(&mut connection).await.map_err(trouble::broken)?;
        let mut release = self.compare_and_delete.key(&key);
        let _: i64 = release.arg(&id).invoke_async(&mut connection).await.map_err(trouble::broken)?;
        Ok(())
    }

    async fn server_requests(&self) -> Result<Option<u64>> {
        let mut connection = self.connection.clone();
        let mut info = redis::cmd("INFO");
        let text: String =
            info.arg("commandstats").query_async(&mut connection).await.map_err(trouble::broken)?;
        let calls = |command: &str| {
            let line = text.lines().find_map(|line| {
                line.strip_prefix("cmdstat_")?.strip_prefix(command)?.strip_prefix(":calls=")
            });
            line.and_then(|rest| rest.split(',').next()?.parse::<u64>().ok()).unwrap_or(0)
        };
        Ok(Some(REQUESTS.iter().map(|command| calls(command)).sum()))
    }

    async fn clean_up(&self, prefix: &str) -> Result<()> {
        let keys = &self.config.keys;
        let limit = self.config.response_timeout;
        let mut cursor = 0_u64;
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(keys.pattern()).arg("COUNT").arg(SCAN_COUNT);
            let answer = self.live.send(&scan, limit).await?;
            if let Value::ServerError(error) = &answer {
                return Err(trouble::refused(&trouble::text_of(error)));
            }
            let (next, page): (u64, Vec<Vec<u8>>) =
                redis::from_redis_value(answer).map_err(trouble::nonsense)?;
            let ours = page
                .into_iter()
                .filter(|key| keys.parse(key).is_some_and(|found| found.name.starts_with(prefix)));
            let mut unlink = redis::cmd("UNLINK");
            let mut any = false;
            for key in ours {
                unlink.arg(key);
                any = true;
            }
            if any {
                self.live.send(&unlink, limit).await?;
            }
            if next == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }
}
