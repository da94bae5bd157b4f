//! Wake-ups: a second connection that listens, open only while the process has waiters.
//!
//! The server wakes every session of the database that listens, on whatever channel, for each notification. So while a wait queue
//! is full, and for a while after, a process listens only while one of its lock ids has an entry in a queue, or a hold that was
//! granted from one. It keeps the connection: opening one costs the server more than a hundred notifications.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use distlock_core::store::{Inbox, Wake, WakeStream};
use distlock_core::{LockId, Result};
use futures_core::Stream;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::Notification;

use super::store::StoreState;
use crate::connection::Connection;
use crate::error;
use crate::keys::channel;
use crate::wake_format::WAKE_FORMAT;

/// How long a claim waits until its process listens again. Then it goes without: a lost wake-up costs a second.
const LISTEN_LIMIT: Duration = Duration::from_secs(1);

/// Listens on the channel of an inbox. The name of the channel has hexadecimal digits only.
pub(super) async fn subscribe(state: &StoreState, inbox: &Inbox) -> Result<WakeStream> {
    let (sender, notifications) = unbounded_channel();
    let connection = state.shared.open_listener(sender).await?;
    let listen = format!("LISTEN \"{}\"", channel(inbox));
    connection.client().batch_execute(&listen).await.map_err(error::from_statement)?;
    let session = Arc::new(ListenSession {
        connection,
        listen,
        changing: tokio::sync::Mutex::default(),
        listens: AtomicBool::new(true),
    });
    state.listening.use_session(&session);
    Ok(Box::pin(Listener { notifications, _session: session }))
}

/// The notifications of one connection. The stream ends with the connection, and the connection with the stream.
struct Listener {
    notifications: UnboundedReceiver<Notification>,
    _session: Arc<ListenSession>,
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

/// A connection for notifications.
#[derive(Debug)]
struct ListenSession {
    connection: Connection,
    listen: String,
    /// Held while a statement changes whether it listens: they are applied in the order in which the flag changes.
    changing: tokio::sync::Mutex<()>,
    /// Whether it surely listens.
    listens: AtomicBool,
}

impl ListenSession {
    /// Sends LISTEN or UNLISTEN. A connection that does not answer is closed, and with it the subscription, which is opened again.
    async fn send(&self, statement: &str) -> bool {
        let sent =
            tokio::time::timeout(LISTEN_LIMIT, self.connection.client().batch_execute(statement)).await;
        let answered = matches!(sent, Ok(Ok(())));
        if !answered {
            self.connection.close();
        }
        answered
    }

    async fn listen(&self) {
        if self.listens.load(Ordering::SeqCst) {
            return;
        }
        let _changing = self.changing.lock().await;
        if !self.listens.load(Ordering::SeqCst) && self.send(&self.listen).await {
            self.listens.store(true, Ordering::SeqCst);
        }
    }

    async fn unlisten_unless(&self, is_needed: impl Fn() -> bool) {
        let _changing = self.changing.lock().await;
        // The flag first: a claim notes its lock id, and then reads the flag.
        if self.listens.swap(false, Ordering::SeqCst) {
            match is_needed() {
                true => self.listens.store(true, Ordering::SeqCst),
                false => drop(self.send("UNLISTEN *").await),
            }
        }
    }
}

/// Whether this process needs notifications.
#[derive(Debug, Default)]
pub(super) struct Listening {
    /// The lock ids that may have an entry in a wait queue, or a hold that was granted from one.
    notified: Mutex<HashSet<LockId>>,
    session: Mutex<Weak<ListenSession>>,
}

impl Listening {
    fn notified(&self) -> MutexGuard<'_, HashSet<LockId>> {
        self.notified.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn session(&self) -> Option<Arc<ListenSession>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }

    fn use_session(&self, session: &Arc<ListenSession>) {
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(session);
    }

    /// Before claims that leave entries are sent.
    ///
    /// # Cancel safety
    /// Dropping the future may leave a lock id noted: the process then listens until it is [forgotten](Self::forget).
    pub(super) async fn expect<'a>(&self, ids: impl Iterator<Item = &'a LockId>) {
        let noted = {
            let mut notified = self.notified();
            ids.fold(false, |_, id| {
                notified.insert(id.clone());
                true
            })
        };
        if noted && let Some(session) = self.session() {
            session.listen().await;
        }
    }

    /// These lock ids have neither an entry nor a hold any more.
    pub(super) fn forget<'a>(&self, ids: impl Iterator<Item = &'a LockId>) {
        let mut notified = self.notified();
        if !notified.is_empty() {
            for id in ids {
                notified.remove(id);
            }
        }
    }

    fn is_needed(&self) -> bool {
        !self.notified().is_empty()
    }
}

/// Ends listening while no lock id of this process needs it, and so many processes wait that their listeners are a load.
pub(super) fn rest(state: &Arc<StoreState>) {
    if state.listening.is_needed() || !state.full_queues.is_crowded() {
        return;
    }
    let Some(session) = state.listening.session().filter(|session| session.listens.load(Ordering::SeqCst))
    else {
        return;
    };
    let state = Arc::clone(state);
    tokio::spawn(async move { session.unlisten_unless(|| state.listening.is_needed()).await });
}
