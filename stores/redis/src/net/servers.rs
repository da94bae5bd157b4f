//! The servers of a store: one, found directly or through sentinels, or a Cluster. Runs a script for a batch and returns the
//! replies in request order.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::Result;
use distlock_core::store::WakeStream;
use distlock_core::store::support::batch::all_failed;
use distlock_core::store::support::errors::too_few_answers;
use distlock_core::store::support::reconnect::Reconnect;
use redis::Client;

use super::cluster::Cluster;
use super::connection::{CommandChannel, ServerConnection};
use super::sentinel::Sentinels;
use crate::config::{Address, RedisConfig, Servers};
use crate::connect::Connector;
use crate::protocol::ScriptItem;
use crate::scripts::{ItemReply, ScriptCall};

/// All servers of a store.
#[derive(Debug)]
pub(crate) enum ServerSet {
    One(Box<ServerHandle>),
    Cluster(Box<Cluster>),
}

impl ServerSet {
    /// Connects to nothing yet.
    pub(crate) fn new(config: &RedisConfig) -> Result<Self> {
        let connector = Connector::new(config);
        Ok(match &config.servers {
            Servers::One(address) => ServerSet::One(Box::new(ServerHandle::direct(&connector, address)?)),
            Servers::Sentinel { sentinels, master } => {
                let route = Route::Sentinel(Sentinels::new(&connector, sentinels, master)?);
                ServerSet::One(Box::new(ServerHandle::new(route, &connector)))
            }
            Servers::Cluster { seeds } => ServerSet::Cluster(Box::new(Cluster::new(&connector, seeds)?)),
        })
    }

    /// One server, by a client of the driver.
    pub(crate) fn with_client(config: &RedisConfig, address: Address, client: Client) -> Self {
        let route = Route::Direct(address, Box::new(client));
        ServerSet::One(Box::new(ServerHandle::new(route, &Connector::new(config))))
    }

    /// One server, with commands over a connection of the application, which must reply now.
    pub(crate) async fn over(config: &RedisConfig, channel: CommandChannel) -> Result<Self> {
        let mut servers = ServerSet::new(config)?;
        if let ServerSet::One(server) = &mut servers {
            let (subscriptions, address) = (Arc::default(), "the application's connection".to_owned());
            let connection = ServerConnection::new(channel, subscriptions, address);
            server.connector.read_clock(&connection).await?;
            server.borrowed = Some(Arc::new(connection));
        }
        Ok(servers)
    }

    /// Whether PUBLISH counts all subscribers.
    pub(crate) fn counts_subscribers(&self) -> bool {
        matches!(self, ServerSet::One(_))
    }

    /// Connects, unless there is a connection.
    pub(crate) async fn connect(&self) -> Result<()> {
        match self {
            ServerSet::One(server) => server.for_commands().await.map(|_| ()),
            ServerSet::Cluster(cluster) => cluster.connect().await,
        }
    }

    /// The connections to all masters.
    pub(crate) async fn masters(&self) -> Result<Vec<Arc<ServerConnection>>> {
        match self {
            ServerSet::One(server) => Ok(vec![server.for_commands().await?]),
            ServerSet::Cluster(cluster) => cluster.masters().await,
        }
    }

    /// Calls a script: once for all items on one server, once for each hash slot in a Cluster.
    pub(crate) async fn call(
        &self,
        call: &ScriptCall<'_>,
        items: &[ScriptItem<'_>],
    ) -> Vec<Result<ItemReply>> {
        let server = match self {
            ServerSet::One(server) => server,
            ServerSet::Cluster(cluster) => return Box::pin(cluster.call(call, items)).await,
        };
        server.call(call, items).await.unwrap_or_else(|error| all_failed(&error, items.len()))
    }

    pub(crate) async fn subscribe(&self, channel: &[u8], limit: Duration) -> Result<WakeStream> {
        let connection = match self {
            ServerSet::One(server) => server.connection().await?,
            ServerSet::Cluster(cluster) => cluster.any_master().await?,
        };
        connection.subscribe(channel, limit).await
    }
}

/// How a server is found.
enum Route {
    Direct(Address, Box<Client>),
    Sentinel(Sentinels),
}

/// One server: its connection is opened on demand and replaced when it breaks.
pub(crate) struct ServerHandle {
    route: Route,
    connector: Connector,
    connection: Reconnect<ServerConnection>,
    /// A connection of the application. It is not used again once it broke or stopped replying.
    borrowed: Option<Arc<ServerConnection>>,
}

impl ServerHandle {
    pub(super) fn direct(connector: &Connector, address: &Address) -> Result<Self> {
        let client = Box::new(connector.client(address)?);
        Ok(ServerHandle::new(Route::Direct(address.clone(), client), connector))
    }

    fn new(route: Route, connector: &Connector) -> Self {
        // Each step of the connector has its own limit, and there are two: ask the sentinels, connect to the master.
        let connection = Reconnect::new(connector.limit.saturating_mul(3));
        ServerHandle { route, connector: connector.clone(), connection, borrowed: None }
    }

    /// The connection, or a new one. Tasks that wait while another one fails to connect share its error.
    pub(crate) async fn connection(&self) -> Result<Arc<ServerConnection>> {
        let connect = || async {
            match &self.route {
                Route::Direct(address, client) => {
                    self.connector.connect(client, address.to_string(), false).await
                }
                Route::Sentinel(sentinels) => sentinels.connect(&self.connector).await,
            }
        };
        self.connection.get(connect).await
    }

    /// The application's connection as long as it replies, and else the store's own.
    async fn for_commands(&self) -> Result<Arc<ServerConnection>> {
        match &self.borrowed {
            Some(connection) if !connection.is_closed() => Ok(Arc::clone(connection)),
            // Boxed: connecting takes more memory than any request, which would have room for it.
            _ => match self.connection.current() {
                Some(connection) => Ok(connection),
                None => Box::pin(self.connection()).await,
            },
        }
    }

    /// Calls a script once for all items.
    async fn call(&self, call: &ScriptCall<'_>, items: &[ScriptItem<'_>]) -> Result<Vec<Result<ItemReply>>> {
        let connection = self.for_commands().await?;
        let (mut replies, confirmed) = connection.call(call, &[items.iter().collect()], false).await?;
        let reply = replies.pop().ok_or_else(too_few_answers)?;
        Ok(reply.for_each_item(call, confirmed, items.len()))
    }

    /// A connection of the driver, for the baseline; `None` if sentinels name the server.
    #[cfg(feature = "bench")]
    pub(crate) async fn driver_connection(&self) -> Result<Option<redis::aio::MultiplexedConnection>> {
        let Route::Direct(address, client) = &self.route else { return Ok(None) };
        let connection =
            client.get_multiplexed_async_connection_with_config(&crate::connect::unlimited()).await;
        connection.map(Some).map_err(|error| crate::error::connect_failed(error).on(address.to_string()))
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connection.current().is_some()
    }
}

impl fmt::Debug for ServerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let route = match &self.route {
            Route::Direct(address, _) => address.to_string(),
            Route::Sentinel(_) => "by sentinels".to_owned(),
        };
        f.debug_struct("ServerHandle")
            .field("route", &route)
            .field("connection", &self.connection)
            .finish_non_exhaustive()
    }
}
