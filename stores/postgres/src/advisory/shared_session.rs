//! The session that all claims share: it holds every lock that is granted at once, and receives grants of permits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use distlock_core::store::support::compact_lock_id::{CompactLockId, CompactLockIds};
use distlock_core::store::support::reconnect;
use distlock_core::store::{LossReason, Wake};
use distlock_core::{Clock, LockId, Result};
use tokio::sync::{mpsc, oneshot};
use tokio_postgres::Notification;

use super::holder_rows::{self, HolderRows, RowStatements};
use super::key::AdvisoryKey;
use super::lock_session::LockSession;
use crate::config::PostgresConfig;
use crate::error;
use crate::schema::Schema;
use crate::wake_format::WAKE_FORMAT;

/// For how many keys there is always room.
const LEAST_KEYS: usize = 1024;

#[derive(Debug)]
pub(super) struct SharedSession {
    pub(super) session: Arc<LockSession>,
    keys: Mutex<HashMap<AdvisoryKey, KeyUse>>,
    ids: CompactLockIds,
    pub(super) rows: Arc<HolderRows>,
    waiters: Arc<PermitWaiters>,
}

/// How this session uses a key. The server grants a session a lock again that it holds, so uses are counted here. A process may have
/// a hundred thousand of them, so its size matters.
#[derive(Debug)]
enum KeyUse {
    /// In exclusive mode, and the server has not answered: the key may be free, and the server down.
    Requested,
    /// In exclusive mode.
    Exclusive,
    /// In exclusive mode, by this claim, which was granted in a batch.
    Batched(CompactLockId),
    /// In shared mode, by this many claims.
    Shared { claims: u32, is_confirmed: bool },
}

/// The result of reserving a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reservation {
    /// This session does not use the key: the server decides.
    New,
    /// It uses the key in shared mode already, and the claim is for shared mode. The server would grant it ahead of waiters.
    SharedAgain,
    /// It uses the key in a mode that excludes the claim.
    Excluded,
}

/// Claims that wait for permits, by lock id. The sender passes the token.
type PermitWaiters = Mutex<HashMap<LockId, oneshot::Sender<u64>>>;

impl reconnect::Connection for SharedSession {
    fn is_usable(&self) -> bool {
        self.session.is_alive()
    }
}

impl SharedSession {
    pub(super) async fn open(
        config: &PostgresConfig,
        schema: &Schema,
        clock: Arc<dyn Clock>,
        row_statements: &Arc<RowStatements>,
    ) -> Result<Self> {
        let (sender, notifications) = mpsc::unbounded_channel();
        let session = LockSession::open(config, clock, Some(sender)).await?;
        let client = session.connection.client();
        schema.ensure(client).await?;
        for preparation in [
            include_str!("../sql/advisory_advance_tokens.sql"),
            include_str!("../sql/advisory_delete_stale_rows.sql"),
        ] {
            let preparation = schema.tables().fill(preparation);
            client.batch_execute(&preparation).await.map_err(error::from_statement)?;
        }
        session.verify().await?;
        let waiters = Arc::<PermitWaiters>::default();
        tokio::spawn(receive(Arc::downgrade(&session), Arc::downgrade(&waiters), notifications));
        let rows = Arc::<HolderRows>::default();
        let writing =
            holder_rows::write(Arc::downgrade(&session), Arc::clone(&rows), Arc::clone(row_statements));
        let ended = session.connection.ended().clone();
        tokio::spawn(async move { ended.run_until_cancelled(writing).await });
        Ok(SharedSession { session, keys: Mutex::default(), ids: CompactLockIds::default(), rows, waiters })
    }

    fn keys(&self) -> MutexGuard<'_, HashMap<AdvisoryKey, KeyUse>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves a key before the request for it is sent.
    pub(super) fn reserve(&self, key: AdvisoryKey, shared: bool) -> Reservation {
        let mut keys = self.keys();
        match keys.get_mut(&key) {
            None => {
                let shared_use = KeyUse::Shared { claims: 1, is_confirmed: false };
                keys.insert(key, if shared { shared_use } else { KeyUse::Requested });
                Reservation::New
            }
            Some(KeyUse::Shared { claims, .. }) if shared => {
                *claims += 1;
                Reservation::SharedAgain
            }
            Some(_) => Reservation::Excluded,
        }
    }

    /// The server granted a reserved key.
    pub(super) fn confirm(&self, key: AdvisoryKey) {
        match self.keys().get_mut(&key) {
            Some(requested @ KeyUse::Requested) => *requested = KeyUse::Exclusive,
            Some(KeyUse::Shared { is_confirmed, .. }) => *is_confirmed = true,
            _ => {}
        }
    }

