//! A session: an etcd lease that we keep alive, and the claims that live with it.
//!
//! Claims of one store with the same time-to-live share a session, up to a number. The session has a key of its own, with three uses:
//! - its deletion says at once that the server ended the lease;
//! - a forced release writes the broken claim's key into it, so that the holder learns of it at once;
//! - each claim enters its queue on the condition that the session's key was not written since. So writing it makes sure that
//!   an enter whose reply was lost, and which may still be in flight, has no effect any more.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use distlock_core::store::{LossReason, Session};
use distlock_core::{CancellationToken, Clock, Moment, Result};
use tokio::runtime::Handle;

use crate::api::{KeyValue, LeaseGrantRequest, LeaseRevokeRequest};
use crate::claims::{ClaimId, Claims, Kept, Unmarked};
use crate::client::Client;
use crate::error::{Failure, NextStep};
use crate::keep_alive;
use crate::keys::{KeyRange, Keys};
use crate::txn::{self, SessionKey};
use crate::watch::{Change, Watches};

/// The pauses between attempts to delete a claim that could not be deleted.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// How many claims share a session. Each renewal reads all keys of the lease, and a reply with a hundred thousand of them would
/// take more memory than the holds. So many fill their hash table.
const MOST_CLAIMS: usize = 7168;
/// How long the end of a store waits for the end of its leases.
const REVOKE_LIMIT: Duration = Duration::from_secs(2);

/// Until when a lease is certainly ours, if the request that the server answered was sent at `sent`: less one per cent for
/// clocks that run at different speeds, and two milliseconds for clocks that count in milliseconds.
pub(crate) fn local_deadline(sent: Moment, ttl: Duration) -> Moment {
    sent.after(ttl.saturating_sub(ttl / 100 + Duration::from_millis(2)))
}

/// One lease.
#[derive(Debug)]
pub(crate) struct EtcdSession {
    pub(crate) key: SessionKey,
    /// As the server granted it.
    pub(crate) ttl: Duration,
    /// As it was asked for.
    pub(crate) wanted_seconds: i64,
    /// The life of the lease as far as we know.
    pub(crate) life: Session,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) client: Client,
    pub(crate) watches: Watches,
    /// The shortest cadence that a claim asked for, in nanoseconds.
    cadence: AtomicU64,
    /// The revision at which the session's key was written last.
    fence: AtomicI64,
    claims: Mutex<Claims>,
    /// When a claim entered or left last.
    last_used: AtomicU64,
    /// The store is being dropped.
    closing: CancellationToken,
    runtime: Handle,
}

impl EtcdSession {
    /// Grants a lease and keeps it alive until the session ends or `closing` is cancelled.
    pub(crate) async fn begin(
        keys: &Keys,
        client: &Client,
        watches: &Watches,
        clock: Arc<dyn Clock>,
        ttl_seconds: i64,
        closing: CancellationToken,
    ) -> Result<Arc<Self>, Failure> {
        // A lease whose reply is lost ends by itself.
        let sent = clock.now();
        let granted = client.send(LeaseGrantRequest { ttl: ttl_seconds, id: 0 }).await?;
        // If the request was repeated, the lease is that of the last attempt, which was sent later than this.
        let ttl = Duration::from_secs(u64::try_from(granted.reply.ttl).unwrap_or(0));
        let key = SessionKey { key: keys.session(granted.reply.id), lease: granted.reply.id };
        let begun = match client.send(txn::begin_session(&key)).await {
            Ok(begun) => begun,
            Err(failure) => {
                let (client, lease) = (client.clone(), key.lease);
                tokio::spawn(async move { client.send(LeaseRevokeRequest { id: lease }).await });
                return Err(failure);
            }
        };
        let fence = txn::revision_of(begun.reply.header.as_ref()).map_err(Failure::fatal)?;
        let session = Arc::new(EtcdSession {
            key,
            ttl,
            wanted_seconds: ttl_seconds,
            life: Session::until(local_deadline(sent, ttl)),
            last_used: AtomicU64::new(clock.now().as_nanos()),
            clock,
            client: client.clone(),
            watches: watches.clone(),
            cadence: AtomicU64::new(u64::try_from((ttl / 3).as_nanos()).unwrap_or(u64::MAX)),
            fence: AtomicI64::new(fence),
            claims: Mutex::default(),
            closing,
            runtime: Handle::current(),
        });
        tokio::spawn(keep_alive::run(Arc::clone(&session), sent));
        tokio::spawn(watch_own_key(Arc::clone(&session), fence));
        Ok(session)
    }

