//! The session that all claims share: it holds every lock that is granted at once, and receives grants of permits.

use std::collections::HashMap;
use std::hash::Hash;
use std::num::NonZeroU64;
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
    keys: Mutex<Keys>,
    ids: CompactLockIds,
    pub(super) rows: Arc<HolderRows>,
    waiters: Arc<PermitWaiters>,
}

/// The keys that this session uses. The server grants a session a lock again that it holds, so uses are counted here.
#[derive(Debug, Default)]
struct Keys {
    /// Granted in a batch, with the number of the claim's lock id. A process may hold a hundred thousand of them, so their size matters.
    batched: HashMap<i64, NonZeroU64>,
    /// All others: requested, being released, pairs, and claims of another engine.
    others: HashMap<AdvisoryKey, KeyUse>,
}

impl Keys {
    /// The number of the lock id of the claim that was granted this key in a batch.
    fn number_of(&self, key: AdvisoryKey) -> Option<NonZeroU64> {
        match key {
            AdvisoryKey::One(number) => self.batched.get(&number).copied(),
            AdvisoryKey::Pair(..) => None,
        }
    }

    fn granted_in_batch(&mut self, key: AdvisoryKey, claim: CompactLockId) {
        match (key, claim) {
            (AdvisoryKey::One(one), CompactLockId::Number(number)) => {
                self.others.remove(&key);
                self.batched.insert(one, number);
            }
            (key, claim) => drop(self.others.insert(key, KeyUse::Batched(claim))),
        }
    }

    fn is_batched(&self, key: AdvisoryKey, claim: &CompactLockId) -> bool {
        match (self.number_of(key), claim) {
            (Some(held), CompactLockId::Number(number)) => held == *number,
            (Some(_), CompactLockId::Text(_)) => false,
            (None, claim) => {
                matches!(self.others.get(&key), Some(KeyUse::Batched(held)) if held == claim)
            }
        }
    }

    /// The claim is being released. Its key stays reserved.
    fn begin_release(&mut self, key: AdvisoryKey) {
        if let AdvisoryKey::One(number) = key {
            self.batched.remove(&number);
        }
        self.others.insert(key, KeyUse::Exclusive);
    }

    /// A burst of holds leaves no room behind it.
    fn shrink(&mut self) {
        shrink(&mut self.batched);
        shrink(&mut self.others);
    }
}

fn shrink<K: Eq + Hash, V>(map: &mut HashMap<K, V>) {
    if map.len() < map.capacity() / 8 && map.capacity() > LEAST_KEYS {
        map.shrink_to(map.len().max(LEAST_KEYS));
    }
}