    /// Whether the server has granted the key to this session.
    pub(super) fn is_confirmed(&self, key: AdvisoryKey) -> bool {
        match self.keys().get(&key) {
            Some(KeyUse::Exclusive | KeyUse::Batched(_)) => true,
            Some(KeyUse::Shared { is_confirmed, .. }) => *is_confirmed,
            Some(KeyUse::Requested) | None => false,
        }
    }

    /// The server granted reserved keys to these claims of a batch.
    pub(super) fn granted_in_batch<'a>(&self, grants: impl Iterator<Item = (AdvisoryKey, &'a LockId)>) {
        let mut keys = self.keys();
        for (key, id) in grants {
            keys.insert(key, KeyUse::Batched(self.ids.of(id)));
        }
    }

    /// Whether the claim was granted the key in a batch, and is not being released.
    pub(super) fn is_batched(&self, key: AdvisoryKey, id: &LockId) -> bool {
        matches!(self.keys().get(&key), Some(KeyUse::Batched(claim)) if *claim == self.ids.of(id))
    }

    /// Of these keys, those that the claims were granted in a batch. They are now being released, and not released again by another
    /// call. They stay reserved.
    pub(super) fn begin_releases<'a>(
        &self,
        leases: impl Iterator<Item = (AdvisoryKey, &'a LockId)>,
    ) -> Vec<(AdvisoryKey, &'a LockId)> {
        let mut keys = self.keys();
        let begins = |(key, id): &(AdvisoryKey, &LockId)| {
            let key_use = keys.get_mut(key);
            let held = key_use
                .filter(|key_use| matches!(key_use, KeyUse::Batched(claim) if *claim == self.ids.of(id)));
            held.map(|held| *held = KeyUse::Exclusive).is_some()
        };
        leases.filter(begins).collect()
    }

    /// These keys were released, or not granted.
    pub(super) fn unreserve_all(&self, unused: impl Iterator<Item = AdvisoryKey>) {
        let mut keys = self.keys();
        for key in unused {
            keys.remove(&key);
        }
        // A burst of holds leaves no room behind it.
        if keys.len() < keys.capacity() / 8 && keys.capacity() > LEAST_KEYS {
            let room = keys.len().max(LEAST_KEYS);
            keys.shrink_to(room);
        }
    }

    /// A key was released, or not granted.
    pub(super) fn unreserve(&self, key: AdvisoryKey) {
        let mut keys = self.keys();
        match keys.get_mut(&key) {
            Some(KeyUse::Shared { claims, .. }) if *claims > 1 => *claims -= 1,
            _ => {
                keys.remove(&key);
            }
        }
    }

    /// Registers a claim that waits for permits. The receiver gets the token.
    pub(super) fn add_waiter(&self, id: &LockId) -> oneshot::Receiver<u64> {
        let (sender, token) = oneshot::channel();
        lock(&self.waiters).insert(id.clone(), sender);
        token
    }

    pub(super) fn remove_waiter(&self, id: &LockId) {
        lock(&self.waiters).remove(id);
    }
}

fn lock(waiters: &PermitWaiters) -> MutexGuard<'_, HashMap<LockId, oneshot::Sender<u64>>> {
    waiters.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Receives the notifications of the session.
async fn receive(
    session: Weak<LockSession>,
    waiters: Weak<PermitWaiters>,
    mut notifications: mpsc::UnboundedReceiver<Notification>,
) {
    while let Some(notification) = notifications.recv().await {
        let (Some(session), Some(waiters)) = (session.upgrade(), waiters.upgrade()) else { return };
        match WAKE_FORMAT.parse(notification.payload()) {
            Some(Wake::Granted { lock_id, grant, .. }) => {
                let waiter = lock(&waiters).remove(&lock_id);
                if let Some(waiter) = waiter {
                    // A claim that withdrew meanwhile releases the permits as well.
                    let _ = waiter.send(grant.token.get());
                }
            }
            Some(Wake::Broken { lock_id, .. }) => {
                if let Some(hold) = session.life.remove_hold(&lock_id) {
                    hold.end(LossReason::NotYours);
                }
            }
            _ => tracing::debug!(channel = notification.channel(), "ignored a foreign notification"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_key_takes_32_bytes() {
        assert_eq!(size_of::<(AdvisoryKey, KeyUse)>(), 32);
    }
}
