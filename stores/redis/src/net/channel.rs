//! What commands are sent over: a connection of the store's own, or one of the application.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisResult, Value};

/// Each request has its own limit, so the driver's must not end it.
const NO_LIMIT: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Clone)]
pub(crate) enum CommandChannel {
    Multiplexed(MultiplexedConnection),
    #[cfg(feature = "connection-manager")]
    Manager(redis::aio::ConnectionManager),
}

impl From<MultiplexedConnection> for CommandChannel {
    fn from(mut connection: MultiplexedConnection) -> Self {
        // Of this clone alone.
        connection.set_response_timeout(NO_LIMIT);
        CommandChannel::Multiplexed(connection)
    }
}

#[cfg(feature = "connection-manager")]
impl From<redis::aio::ConnectionManager> for CommandChannel {
    fn from(manager: redis::aio::ConnectionManager) -> Self {
        CommandChannel::Manager(manager)
    }
}

impl CommandChannel {
    pub(super) async fn send(&mut self, command: &Cmd) -> RedisResult<Value> {
        match self {
            CommandChannel::Multiplexed(connection) => connection.send_packed_command(command).await,
            #[cfg(feature = "connection-manager")]
            CommandChannel::Manager(manager) => manager.send_packed_command(command).await,
        }
    }

    pub(super) async fn send_all(&mut self, commands: &Pipeline) -> RedisResult<Vec<Value>> {
        match self {
            CommandChannel::Multiplexed(connection) => {
                connection.send_packed_commands(commands, 0, commands.len()).await
            }
            #[cfg(feature = "connection-manager")]
            CommandChannel::Manager(manager) => {
                manager.send_packed_commands(commands, 0, commands.len()).await
            }
        }
    }

    pub(super) async fn subscribe(&mut self, channel: &[u8]) -> RedisResult<()> {
        match self {
            CommandChannel::Multiplexed(connection) => connection.subscribe(channel).await,
            #[cfg(feature = "connection-manager")]
            CommandChannel::Manager(manager) => manager.subscribe(channel).await,
        }
    }

    pub(super) async fn unsubscribe(&mut self, channel: &[u8]) -> RedisResult<()> {
        match self {
            CommandChannel::Multiplexed(connection) => connection.unsubscribe(channel).await,
            #[cfg(feature = "connection-manager")]
            CommandChannel::Manager(manager) => manager.unsubscribe(channel).await,
        }
    }
}