/// How this session uses a key.
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

    fn keys(&self) -> MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves a key before the request for it is sent.
    pub(super) fn reserve(&self, key: AdvisoryKey, shared: bool) -> Reservation {
        let mut keys = self.keys();
        if keys.number_of(key).is_some() {
            return Reservation::Excluded;
        }
        match keys.others.get_mut(&key) {
            None => {
                let shared_use = KeyUse::Shared { claims: 1, is_confirmed: false };
                keys.others.insert(key, if shared { shared_use } else { KeyUse::Requested });
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
        match self.keys().others.get_mut(&key) {
            Some(requested @ KeyUse::Requested) => *requested = KeyUse::Exclusive,
            Some(KeyUse::Shared { is_confirmed, .. }) => *is_confirmed = true,
            _ => {}
        }
    }

    /// Whether the server has granted the key to this session.
    pub(super) fn is_confirmed(&self, key: AdvisoryKey) -> bool {
        let keys = self.keys();
        match keys.others.get(&key) {
            Some(KeyUse::Exclusive | KeyUse::Batched(_)) => true,
            Some(KeyUse::Shared { is_confirmed, .. }) => *is_confirmed,
            Some(KeyUse::Requested) => false,
            None => keys.number_of(key).is_some(),
        }
    }

    /// The server granted reserved keys to these claims of a batch.
    pub(super) fn granted_in_batch<'a>(&self, grants: impl Iterator<Item = (AdvisoryKey, &'a LockId)>) {
        let mut keys = self.keys();
        for (key, id) in grants {
            keys.granted_in_batch(key, self.ids.of(id));
        }
    }

    /// Whether the claim was granted the key in a batch, and is not being released.
    pub(super) fn is_batched(&self, key: AdvisoryKey, id: &LockId) -> bool {
        self.keys().is_batched(key, &self.ids.of(id))
    }

    /// Of these keys, those that the claims were granted in a batch. They are now being released, and not released again by another
    /// call. They stay reserved.
    pub(super) fn begin_releases<'a>(
        &self,
        leases: impl Iterator<Item = (AdvisoryKey, &'a LockId)>,
    ) -> Vec<(AdvisoryKey, &'a LockId)> {
        let mut keys = self.keys();
        let begins = |(key, id): &(AdvisoryKey, &LockId)| {
            let is_held = keys.is_batched(*key, &self.ids.of(id));
            if is_held {
                keys.begin_release(*key);
            }
            is_held
        };
        leases.filter(begins).collect()
    }

    /// These keys were released, or not granted.
    pub(super) fn unreserve_all(&self, unused: impl Iterator<Item = AdvisoryKey>) {
        let mut keys = self.keys();
        for key in unused {
            keys.others.remove(&key);
        }
        keys.shrink();
    }

    /// A key was released, or not granted.
    pub(super) fn unreserve(&self, key: AdvisoryKey) {
        let keys = &mut self.keys().others;
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

    const KEYS: [AdvisoryKey; 3] =
        [AdvisoryKey::One(1), AdvisoryKey::One((7 << 32) | 9), AdvisoryKey::Pair(7, 9)];

    fn claims() -> [CompactLockId; 3] {
        let text = |text: &str| CompactLockId::Text(Box::new(LockId::from_stored(text)));
        [CompactLockId::Number(NonZeroU64::MIN), text("another engine's"), text("a third one's")]
    }

    #[test]
    fn a_key_is_released_only_by_the_claim_that_holds_it() {
        for key in KEYS {
            for held in claims() {
                let mut keys = Keys::default();
                keys.others.insert(key, KeyUse::Requested);
                assert!(claims().iter().all(|claim| !keys.is_batched(key, claim)), "not granted yet");
                keys.granted_in_batch(key, held.clone());
                for other in KEYS {
                    for claim in claims() {
                        let expected = other == key && claim == held;
                        assert_eq!(keys.is_batched(other, &claim), expected, "{other:?} {claim:?}");
                    }
                }
                keys.begin_release(key);
                assert!(claims().iter().all(|claim| !keys.is_batched(key, claim)), "released twice");
                assert!(matches!(keys.others.get(&key), Some(KeyUse::Exclusive)), "it stays reserved");
                keys.others.remove(&key);
                assert!(keys.batched.is_empty() && keys.others.is_empty());
            }
        }
    }

    #[test]
    fn a_burst_of_holds_leaves_no_room_behind_it() {
        let mut keys = Keys::default();
        let number = |n: u64| CompactLockId::Number(NonZeroU64::new(n).unwrap());
        for n in 1..100_000 {
            keys.granted_in_batch(AdvisoryKey::One(n), number(n.unsigned_abs()));
        }
        for n in 10..100_000 {
            keys.begin_release(AdvisoryKey::One(n));
        }
        (10..100_000).for_each(|n| drop(keys.others.remove(&AdvisoryKey::One(n))));
        keys.shrink();
        assert!(keys.batched.capacity() <= 4 * LEAST_KEYS && keys.others.capacity() <= 4 * LEAST_KEYS);
        assert!(keys.is_batched(AdvisoryKey::One(9), &number(9)));
    }

    #[test]
    fn a_held_key_takes_16_bytes() {
        assert_eq!(size_of::<(i64, NonZeroU64)>(), 16);
    }
}