    /// Whether new claims may use it.
    pub(crate) fn is_alive(&self) -> bool {
        self.life.ended().is_none() && self.clock.now() < self.life.deadline()
    }

    /// Whether it takes more claims. One that was full before takes them again when half of its claims are gone.
    pub(crate) fn has_room(&self, was_full: bool) -> bool {
        let most = if was_full { MOST_CLAIMS / 2 } else { MOST_CLAIMS };
        self.claims().len() < most
    }

    pub(crate) fn has_claims(&self) -> bool {
        self.claims().len() > 0
    }

    pub(crate) fn closing(&self) -> &CancellationToken {
        &self.closing
    }

    /// Renews at least this often from now on.
    pub(crate) fn renew_every(&self, cadence: Duration) {
        let nanos = u64::try_from(cadence.as_nanos()).unwrap_or(u64::MAX);
        self.cadence.fetch_min(nanos, Ordering::SeqCst);
    }

    pub(crate) fn cadence(&self) -> Duration {
        Duration::from_nanos(self.cadence.load(Ordering::SeqCst))
    }

    /// The revision at which the session's key was written last, as far as we know.
    pub(crate) fn fence(&self) -> i64 {
        self.fence.load(Ordering::SeqCst)
    }

    /// Takes note of the session's key as a transaction read it.
    pub(crate) fn saw_own_key(&self, found: Option<&KeyValue>) {
        match found.filter(|kv| kv.lease == self.key.lease) {
            Some(kv) => {
                self.fence.fetch_max(kv.mod_revision, Ordering::SeqCst);
            }
            None => self.end(LossReason::SessionEnded("the server ended the session's lease".into())),
        }
    }

    /// Adds a claim before its first request is sent, so that a forced release finds it from the beginning.
    pub(crate) fn add_claim(&self, id: ClaimId) -> Session {
        let life = Session::until(self.life.deadline());
        let mut claims = self.claims();
        if let Some(reason) = self.life.ended() {
            life.end(reason.clone());
        }
        claims.add(id, life.clone());
        life
    }

    /// Marks a claim as held. From now on its deadline moves with that of the session.
    pub(crate) fn mark_held(&self, id: ClaimId, unmarked: Option<Unmarked>) {
        self.claims().granted(id, self.life.deadline(), unmarked);
    }

    /// Keeps what is needed to release a claim that holds.
    pub(crate) fn keep_claim(&self, id: ClaimId, kept: Kept) {
        self.claims().keep(id, kept);
    }

    pub(crate) fn remove_claim(&self, id: ClaimId) {
        self.was_used();
        self.claims().remove(id);
    }

    /// Removes a claim that was kept, to be deleted by the caller. `None` if it is not one of this session.
    pub(crate) fn take_claim(&self, id: ClaimId) -> Option<Kept> {
        let mut claims = self.claims();
        let kept = claims.take(id)?;
        self.was_used();
        Some(kept)
    }

    fn was_used(&self) {
        self.last_used.store(self.clock.now().as_nanos(), Ordering::SeqCst);
    }

