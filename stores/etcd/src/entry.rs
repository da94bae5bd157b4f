//! A claim in its queue: entering and leaving, each so that nothing is left when a reply is lost.

use std::sync::Arc;

use distlock_core::store::{Claim, LossReason, Session};
use distlock_core::{Kind, Resource, Result};

use crate::api::{TxnRequest, TxnResponse};
use crate::claims::{ClaimId, Kept};
use crate::client::Answer;
use crate::error::NextStep;
use crate::keys::{ClaimValue, Keys};
use crate::queue::{self, Predecessor};
use crate::session::EtcdSession;
use crate::txn::{self, ClaimKey};

/// A claim that may have a key in its queue. Dropping it deletes the key.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) session: Arc<EtcdSession>,
    pub(crate) life: Session,
    pub(crate) id: ClaimId,
    pub(crate) claim: ClaimKey,
    pub(crate) resource: Resource,
    /// The claims in front of it may have another capacity.
    resizes: bool,
    /// The creation revision of the key; 0 while it is unknown.
    pub(crate) revision: i64,
    /// An enter of it may still be in flight.
    pub(crate) uncertain: bool,
    /// There may be a key.
    pub(crate) armed: bool,
    /// The key says that it is granted.
    pub(crate) is_marked: bool,
    /// It holds, and its session keeps it.
    is_kept: bool,
}

/// What became of an attempt to enter.
pub(crate) enum Entered {
    /// In the queue, behind these. The list is `None` if an earlier attempt had succeeded.
    Queued(Option<Vec<Predecessor>>, i64),
    /// The queue has claims that it was not expected to have.
    Refused,
    /// The session had ended before.
    SessionEnded,
}

impl Entry {
    pub(crate) fn new(keys: &Keys, claim: &Claim, session: Arc<EtcdSession>) -> Self {
        let value = ClaimValue { weight: claim.weight, capacity: claim.capacity, granted_ms: None };
        let key = keys.claim(&claim.resource, &claim.lock_id);
        let id = ClaimId::of(&key);
        Entry {
            life: session.add_claim(id),
            session,
            id,
            claim: ClaimKey { key, value, queue: keys.queue(&claim.resource) },
            resource: claim.resource.clone(),
            resizes: claim.resizes,
            revision: 0,
            uncertain: false,
            armed: false,
            is_marked: false,
            is_kept: false,
        }
    }

    pub(crate) fn other_capacity(&self, before: &[Predecessor]) -> Option<u32> {
        let counted = self.resource.kind() == Kind::Semaphore && !self.resizes;
        counted.then(|| queue::other_capacity(self.claim.value.capacity, before)).flatten()
    }

    /// Enters the queue at its end.
    pub(crate) async fn enter(&mut self) -> Result<Entered> {
        let newest_only = self.resource.kind() == Kind::Mutex;
        let request =
            |entry: &Entry| txn::enter(&entry.claim, &entry.session.key, entry.session.fence(), newest_only);
        match self.send_enter(request).await? {
            (Some(mut reply), revision) => {
                let before = txn::claims_before(&mut reply, revision)?;
                self.is_marked = before.is_empty();
                Ok(Entered::Queued(Some(before.iter().map(Predecessor::of).collect()), revision))
            }
            (None, 0) => Ok(self.not_entered()),
            (None, revision) => Ok(Entered::Queued(None, revision)),
        }
    }

    /// Enters a queue that has no claims newer than this revision; 0 for an empty one.
    pub(crate) async fn enter_if_unchanged(&mut self, since: i64) -> Result<Entered> {
        let request = |entry: &Entry| {
            txn::enter_if_unchanged(&entry.claim, &entry.session.key, entry.session.fence(), since)
        };
        let fence = self.session.fence();
        match self.send_enter(request).await? {
            // Granted in the same step.
            (Some(_), revision) => {
                self.is_marked = true;
                Ok(Entered::Queued(Some(Vec::new()), revision))
            }
            (None, 0) if self.session.is_alive() && self.session.fence() != fence => {
                Ok(Entered::SessionEnded)
            }
            (None, 0) => Ok(self.not_entered()),
            (None, revision) => Ok(Entered::Queued(None, revision)),
        }
    }

    fn not_entered(&self) -> Entered {
        if self.session.life.ended().is_some() { Entered::SessionEnded } else { Entered::Refused }
    }

    /// Sends an enter. Returns the reply and the creation revision if it succeeded; the revision alone if the key was there
    /// already, from an attempt whose reply was lost; 0 otherwise.
    async fn send_enter(
        &mut self,
        request: impl Fn(&Entry) -> TxnRequest,
    ) -> Result<(Option<TxnResponse>, i64)> {
        // From here on there may be a key, also if this future is dropped.
        let was_uncertain = self.uncertain;
        (self.armed, self.uncertain) = (true, true);
        let sent = self.session.client.send(request(self)).await;
        let Answer { mut reply, repeated } = match sent {
            Ok(answer) => answer,
            Err(failure) => {
                self.uncertain = was_uncertain || failure.error.is_outcome_unknown();
                if failure.next == NextStep::LeaseEnded {
                    self.session.end(LossReason::SessionEnded("the server ended the session's lease".into()));
                    self.armed = false;
                    return Ok((None, 0));
                }
                self.armed = self.uncertain;
                return Err(failure.error);
            }
        };
        self.uncertain = was_uncertain || repeated;
        let header_revision = txn::revision_of(reply.header.as_ref())?;
        if reply.succeeded {
            self.revision = header_revision;
            return Ok((Some(reply), header_revision));
        }
        let (own, session) = (txn::kvs_at(&mut reply, 0)?, txn::kvs_at(&mut reply, 1)?);
        self.session.saw_own_key(session.first());
        match own.first() {
            Some(kv) if kv.lease == self.session.key.lease => {
                self.revision = kv.create_revision;
                Ok((None, kv.create_revision))
            }
            _ => {
                self.armed = self.uncertain;
                Ok((None, 0))
            }
        }
    }

    /// Keeps the claim, which holds, with its session.
    pub(crate) fn keep(mut self) {
        self.is_kept = true;
        self.session.keep_claim(self.id, Kept { revision: self.revision, uncertain: self.uncertain });
    }

    /// Deletes the key and waits until the server has confirmed. If it fails, the session deletes it later.
    pub(crate) async fn leave(mut self) -> Result<()> {
        if !self.armed {
            return Ok(());
        }
        self.session.remove_claim(self.id);
        let deleted = self.session.delete_claim(&self.claim.key, self.revision, self.uncertain).await;
        match deleted {
            Ok(()) => {
                self.armed = false;
                Ok(())
            }
            Err(failure) => Err(failure.error),
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        self.session.remove_claim(self.id);
        if self.armed {
            self.session.delete_later(self.claim.key.clone(), self.revision, self.uncertain);
        }
    }
}
