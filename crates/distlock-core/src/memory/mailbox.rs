//! Who listens for wake-ups, and the ways in which messages get lost.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_core::Stream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::records::Wakes;
use crate::store::{Inbox, Wake};

#[derive(Debug, Default)]
struct Listeners {
    next: u64,
    open: HashMap<Inbox, Vec<(u64, UnboundedSender<Wake>)>>,
    /// How many messages to lose.
    losing: u64,
}

/// One channel for each stream that is open. A message to an inbox without any is gone.
#[derive(Clone, Debug, Default)]
pub(super) struct Mailbox(Arc<Mutex<Listeners>>);

impl Mailbox {
    fn listeners(&self) -> MutexGuard<'_, Listeners> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn send(&self, wakes: Wakes) {
        if wakes.is_empty() {
            return;
        }
        let mut listeners = self.listeners();
        for (inbox, wake) in wakes {
            if listeners.losing > 0 {
                listeners.losing -= 1;
                continue;
            }
            for (_, sender) in listeners.open.get(&inbox).into_iter().flatten() {
                // A closed receiver is a stream that is just being dropped.
                let _ = sender.send(wake.clone());
            }
        }
    }

    pub(super) fn lose(&self, messages: u64) {
        self.listeners().losing = messages;
    }

    /// Ends every stream: what a broken connection does.
    pub(super) fn hang_up(&self) {
        self.listeners().open.clear();
    }

    pub(super) fn open(&self, inbox: &Inbox) -> Listening {
        let (sender, receiver) = unbounded_channel();
        let mut listeners = self.listeners();
        let number = listeners.next;
        listeners.next += 1;
        listeners.open.entry(inbox.clone()).or_default().push((number, sender));
        Listening { receiver, number, inbox: inbox.clone(), mailbox: self.clone() }
    }

    pub(super) fn len(&self) -> usize {
        self.listeners().open.values().map(Vec::len).sum()
    }
}

/// The wake-ups of one inbox. Dropping it unsubscribes.
#[derive(Debug)]
pub(super) struct Listening {
    receiver: UnboundedReceiver<Wake>,
    number: u64,
    inbox: Inbox,
    mailbox: Mailbox,
}

impl Stream for Listening {
    type Item = Wake;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Wake>> {
        self.receiver.poll_recv(cx)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut listeners = self.mailbox.listeners();
        if let Some(open) = listeners.open.get_mut(&self.inbox) {
            open.retain(|(number, _)| *number != self.number);
            if open.is_empty() {
                listeners.open.remove(&self.inbox);
            }
        }
    }
}
