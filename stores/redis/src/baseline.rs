//! The baseline of benchmarks: the bare driver with `SET NX PX` and compare-and-delete, on a connection of its own.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use distlock_core::bench::{BareNotification, Baseline};
use distlock_core::store::StoreUrl;
use distlock_core::store::support::errors;
use distlock_core::{Error, ErrorKind, Result};
use futures_util::future::BoxFuture;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, PushInfo, PushKind, Script, Value};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::config::{RedisConfig, Servers};
use crate::connect::Connector;
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
    server: Arc<ServerConnection>,
}

/// Opens the baseline; `None` on a Cluster and on a Redlock, which need more than one connection.
pub(crate) async fn open(url: StoreUrl) -> Result<Option<Box<dyn Baseline>>> {
    if url.scheme().starts_with("redlock") {
        return Ok(None);
    }
    let config = RedisConfig::from_url(&url)?;
    let ServerSet::One(handle) = ServerSet::new(&config)? else { return Ok(None) };
    let server = handle.connection().await.map_err(|error| error.doing("connect"))?;
    let Some(connection) = handle.driver_connection().await? else { return Ok(None) };
    let compare_and_delete = Script::new(COMPARE_AND_DELETE);
    Ok(Some(Box::new(BaselineDriver { config, connection, compare_and_delete, server })))
}

/// A message on a channel to which another connection has subscribed.
struct PublishNotification {
    sender: MultiplexedConnection,
    /// Subscribed for as long as it lives.
    _receiver: MultiplexedConnection,
    messages: Arc<tokio::sync::Mutex<UnboundedReceiver<()>>>,
    channel: String,
}

#[async_trait]
impl BareNotification for PublishNotification {
    async fn receive(&mut self) -> Result<BoxFuture<'static, Result<Instant>>> {
        let messages = Arc::clone(&self.messages);
        Ok(Box::pin(async move {
            let received = messages.lock().await.recv().await.map(|()| Instant::now());
            received.ok_or_else(|| errors::connection_lost("the subscribed connection ended"))
        }))
    }

    async fn send(&mut self) -> Result<()> {
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(&self.channel).arg("baseline");
        publish.query_async(&mut self.sender).await.map_err(error::connection_lost)
    }
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

    /// `None` where sentinels name the server.
    async fn notifications(&self, name: &str) -> Result<Option<Box<dyn BareNotification>>> {
        let Servers::One(address) = &self.config.servers else { return Ok(None) };
        let (sender, messages) = unbounded_channel();
        let settings = AsyncConnectionConfig::new().set_push_sender(move |info: PushInfo| {
            if info.kind == PushKind::Message {
                let _ = sender.send(());
            }
            Ok::<(), ()>(())
        });
        let client = Connector::new(&self.config).client(address)?;
        let opened = client.get_multiplexed_async_connection_with_config(&settings).await;
        let mut receiver = opened.map_err(error::connect_failed)?;
        receiver.subscribe(name).await.map_err(error::connection_lost)?;
        Ok(Some(Box::new(PublishNotification {
            sender: self.connection.clone(),
            _receiver: receiver,
            messages: Arc::new(tokio::sync::Mutex::new(messages)),
            channel: name.to_owned(),
        })))
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
