//! One connection that was made, until it ends.

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use distlock_core::Result;
use distlock_core::store::WakeStream;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, Value};

use super::mailbox::{Listening, Mailbox};
use crate::trouble;

/// How long a stream that nobody reads may take to be closed at the server.
const UNSUBSCRIBE: Duration = Duration::from_secs(1);

/// A connection. It counts as closed as soon as one request found it broken or silent: a socket whose other end is
/// gone looks like a slow server, and waiting on it again would only time out again.
pub(crate) struct Live {
    connection: MultiplexedConnection,
    pub(super) mailbox: Arc<Mailbox>,
    pub(crate) address: String,
    /// What the server's clock said, and when we heard it.
    clock: Mutex<(u64, Instant)>,
    begun: Instant,
    /// When the last answer came, in ms since the connection was made.
    answered: AtomicU64,
    subscribing: tokio::sync::Mutex<()>,
}

impl Live {
    pub(super) fn new(
        connection: MultiplexedConnection,
        mailbox: Arc<Mailbox>,
        address: String,
        server_ms: u64,
    ) -> Self {
        let begun = Instant::now();
        Live {
            connection,
            mailbox,
            address,
            clock: Mutex::new((server_ms, begun)),
            begun,
            answered: AtomicU64::new(0),
            subscribing: tokio::sync::Mutex::default(),
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.mailbox.is_closed()
    }

    /// The bare connection, for what needs nothing of the rest.
    #[cfg(feature = "bench")]
    pub(crate) fn connection(&self) -> MultiplexedConnection {
        self.connection.clone()
    }

    /// Uses it no more. What is under way may still be answered.
    pub(crate) fn give_up(&self) {
        self.mailbox.close();
    }

    /// The server's clock said this just now.
    pub(super) fn heard(&self, server_ms: u64) {
        *self.clock.lock().unwrap_or_else(PoisonError::into_inner) = (server_ms, Instant::now());
    }

    /// The moment of the server's clock, surely not too late, at which a request sent now has been given up.
    ///
    /// A server that was frozen reads its sockets in any order when it goes on: the withdrawal of a claim, sent over
    /// a new connection, may be carried out before the claim itself. A claim that knows its deadline does nothing
    /// then. Only durations are measured here; the clock is the server's own.
    pub(super) fn deadline(&self, limit: Duration) -> u64 {
        let (server_ms, heard) = *self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        let later = heard.elapsed().saturating_add(limit).as_millis();
        server_ms.saturating_add(u64::try_from(later).unwrap_or(u64::MAX))
    }

    /// One command. What the server refuses is an answer: [`Value::ServerError`].
    pub(crate) async fn send(&self, command: &Cmd, limit: Duration) -> Result<Value> {
        let mut connection = self.connection.clone();
        self.within(limit, connection.send_packed_command(command)).await
    }

    /// Several commands at once, each with its answer.
    pub(crate) async fn send_all(&self, commands: &Pipeline, limit: Duration) -> Result<Vec<Value>> {
        let mut connection = self.connection.clone();
        self.within(limit, connection.send_packed_commands(commands, 0, commands.len())).await
    }

    /// Waits for an answer until the connection has been silent for so long. Answers come in the order of the
    /// requests, so as long as others come in, ours is on its way behind them: a server with much to do is not taken
    /// for a dead one. Whoever has less time than that puts a limit of their own on it.
    async fn within<T>(
        &self,
        limit: Duration,
        request: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T> {
        let mut request = pin!(request);
        let mut since = self.begun.elapsed();
        loop {
            let until = tokio::time::Instant::from_std(self.begun + since + limit);
            match tokio::time::timeout_at(until, request.as_mut()).await {
                Ok(Ok(answer)) => {
                    let now = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
                    self.answered.fetch_max(now, Ordering::Relaxed);
                    return Ok(answer);
                }
                Ok(Err(error)) => {
                    self.give_up();
                    return Err(trouble::broken(error).on(self.address.as_str()));
                }
                Err(_) => {
                    let answered = Duration::from_millis(self.answered.load(Ordering::Relaxed));
                    if answered <= since {
                        self.give_up();
                        return Err(trouble::silent(limit).on(self.address.as_str()));
                    }
                    since = answered;
                }
            }
        }
    }

    /// Opens the stream of wake-ups of a channel, on this same connection (RESP3 pushes).
    pub(crate) async fn subscribe(self: &Arc<Self>, channel: &[u8], limit: Duration) -> Result<WakeStream> {
        let _one_at_a_time = self.subscribing.lock().await;
        let gone =
            || trouble::broken(RedisError::from(std::io::Error::from(std::io::ErrorKind::NotConnected)));
        let (number, receiver) = self.mailbox.open(channel).ok_or_else(gone)?;
        // Made first, so that a failure below takes the reader away again.
        let listening = Listening { receiver, number, channel: channel.to_vec(), live: Arc::clone(self) };
        let mut connection = self.connection.clone();
        // What the server refuses comes as an error here, and says nothing against the connection.
        let subscribed = async {
            match connection.subscribe(channel).await {
                Err(error) if error.code().is_some() => {
                    Ok(Err(format!("{} {error}", error.code().unwrap_or_default())))
                }
                other => other.map(Ok),
            }
        };
        match self.within(limit, subscribed).await? {
            Ok(()) => Ok(Box::pin(listening)),
            Err(text) => Err(trouble::refused(&text).on(self.address.as_str())),
        }
    }

    pub(super) async fn unsubscribe_if_unread(&self, channel: &[u8]) {
        let _one_at_a_time = self.subscribing.lock().await;
        if self.is_closed() || self.mailbox.has_readers(channel) {
            return;
        }
        let mut connection = self.connection.clone();
        let _ = tokio::time::timeout(UNSUBSCRIBE, connection.unsubscribe(channel)).await;
    }
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("address", &self.address).field("closed", &self.is_closed()).finish()
    }
}
