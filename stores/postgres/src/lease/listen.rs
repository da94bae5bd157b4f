//! Wake-ups: a second connection that listens, open only while somebody waits.

use std::pin::Pin;
use std::task::{Context, Poll};

use distlock_core::Result;
use distlock_core::store::{Inbox, Wake, WakeStream};
use futures_core::Stream;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::Notification;

use super::Inner;
use crate::failure;
use crate::link::Wire;
use crate::message;
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
            match message::read(message.payload()) {
                Some(wake) => return Poll::Ready(Some(wake)),
                // Anybody may notify: what is not ours is passed over.
                None => tracing::debug!(channel = message.channel(), "a message that cannot be read"),
            }
        }
        Poll::Ready(None)
    }
}
