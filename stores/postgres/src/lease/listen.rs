//! Wake-ups: a second connection that listens, open only while somebody waits.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use distlock_core::store::{Inbox, PushedGrant, Wake, WakeStream};
use distlock_core::{FencingToken, LockId, Result};
use futures_core::Stream;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::Notification;

use super::Inner;
use crate::failure;
use crate::link::Wire;
use crate::names::channel;

/// Listens on the channel of an inbox. The name of a channel is ours, made of hexadecimal digits.
pub(super) async fn subscribe(store: &Inner, inbox: &Inbox) -> Result<WakeStream> {
    let (mail, messages) = unbounded_channel();
    let wire = store.link.listener(mail).await?;
    let listen = format!("LISTEN \"{}\"", channel(inbox));
    wire.client().batch_execute(&listen).await.map_err(|error| failure::of_statement(&error))?;
    Ok(Box::pin(Listening { messages, _wire: wire }))
}

/// The messages of one connection. It ends with the connection, and the connection with it.
struct Listening {
    messages: UnboundedReceiver<Notification>,
    _wire: Wire,
}

impl Stream for Listening {
    type Item = Wake;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Wake>> {
        while let Some(message) = std::task::ready!(self.messages.poll_recv(context)) {
            match read(message.payload()) {
                Some(wake) => return Poll::Ready(Some(wake)),
                // Anybody may notify: what is not ours is passed over.
                None => tracing::debug!(channel = message.channel(), "a message that cannot be read"),
            }
        }
        Poll::Ready(None)
    }
}

/// `granted TOKEN AFTER WINDOW LOCK-ID`, with durations in microseconds.
fn read(payload: &str) -> Option<Wake> {
    let mut words = payload.splitn(5, ' ');
    if words.next() != Some("granted") {
        return None;
    }
    let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
    let grant = PushedGrant {
        token: FencingToken::new(number()?),
        attempt: 0,
        after: Duration::from_micros(number()?),
        window: Duration::from_micros(number()?),
    };
    Some(Wake::Granted { lock_id: LockId::from_stored(words.next()?), grant })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_is_read_and_nonsense_is_passed_over() {
        let Some(Wake::Granted { lock_id, grant }) = read("granted 12 3400 2000000 host:1#ab-1") else {
            panic!("a grant");
        };
        assert_eq!((lock_id.as_str(), grant.token.get()), ("host:1#ab-1", 12));
        assert_eq!((grant.after, grant.window), (Duration::from_micros(3400), Duration::from_secs(2)));
        for nonsense in [
            "",
            "granted",
            "granted 1 2",
            "granted -1 2 3 x",
            "granted x y z w",
            "hello world",
            "granted 1 2 3",
        ] {
            assert!(read(nonsense).is_none(), "{nonsense:?}");
        }
    }
}
