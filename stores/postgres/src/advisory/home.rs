//! The session that all share: it holds what can be had at once, and hears of permits that come later.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use distlock_core::store::{LossReason, Wake};
use distlock_core::{LockId, Result};
use tokio::sync::{mpsc, oneshot};
use tokio_postgres::Notification;

use super::key::AdvisoryKey;
use super::seat::Seat;
use crate::config::PostgresConfig;
use crate::failure;
use crate::message;
use crate::schema::Schema;

#[derive(Debug)]
pub(super) struct Home {
    pub(super) seat: Arc<Seat>,
    keys: Mutex<HashMap<AdvisoryKey, (Use, Granted)>>,
    waiters: Mutex<HashMap<LockId, oneshot::Sender<u64>>>,
}

/// How this session uses a key. The server would let it have a lock again that it has, so we must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// Has it, or just asks for it, alone.
    Alone,
    /// Has it, or just asks for it, in shared mode, so many times.
    Shared(usize),
}

/// Whether the server has granted what a key was asked for. Until then the key may be free, and the server down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Granted {
    Yes,
    Unknown,
}

/// What a claim finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// This session does not use the key: the server decides.
    Free,
    /// It has the key in shared mode, and shared mode is asked for: the server would grant it past those who wait.
    Again,
    /// It uses the key in a way that excludes the claim.
    Taken,
}

impl Home {
    pub(super) async fn open(config: &PostgresConfig, schema: &Schema) -> Result<Arc<Home>> {
        let (mail, messages) = mpsc::unbounded_channel();
        let seat = Seat::open(config, Some(mail)).await?;
        let client = seat.wire.client();
        schema.ensure(client).await?;
        let tokens = schema.tables().fill(include_str!("../sql/advisory_tokens.sql"));
        client.batch_execute(&tokens).await.map_err(|error| failure::of_statement(&error))?;
        let tidy = schema.tables().fill(include_str!("../sql/advisory_tidy.sql"));
        client.batch_execute(&tidy).await.map_err(|error| failure::of_statement(&error))?;
        seat.verify().await?;
        let home = Arc::new(Home { seat, keys: Mutex::default(), waiters: Mutex::default() });
        tokio::spawn(read(Arc::downgrade(&home), messages));
        Ok(home)
    }

    fn keys(&self) -> MutexGuard<'_, HashMap<AdvisoryKey, (Use, Granted)>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiters(&self) -> MutexGuard<'_, HashMap<LockId, oneshot::Sender<u64>>> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a key is going to be asked for, unless it is taken.
    pub(super) fn reserve(&self, key: AdvisoryKey, shared: bool) -> Place {
        let mut keys = self.keys();
        match (keys.get_mut(&key), shared) {
            (None, true) => {
                keys.insert(key, (Use::Shared(1), Granted::Unknown));
                Place::Free
            }
            (None, false) => {
                keys.insert(key, (Use::Alone, Granted::Unknown));
                Place::Free
            }
            (Some((Use::Shared(times), _)), true) => {
                *times += 1;
                Place::Again
            }
            _ => Place::Taken,
        }
    }

    /// Notes that the server granted a key.
    pub(super) fn granted(&self, key: AdvisoryKey) {
        if let Some((_, granted)) = self.keys().get_mut(&key) {
            *granted = Granted::Yes;
        }
    }

    /// Whether the server granted a key to this session, as far as it has said.
    pub(super) fn has(&self, key: AdvisoryKey) -> bool {
        self.keys().get(&key).is_some_and(|(_, granted)| *granted == Granted::Yes)
    }

    /// Notes that a key was given back, or not granted.
    pub(super) fn forget(&self, key: AdvisoryKey) {
        let mut keys = self.keys();
        match keys.get_mut(&key) {
            Some((Use::Shared(times), _)) if *times > 1 => *times -= 1,
            _ => {
                keys.remove(&key);
            }
        }
    }

    /// Somebody waits for permits: the token comes here.
    pub(super) fn enlist(&self, id: &LockId) -> oneshot::Receiver<u64> {
        let (tell, told) = oneshot::channel();
        self.waiters().insert(id.clone(), tell);
        told
    }

    pub(super) fn strike(&self, id: &LockId) {
        self.waiters().remove(id);
    }
}

/// Reads what others tell this session.
async fn read(home: Weak<Home>, mut messages: mpsc::UnboundedReceiver<Notification>) {
    while let Some(message) = messages.recv().await {
        let Some(home) = home.upgrade() else { return };
        match message::read(message.payload()) {
            Some(Wake::Granted { lock_id, grant, .. }) => {
                if let Some(waiter) = home.waiters().remove(&lock_id) {
                    // Whoever gave up meanwhile gives the permits back as well.
                    let _ = waiter.send(grant.token.get());
                }
            }
            Some(Wake::Broken { lock_id, .. }) => {
                if let Some(guest) = home.seat.dismiss(&lock_id) {
                    guest.end(LossReason::NotYours);
                }
            }
            _ => tracing::debug!(channel = message.channel(), "a message that cannot be read"),
        }
    }
}
