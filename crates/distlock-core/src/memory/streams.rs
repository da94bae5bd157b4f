//! The open streams of wake-ups, and the two ways in which tests lose messages.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_core::Stream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::records::Wakes;
use crate::store::{Inbox, Wake};

#[derive(Debug, Default)]
struct StreamTable {
    next: u64,
    open: HashMap<Inbox, Vec<(u64, UnboundedSender<Wake>)>>,
    /// How many messages to lose.
    losing: u64,
}

/// One channel for each open stream. A message to an inbox without a stream is dropped.
#[derive(Clone, Debug, Default)]
pub(super) struct WakeStreams(Arc<Mutex<StreamTable>>);

impl WakeStreams {
    fn table(&self) -> MutexGuard<'_, StreamTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn send(&self, wakes: Wakes) {
        if wakes.is_empty() {
            return;
        }
        let mut table = self.table();
        for (inbox, wake) in wakes {
            if table.losing > 0 {
                table.losing -= 1;
                continue;
            }
            for (_, sender) in table.open.get(&inbox).into_iter().flatten() {
                // A closed receiver belongs to a stream that is being dropped.
                let _ = sender.send(wake.clone());
            }
        }
    }

    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn lose(&self, messages: u64) {
        self.table().losing = messages;
    }

    /// Ends every stream, as a broken connection does.
    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn hang_up(&self) {
        self.table().open.clear();
    }

    pub(super) fn open(&self, inbox: &Inbox) -> OpenStream {
        let (sender, receiver) = unbounded_channel();
        let mut table = self.table();
        let number = table.next;
        table.next += 1;
        table.open.entry(inbox.clone()).or_default().push((number, sender));
        OpenStream { receiver, number, inbox: inbox.clone(), streams: self.clone() }
    }

    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn len(&self) -> usize {
        self.table().open.values().map(Vec::len).sum()
    }
}

/// The wake-ups of one inbox. Dropping it unsubscribes.
#[derive(Debug)]
pub(super) struct OpenStream {
    receiver: UnboundedReceiver<Wake>,
    number: u64,
    inbox: Inbox,
    streams: WakeStreams,
}

impl Stream for OpenStream {
    type Item = Wake;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Wake>> {
        self.receiver.poll_recv(cx)
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let mut table = self.streams.table();
        if let Some(open) = table.open.get_mut(&self.inbox) {
            open.retain(|(number, _)| *number != self.number);
            if open.is_empty() {
                table.open.remove(&self.inbox);
            }
        }
    }
}