    fn claims(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a check of the holders' keys.
    pub(crate) fn begin_check(&self) -> u32 {
        self.claims().begin_check()
    }

    /// Ends a check that found these keys: holders without a key are lost.
    pub(crate) fn end_check(&self, round: u32, keys: &[impl AsRef<[u8]>]) {
        let found: Vec<ClaimId> = keys.iter().map(|key| ClaimId::of(key.as_ref())).collect();
        let gone = self.claims().end_check(round, found);
        for life in gone {
            life.end(LossReason::NotYours);
        }
    }

    /// Writes into the keys of holders that had to wait since when they hold, for operators. Short holds are not worth the
    /// request, so this happens at renewals.
    pub(crate) async fn mark_holders(&self) {
        let unmarked = self.claims().take_unmarked();
        for (claim, revision) in unmarked {
            // A mark that is lost is missed by nothing but `inspect`.
            let _ = self.client.send(txn::mark_granted(&claim, &self.key, revision)).await;
        }
    }

    /// Ends one claim: its key is gone although the session lives.
    fn lose_claim(&self, id: ClaimId) {
        let life = self.claims().life(id);
        if let Some(life) = life {
            life.end(LossReason::NotYours);
        }
    }

    /// Ends the session if no claim has used it for this long. A claim that comes meanwhile either keeps it alive or finds it
    /// ended.
    pub(crate) fn end_if_idle(&self, idle: Duration) -> bool {
        let claims = self.claims();
        let last_used = Moment::from_nanos(self.last_used.load(Ordering::SeqCst));
        let is_idle = claims.len() == 0 && self.clock.now().since(last_used) >= idle;
        if is_idle {
            self.life.end(LossReason::ShutDown);
        }
        is_idle
    }

    /// A renewal was confirmed: moves the deadline of the session and of its holders.
    pub(crate) fn keep_until(&self, deadline: Moment) {
        let claims = self.claims();
        self.life.keep_until(deadline);
        claims.lives().for_each(|life| life.keep_until(deadline));
    }

    /// Ends the session and all its claims.
    pub(crate) fn end(&self, reason: LossReason) {
        self.life.end(reason.clone());
        let lives: Vec<Session> = self.claims().lives().cloned().collect();
        for life in lives {
            life.end(reason.clone());
        }
    }

    /// Ends the lease on the server, and with it every key that is left.
    pub(crate) async fn revoke(&self) {
        let revoke = self.client.send(LeaseRevokeRequest { id: self.key.lease });
        let _ = tokio::time::timeout(REVOKE_LIMIT, revoke).await;
    }

    /// Deletes a claim's key. `revision` is its creation revision, 0 if it is unknown; `fenced` if an enter of it may still be
    /// in flight.
    pub(crate) async fn delete_claim(&self, key: &[u8], revision: i64, fenced: bool) -> Result<(), Failure> {
        if !fenced && revision > 0 {
            return self.client.send(txn::leave(key, revision)).await.map(drop);
        }
        match self.client.send(txn::leave_and_fence(key, &self.key)).await {
            Ok(answer) => {
                if let Some(header) = &answer.reply.header {
                    self.fence.fetch_max(header.revision, Ordering::SeqCst);
                }
                Ok(())
            }
            // The key ended with the lease, and no enter with this lease can succeed any more.
            Err(failure) if failure.next == NextStep::LeaseEnded => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// Deletes a claim's key in the background, until it succeeds or the lease has ended.
    pub(crate) fn delete_later(self: &Arc<Self>, key: Vec<u8>, revision: i64, fenced: bool) {
        let session = Arc::clone(self);
        self.runtime.spawn(async move {
            let mut pause = FIRST_PAUSE;
            loop {
                match session.delete_claim(&key, revision, fenced).await {
                    Ok(()) => return,
                    Err(failure) => tracing::debug!(error = %failure.error, "a claim could not be deleted"),
                }
                if !session.is_alive() {
                    // Without renewal the server ends the lease, and the key with it.
                    return;
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LAST_PAUSE);
            }
        });
    }
}

/// Watches the session's key: its deletion ends the session, a name in it ends a claim.
async fn watch_own_key(session: Arc<EtcdSession>, mut from: i64) {
    let key = KeyRange::one(session.key.key.clone());
    loop {
        let mut events = session.watches.open(&key, from + 1, false);
        loop {
            let batch = tokio::select! {
                () = session.life.wait_for_end() => return,
                batch = events.next() => batch,
            };
            let Some(batch) = batch else { break };
            for event in batch {
                match event.what {
                    Change::Deleted => {
                        return session
                            .end(LossReason::SessionEnded("the server ended the session's lease".into()));
                    }
                    Change::Written(broken) if broken.is_empty() => {}
                    Change::Written(broken) => session.lose_claim(ClaimId::of(&broken)),
                }
            }
        }
        // The stream ended: read the key again. Broken claims of the meantime are found by the next renewal.
        match read_own_key(&session).await {
            Ok(revision) => from = revision,
            Err(()) => tokio::select! {
                () = session.life.wait_for_end() => return,
                () = tokio::time::sleep(FIRST_PAUSE) => {}
            },
        }
    }
}

async fn read_own_key(session: &EtcdSession) -> Result<i64, ()> {
    let found = session.client.send(txn::get(&session.key.key)).await.map_err(|_| ())?.reply;
    session.saw_own_key(found.kvs.first());
    txn::revision_of(found.header.as_ref()).map_err(|_| ())
}
