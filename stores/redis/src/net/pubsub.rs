//! Publish/subscribe: the wake-ups that arrive on a connection, and the streams that read them.

use std::collections::HashMap;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use distlock_core::Result;
use distlock_core::store::support::wake_codec::{Field, GrantFormat, Unit, WakeFormat};
use distlock_core::store::{Wake, WakeStream};
use futures_core::Stream;
use redis::{PushInfo, PushKind, RedisError, Value};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::connection::ServerConnection;
use crate::error;

/// How long the UNSUBSCRIBE of a dropped stream may take.
const UNSUBSCRIBE_LIMIT: Duration = Duration::from_secs(1);

/// The messages of the scripts. The previous version publishes `G` without an attempt number, so its waiters ask again; it
/// ignores `P`, so its waiters learn of a grant when they ask next.
const MESSAGES: WakeFormat = WakeFormat {
    retry: Some("R"),
    broken: "B",
    grants: &[
        (
            "P",
            GrantFormat {
                unit: Unit::Milliseconds,
                fields: &[Field::Token, Field::After, Field::Window, Field::Attempt],
            },
        ),
        ("G", GrantFormat { unit: Unit::Milliseconds, fields: &[Field::Token, Field::After, Field::Window] }),
    ],
};

type Streams = HashMap<Vec<u8>, Vec<(u64, UnboundedSender<Wake>)>>;

/// The open streams of one connection, by channel. All of them end with the connection.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    closed: AtomicBool,
    next: AtomicU64,
    streams: Mutex<Streams>,
}

impl Subscriptions {
    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    pub(super) fn close(&self) {
        let mut streams = self.streams();
        self.closed.store(true, Ordering::SeqCst);
        streams.clear();
    }

    /// Handles what the server pushes. Runs where replies are read, so it must not block.
    pub(crate) fn deliver(&self, info: PushInfo) {
        match (info.kind, info.data.as_slice()) {
            (PushKind::Disconnection, _) => self.close(),
            (PushKind::Message, [Value::BulkString(channel), Value::BulkString(message)]) => {
                let Some(wake) = std::str::from_utf8(message).ok().and_then(|text| MESSAGES.parse(text))
                else {
                    tracing::debug!(
                        message = %String::from_utf8_lossy(message),
                        "ignored a message that is no wake-up"
                    );
                    return;
                };
                for (_, stream) in self.streams().get(channel).into_iter().flatten() {
                    // Fails if the stream is being dropped.
                    let _ = stream.send(wake.clone());
                }
            }
            _ => {}
        }
    }

    /// Opens a stream of the messages of a channel; `None` if the connection has ended.
    fn open(&self, channel: &[u8]) -> Option<(u64, UnboundedReceiver<Wake>)> {
        let (sender, receiver) = unbounded_channel();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut streams = self.streams();
        if self.is_closed() {
            return None;
        }
        streams.entry(channel.to_vec()).or_default().push((number, sender));
        Some((number, receiver))
    }

    fn is_read(&self, channel: &[u8]) -> bool {
        self.streams().contains_key(channel)
    }

    /// Removes a stream. True if it was the last one of its channel.
    fn remove(&self, channel: &[u8], number: u64) -> bool {
        let mut streams = self.streams();
        let Some(open) = streams.get_mut(channel) else { return false };
        open.retain(|(other, _)| *other != number);
        let last = open.is_empty();
        if last {
            streams.remove(channel);
        }
        last
    }
}

impl ServerConnection {
    /// Opens the stream of wake-ups of a channel on this connection (RESP3 pushes).
    pub(super) async fn subscribe(self: &Arc<Self>, channel: &[u8], limit: Duration) -> Result<WakeStream> {
        let _one_at_a_time = self.subscribing.lock().await;
        let closed = || {
            error::connection_lost(RedisError::from(std::io::Error::from(std::io::ErrorKind::NotConnected)))
        };
        let (number, receiver) = self.subscriptions.open(channel).ok_or_else(closed)?;
        // Created first, so that a failure below removes the stream again.
        let stream =
            ChannelStream { receiver, number, channel: channel.to_vec(), connection: Arc::clone(self) };
        let mut connection = self.connection.clone();
        // The driver returns a refusal of the server as an error; the connection is not broken.
        let subscribed = async {
            match connection.subscribe(channel).await {
                Err(error) if error.code().is_some() => {
                    Ok(Err(format!("{} {error}", error.code().unwrap_or_default())))
                }
                other => other.map(Ok),
            }
        };
        match self.within(limit, pin!(subscribed)).await? {
            Ok(()) => Ok(Box::pin(stream)),
            Err(text) => Err(error::refused(&text).on(self.address.as_str())),
        }
    }

    async fn unsubscribe_if_unread(&self, channel: &[u8]) {
        let _one_at_a_time = self.subscribing.lock().await;
        if self.is_closed() || self.subscriptions.is_read(channel) {
            return;
        }
        let mut connection = self.connection.clone();
        let _ = tokio::time::timeout(UNSUBSCRIBE_LIMIT, connection.unsubscribe(channel)).await;
    }
}

/// The wake-ups of one inbox. Ends with the connection; dropping it unsubscribes.
struct ChannelStream {
    receiver: UnboundedReceiver<Wake>,
    number: u64,
    channel: Vec<u8>,
    connection: Arc<ServerConnection>,
}

impl Stream for ChannelStream {
    type Item = Wake;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Wake>> {
        self.receiver.poll_recv(context)
    }
}

impl Drop for ChannelStream {
    fn drop(&mut self) {
        let last = self.connection.subscriptions.remove(&self.channel, self.number);
        // Without a runtime the subscription remains until the connection ends; its messages are ignored.
        if let (true, Ok(runtime)) = (last, tokio::runtime::Handle::try_current()) {
            let (connection, channel) = (Arc::clone(&self.connection), std::mem::take(&mut self.channel));
            runtime.spawn(async move { connection.unsubscribe_if_unread(&channel).await });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_both_versions_are_parsed_with_lock_ids_that_contain_spaces() {
        for (message, attempt) in
            [("P 1700000000000 12 2000 7 a b#1-2", 7), ("G 1700000000000 12 2000 a b#1-2", 0)]
        {
            let Some(Wake::Granted { lock_id, grant, .. }) = MESSAGES.parse(message) else {
                panic!("not a grant");
            };
            assert_eq!((lock_id.as_str(), grant.attempt), ("a b#1-2", attempt));
            assert_eq!((grant.token.get(), grant.after.as_millis()), (1_700_000_000_000, 12));
            assert_eq!(grant.window.as_millis(), 2000);
        }
        assert!(
            matches!(MESSAGES.parse("R x y"), Some(Wake::Retry { lock_id, .. }) if lock_id.as_str() == "x y")
        );
        assert!(
            matches!(MESSAGES.parse("B x y"), Some(Wake::Broken { lock_id, .. }) if lock_id.as_str() == "x y")
        );
        for bad in ["", "P 1 2", "P 1 2 3 y z", "P 1 2 3 4", "G 1 2 x y", "hello"] {
            assert!(MESSAGES.parse(bad).is_none(), "{bad}");
        }
    }
}
