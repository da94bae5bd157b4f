//! One open connection: sends commands and script calls until it breaks or stops replying.

use std::fmt;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use distlock_core::Result;
use distlock_core::store::support::{errors, reconnect};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, RedisResult, Value};

use super::direct::DirectConnection;
use super::pubsub::Subscriptions;
use crate::error;
use crate::protocol::{Eval, ScriptItem, command};
use crate::scripts::{CallReply, ScriptCall, clock_and_token};

/// Each request has its own limit, so the driver's must not end it.
const NO_LIMIT: Duration = Duration::from_secs(24 * 60 * 60);

/// An open connection. It is closed as soon as a request finds it broken or silent: a half-open socket looks like a slow server,
/// and the next request on it would only time out again.
pub(crate) struct ServerConnection {
    pub(super) connection: CommandChannel,
    pub(super) subscriptions: Arc<Subscriptions>,
    pub(crate) address: String,
    /// The server's clock in ms, and when we read it.
    clock: Mutex<(u64, Instant)>,
    opened: Instant,
    /// When the last reply came, in ms after `opened`.
    replied: AtomicU64,
    pub(super) subscribing: tokio::sync::Mutex<()>,
}

impl reconnect::Connection for ServerConnection {
    fn is_usable(&self) -> bool {
        !self.is_closed()
    }
}

