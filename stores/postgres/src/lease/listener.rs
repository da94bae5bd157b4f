//! Wake-ups: a second connection that listens, open only while the process has waiters.

use std::pin::Pin;
use std::task::{Context, Poll};

use distlock_core::Result;
use distlock_core::store::{Inbox, Wake, WakeStream};
use futures_core::Stream;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::Notification;

use super::store::StoreState;
use crate::connection::Connection;
use crate::error;
use crate::keys::channel;
use crate::wake_format::WAKE_FORMAT;

/// Listens on the channel of an inbox. The name of the channel has hexadecimal digits only.
pub(super) async fn subscribe(state: &StoreState, inbox: &Inbox) -> Result<WakeStream> {
    let (sender, notifications) = unbounded_channel();
    let connection = state.shared.open_listener(sender).await?;
    let listen = format!("LISTEN \"{}\"", channel(inbox));
    connection.client().batch_execute(&listen).await.map_err(error::from_statement)?;
    Ok(Box::pin(Listener { notifications, _connection: connection }))
}

/// The notifications of one connection. The stream ends with the connection, and the connection with the stream.
struct Listener {
    notifications: UnboundedReceiver<Notification>,
    _connection: Connection,
}

impl Stream for Listener {
    type Item = Wake;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Wake>> {
        while let Some(notification) = std::task::ready!(self.notifications.poll_recv(context)) {
            match WAKE_FORMAT.parse(notification.payload()) {
                Some(wake) => return Poll::Ready(Some(wake)),
                // Any program may notify.
                None => tracing::debug!(channel = notification.channel(), "ignored a foreign notification"),
            }
        }
        Poll::Ready(None)
    }
}
