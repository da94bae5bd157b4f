//! Connections of the application: commands over one of them, or the nodes of a Cluster from one.

use distlock_core::store::support::errors;
use distlock_core::{Error, ErrorKind, Result};
use redis::Value;
use redis::aio::MultiplexedConnection;

use crate::config::{RedisConfig, Servers};
use crate::net::{CommandChannel, ServerSet};
use crate::store::RedisStore;

const DOING: &str = "use a connection of the application";

impl RedisStore {
    /// Sends commands over a multiplexed connection of the application, while it replies.
    ///
    /// A connection of the application cannot deliver messages to the store, and cannot be opened again. So the store opens one
    /// of its own as `config` says, with its address, login, database and TLS: while the process has waiters, for their
    /// messages; and once the application's connection breaks or stops replying, for everything. Both must lead to the same
    /// database of the same server, which is checked here.
    ///
    /// Replies come in the order of the commands. A command of the application that blocks its connection (`BLPOP`, a slow
    /// script) delays renewals too.
    ///
    /// ```no_run
    /// use distlock_core::store::StoreUrl;
    /// use distlock_redis::{RedisConfig, RedisStore};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let url = "redis://127.0.0.1/3";
    /// let connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    /// let config = RedisConfig::from_url(&StoreUrl::parse(url)?)?;
    /// let store = RedisStore::with_multiplexed_connection(connection, config).await?;
    /// # drop(store); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As for [`connect`](RedisStore::connect). [`ErrorKind::InvalidInput`] if `config` names a Cluster, or the connection leads
    /// to another server or database than `config` says.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind but a key that expires after ten seconds.
    pub async fn with_multiplexed_connection(
        connection: MultiplexedConnection,
        config: RedisConfig,
    ) -> Result<Self> {
        RedisStore::over(connection.into(), config).await
    }

    /// Sends commands over a connection manager of the application, while it replies. As
    /// [`with_multiplexed_connection`](RedisStore::with_multiplexed_connection): the manager opens its connection again, and
    /// the store does not wait for that.
    ///
    /// # Errors
    /// As for [`with_multiplexed_connection`](RedisStore::with_multiplexed_connection).
    ///
    /// # Cancel safety
    /// As for [`with_multiplexed_connection`](RedisStore::with_multiplexed_connection).
    #[cfg(feature = "connection-manager")]
    pub async fn with_connection_manager(
        manager: redis::aio::ConnectionManager,
        config: RedisConfig,
    ) -> Result<Self> {
        RedisStore::over(manager.into(), config).await
    }

    async fn over(channel: CommandChannel, config: RedisConfig) -> Result<Self> {
        if matches!(config.servers, Servers::Cluster { .. }) {
            return Err(invalid("the configuration names a Cluster")
                .advise("name the server of the connection, or use with_cluster_connection"));
        }
        // Closed again after the check: the store opens it when it has waiters.
        let direct = RedisStore::disconnected(config.clone())?;
        let borrowed = ServerSet::over(&config, channel).await.map_err(|error| error.doing(DOING))?;
        let store = RedisStore::of(config, borrowed);
        store.check_same_database(&direct).await?;
        Ok(store)
    }

    /// Writes over one connection and reads over the other. If they led to different databases, two clients could hold one
    /// lock as soon as the application's connection breaks.
    async fn check_same_database(&self, direct: &RedisStore) -> Result<()> {
        let limit = self.0.config.response_timeout;
        let key = format!("{}distlock:check:{:016x}", self.0.config.keys.prefix(), fastrand::u64(..));
        let (borrowed, own) = (self.0.servers.masters().await?, direct.0.servers.masters().await?);
        let (Some(borrowed), Some(own)) = (borrowed.first(), own.first()) else {
            return Err(Error::new(ErrorKind::Internal, "a connection is missing").doing(DOING));
        };
        let mut write = redis::cmd("SET");
        write.arg(&key).arg("1").arg("PX").arg(10_000);
        crate::error::accepted(borrowed.send(&write, limit).await?).map_err(|error| error.doing(DOING))?;
        let mut read = redis::cmd("GET");
        read.arg(&key);
        let found = crate::error::accepted(own.send(&read, limit).await?);
        let mut delete = redis::cmd("DEL");
        delete.arg(&key);
        let _ = borrowed.send(&delete, limit).await;
        match found.map_err(|error| error.doing(DOING))? {
            Value::Nil => Err(invalid("the connection and the configuration lead to different databases")
                .advise("give the configuration the address and the database of the connection")),
            Value::BulkString(_) => Ok(()),
            other => Err(errors::unexpected_reply(other)),
        }
    }

    /// Connects to the Cluster of a connection of the application. Its nodes are asked for over that connection; login, TLS
    /// and prefix are those of `config`, whose addresses are not used.
    ///
    /// The store opens a connection of its own to each master: it batches the locks of a master into one script call, and
    /// messages need a connection that was opened for them. The application's connection is not used after this call.
    ///
    /// # Errors
    /// As for [`connect`](RedisStore::connect), and if the application's connection does not name the nodes.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    #[cfg(feature = "cluster-async")]
    pub async fn with_cluster_connection(
        mut connection: redis::cluster_async::ClusterConnection,
        mut config: RedisConfig,
    ) -> Result<Self> {
        let limit = config.response_timeout;
        let mut query = redis::cmd("CLUSTER");
        query.arg("SLOTS");
        let asked = async {
            use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
            connection.route_command(query, RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random)).await
        };
        let reply = match tokio::time::timeout(limit, asked).await {
            Ok(reply) => reply.map_err(|error| crate::error::connection_lost(error).doing(DOING))?,
            Err(_) => return Err(errors::no_reply(limit).doing(DOING)),
        };
        let seeds = crate::net::masters_of(&reply).ok_or_else(|| errors::unexpected_reply(&reply))?;
        if seeds.is_empty() {
            return Err(errors::unavailable("the Cluster names no masters by their addresses").doing(DOING));
        }
        config.servers = Servers::Cluster { seeds };
        RedisStore::connect(config).await
    }
}

fn invalid(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidInput, what).doing(DOING)
}