impl ServerConnection {
    pub(crate) fn new(
        connection: CommandChannel,
        subscriptions: Arc<Subscriptions>,
        address: String,
    ) -> Self {
        let opened = Instant::now();
        ServerConnection {
            connection,
            subscriptions,
            address,
            clock: Mutex::new((0, opened)),
            opened,
            replied: AtomicU64::new(0),
            subscribing: tokio::sync::Mutex::default(),
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.subscriptions.is_closed()
    }

    /// Sends nothing more on it. Requests in flight may still be answered.
    fn close(&self) {
        self.subscriptions.close();
    }

    /// Records what the server's clock says now, in ms.
    pub(crate) fn set_clock(&self, server_ms: u64) {
        *self.clock.lock().unwrap_or_else(PoisonError::into_inner) = (server_ms, Instant::now());
    }

    /// The moment of the server's clock, in µs, at which the sender of a request sent now has given up; never too late.
    ///
    /// A server that was paused reads its sockets in any order when it resumes: the withdrawal of a claim, sent over a new
    /// connection, may be applied before the claim itself. A claim past its deadline does nothing then. Only durations are
    /// measured here; the clock is the server's own.
    fn deadline(&self, limit: Duration) -> u64 {
        let (server_ms, read) = *self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        let later = read.elapsed().saturating_add(limit).as_micros();
        server_ms.saturating_mul(1000).saturating_add(u64::try_from(later).unwrap_or(u64::MAX))
    }

    /// Sends one command. An error of the server is a reply: [`Value::ServerError`].
    pub(crate) async fn send(&self, command: &Cmd, limit: Duration) -> Result<Value> {
        let mut connection = self.connection.clone();
        self.within(limit, pin!(connection.send(command, false))).await
    }

    /// Sends several commands at once and returns the reply to each.
    pub(crate) async fn send_all(&self, commands: &Pipeline, limit: Duration) -> Result<Vec<Value>> {
        let mut connection = self.connection.clone();
        self.within(limit, pin!(connection.send_all(commands))).await
    }

    /// Awaits a reply until the connection has been silent for `limit`. Replies come in the order of the requests, so while
    /// other replies come in, a loaded server is not taken for a dead one. A caller with less time sets a limit of its own. The
    /// request is pinned by the caller: an async function that takes a future by value has room for it twice.
    pub(super) async fn within<T>(
        &self,
        limit: Duration,
        mut request: Pin<&mut impl Future<Output = Result<T, RedisError>>>,
    ) -> Result<T> {
        let mut since = self.opened.elapsed();
        loop {
            let until = tokio::time::Instant::from_std(self.opened + since + limit);
            match tokio::time::timeout_at(until, request.as_mut()).await {
                Ok(Ok(reply)) => {
                    let now = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
                    self.replied.fetch_max(now, Ordering::Relaxed);
                    return Ok(reply);
                }
                Ok(Err(error)) => {
                    self.close();
                    return Err(error::connection_lost(error).on(self.address.as_str()));
                }
                Err(_) => {
                    let replied = Duration::from_millis(self.replied.load(Ordering::Relaxed));
                    if replied <= since {
                        self.close();
                        return Err(errors::no_reply(limit).on(self.address.as_str()));
                    }
                    since = replied;
                }
            }
        }
    }

    /// Calls a script for several groups of items, one call for each group, all in flight at once. Returns the replies, and how
    /// many replicas confirmed if that was asked for. With `asking`, the node serves a slot that is being moved to it.
    pub(super) async fn call(
        &self,
        call: &ScriptCall<'_>,
        groups: &[Vec<&ScriptItem<'_>>],
        asking: bool,
    ) -> Result<(Vec<CallReply>, Option<u64>)> {
        let (mut replies, mut confirmed) = self.exchange(call, groups, asking, Eval::BySha).await?;
        // The server was restarted, or its scripts were flushed: send the source. Only to the groups that need it, because a
        // release that was applied would find nothing the second time.
        let unknown =
            |at: &usize| matches!(&replies[*at], CallReply::Refused(text) if text.contains("NOSCRIPT"));
        let missing: Vec<usize> = (0..replies.len()).filter(unknown).collect();
        if !missing.is_empty() {
            let subset: Vec<Vec<&ScriptItem<'_>>> = missing.iter().map(|at| groups[*at].clone()).collect();
            let (again, count) = Box::pin(self.exchange(call, &subset, asking, Eval::BySource)).await?;
            for (at, reply) in missing.into_iter().zip(again) {
                replies[at] = reply;
            }
            confirmed = count;
        }
        if call.has_deadline() && replies.iter().all(|reply| matches!(reply, CallReply::Late)) {
            // The limit has not passed, so the server's clock was set. Now we know it.
            return Box::pin(self.exchange(call, groups, asking, Eval::BySha)).await;
        }
        Ok((replies, confirmed))
    }

    async fn exchange(
        &self,
        call: &ScriptCall<'_>,
        groups: &[Vec<&ScriptItem<'_>>],
        asking: bool,
        eval: Eval,
    ) -> Result<(Vec<CallReply>, Option<u64>)> {
        let deadline = if call.has_deadline() { self.deadline(call.limit) } else { 0 };
        if let ([only], 0, false) = (groups, call.replicas, asking) {
            let command = command(call.script, eval, deadline, only);
            let mut connection = self.connection.clone();
            // A batch has tasks that need the thread.
            let sent = connection.send(&command, call.is_waited_for() && only.len() == 1);
            let value = self.within(call.limit, pin!(sent)).await?;
            return Ok((vec![self.parse(value)], None));
        }
        let mut pipeline = redis::pipe();
        for (number, group) in groups.iter().enumerate() {
            if asking {
                pipeline.cmd("ASKING");
            }
            // The first call carries the source; the server knows it from then on.
            let eval = if number == 0 { eval } else { Eval::BySha };
            pipeline.add_command(command(call.script, eval, deadline, group));
        }
        if call.replicas > 0 {
            let wait = u64::try_from((call.limit / 2).as_millis()).unwrap_or(1000).max(1);
            pipeline.cmd("WAIT").arg(call.replicas).arg(wait);
        }
        let mut values = Box::pin(self.send_all(&pipeline, call.limit)).await?;
        let confirmed = if call.replicas > 0 { Some(self.confirmations(&mut values)?) } else { None };
        if asking {
            // Every other reply is the one to ASKING.
            values = values.into_iter().skip(1).step_by(2).collect();
        }
        Ok((values.into_iter().map(|value| self.parse(value)).collect(), confirmed))
    }

    /// Removes the reply to WAIT, which is the last one: how many replicas confirmed.
    fn confirmations(&self, values: &mut Vec<Value>) -> Result<u64> {
        match values.pop() {
            Some(Value::Int(count)) => Ok(u64::try_from(count).unwrap_or(0)),
            // The error of a script says more than that of the WAIT behind it.
            Some(Value::ServerError(_))
                if values.iter().any(|value| matches!(value, Value::ServerError(_))) =>
            {
                Ok(0)
            }
            Some(Value::ServerError(error)) => {
                Err(error::refused(&self.error_text(&error)).with_unknown_outcome())
            }
            other => Err(errors::unexpected_reply(other)),
        }
    }

    /// The text of an error of the server. Closes the connection if the server cannot serve us.
    fn error_text(&self, error: &redis::ServerError) -> String {
        let text = error::text_of(error);
        if error::is_wrong_server(&text) {
            self.close();
        }
        text
    }

    fn parse(&self, value: Value) -> CallReply {
        match value {
            Value::Array(mut values) => {
                let Some(Value::Int(now)) = values.first() else {
                    return CallReply::Refused(format!("a reply without a clock: {values:?}"));
                };
                // Zero if the script did not read the clock.
                if let Ok(now @ 1..) = u64::try_from(*now) {
                    self.set_clock(now);
                }
                if values.len() == 1 {
                    return CallReply::Late;
                }
                values.remove(0);
                // Text is the error of an item: a replica refuses each of them, not the whole call.
                let is_wrong_server = |value: &Value| match value {
                    Value::BulkString(text) => error::is_wrong_server(&String::from_utf8_lossy(text)),
                    _ => false,
                };
                if values.iter().any(is_wrong_server) {
                    self.close();
                }
                CallReply::Values(values)
            }
            // The short replies of the lock scripts: granted, or the code of a renewal or a release.
            Value::BulkString(text) => match clock_and_token(&text) {
                Some((now, token)) => {
                    self.set_clock(now);
                    CallReply::Same([Value::Int(1), Value::Int(token)])
                }
                None => CallReply::Refused(format!(
                    "a reply that is no clock and token: {:?}",
                    String::from_utf8_lossy(&text)
                )),
            },
            Value::Int(code) => CallReply::Same([Value::Int(code), Value::Nil]),
            Value::ServerError(error) => CallReply::Refused(self.error_text(&error)),
            other => CallReply::Refused(format!("a reply that is no list: {other:?}")),
        }
    }
}

impl fmt::Debug for ServerConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerConnection")
            .field("address", &self.address)
            .field("closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}

/// What commands are sent over: a connection of the store's own, which is the driver's for TLS, or one of the application.
#[derive(Clone)]
pub(crate) enum CommandChannel {
    Direct(Arc<DirectConnection>),
    Multiplexed(MultiplexedConnection),
    #[cfg(feature = "connection-manager")]
    Manager(redis::aio::ConnectionManager),
}

impl From<MultiplexedConnection> for CommandChannel {
    fn from(mut connection: MultiplexedConnection) -> Self {
        // Of this clone alone. The store's own connection has none, which saves a timer for each request.
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
    /// `may_poll`: see [`DirectConnection::send`]. The driver's connections sleep.
    async fn send(&mut self, command: &Cmd, may_poll: bool) -> RedisResult<Value> {
        match self {
            CommandChannel::Direct(connection) => connection.send(command, may_poll).await,
            CommandChannel::Multiplexed(connection) => connection.send_packed_command(command).await,
            #[cfg(feature = "connection-manager")]
            CommandChannel::Manager(manager) => manager.send_packed_command(command).await,
        }
    }

    async fn send_all(&mut self, commands: &Pipeline) -> RedisResult<Vec<Value>> {
        match self {
            CommandChannel::Direct(connection) => connection.send_all(commands).await,
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
            CommandChannel::Direct(connection) => connection.subscribe(channel).await,
            CommandChannel::Multiplexed(connection) => connection.subscribe(channel).await,
            #[cfg(feature = "connection-manager")]
            CommandChannel::Manager(manager) => manager.subscribe(channel).await,
        }
    }

    pub(super) async fn unsubscribe(&mut self, channel: &[u8]) -> RedisResult<()> {
        match self {
            CommandChannel::Direct(connection) => connection.unsubscribe(channel).await,
            CommandChannel::Multiplexed(connection) => connection.unsubscribe(channel).await,
            #[cfg(feature = "connection-manager")]
            CommandChannel::Manager(manager) => manager.unsubscribe(channel).await,
        }
    }
}
