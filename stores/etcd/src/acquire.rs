//! Acquiring: enter the queue, wait for the predecessor, confirm.

use std::time::Duration;

use distlock_core::store::Claim;
use distlock_core::store::support::errors::{self, capacity_mismatch};
use distlock_core::{CancellationToken, Error, ErrorKind, Kind, Result};

use crate::api::{TxnRequest, TxnResponse};
use crate::entry::{Entered, Entry};
use crate::keys::{KeyRange, Keys};
use crate::queue::{self, Decision, Predecessor};
use crate::session::EtcdSession;
use crate::sessions::Sessions;
use crate::txn::{self, ClaimKey};
use crate::watch::Change;

/// How often a claim is entered anew: under another session, or because the session's key was written meanwhile.
const MAX_ENTERS: u32 = 20;
/// How often a claim finds another capacity before it believes it: a claim that is being withdrawn may be the other one.
const CAPACITY_CHECKS: u32 = 3;
/// How often one attempt at a pool reads a queue that changes all the time.
const MAX_READS: u32 = 100;
/// How often a waiter reads its queue although no event came. Servers before 3.5.18 may lose events when revisions are
/// compacted.
const CHECK_INTERVAL: Duration = Duration::from_secs(15);
/// The pause after a watch that failed.
const WATCH_PAUSE: Duration = Duration::from_millis(20);

/// Acquires. `Ok(None)`: withdrawn, and nothing is left in the queue.
pub(crate) async fn acquire(
    sessions: &Sessions,
    keys: &Keys,
    claim: &Claim,
    withdraw: &CancellationToken,
) -> Result<Option<Entry>> {
    let mut capacity_checks = 0;
    for _ in 0..MAX_ENTERS {
        let session = sessions.get(claim.expiry, claim.cadence).await.map_err(|failure| failure.error)?;
        let mut entry = Entry::new(keys, claim, session);
        if entry.life.ended().is_some() {
            // The session was closed because no claim used it.
            continue;
        }
        let outcome = match (withdraw.is_cancelled(), claim.resource.kind()) {
            (true, Kind::Mutex) => entry.enter_if_unchanged(0).await?,
            (true, _) => match entry.try_pool().await? {
                Some(entered) => entered,
                None => return entry.leave().await.map(|()| None),
            },
            (false, _) => entry.enter().await?,
        };
        let (before, revision) = match outcome {
            Entered::Queued(before, revision) => (before, revision),
            Entered::Refused if withdraw.is_cancelled() => return entry.leave().await.map(|()| None),
            Entered::Refused | Entered::SessionEnded => {
                // Before the same key is entered again: a later deletion would delete that one.
                entry.leave().await?;
                continue;
            }
        };
        if let Some(theirs) = before.as_ref().and_then(|before| entry.other_capacity(before)) {
            entry.leave().await?;
            capacity_checks += 1;
            if capacity_checks == CAPACITY_CHECKS {
                return Err(capacity_mismatch(&claim.resource, theirs, claim.capacity));
            }
            continue;
        }
        return entry.wait(before, revision, withdraw).await;
    }
    Err(errors::unavailable("sessions end as soon as they begin"))
}

impl Entry {
    /// One attempt at a pool: reads, and enters only if that is a grant. `None`: it is not.
    async fn try_pool(&mut self) -> Result<Option<Entered>> {
        for read in 1..=MAX_READS {
            let list = txn::list(&self.claim.queue);
            let found = self.session.client.send(list).await.map_err(|failure| failure.error)?.reply;
            let all: Vec<Predecessor> = found.kvs.iter().map(Predecessor::of).collect();
            if let Some(theirs) = self.other_capacity(&all) {
                if read < CAPACITY_CHECKS {
                    continue;
                }
                return Err(capacity_mismatch(&self.resource, theirs, self.claim.value.capacity));
            }
            let decision =
                queue::decide(self.resource.kind(), self.claim.value.weight, self.claim.value.capacity, &all);
            if decision != Decision::Granted {
                return Ok(None);
            }
            let revision = txn::revision_of(found.header.as_ref())?;
            match self.enter_if_unchanged(revision).await? {
                Entered::Refused => {}
                entered => return Ok(Some(entered)),
            }
        }
        Err(errors::unavailable(format!("the queue changed {MAX_READS} times during one attempt")))
    }

    /// Waits until the claim is granted or withdrawn.
    async fn wait(
        mut self,
        before: Option<Vec<Predecessor>>,
        revision: i64,
        withdraw: &CancellationToken,
    ) -> Result<Option<Entry>> {
        // A claim whose reply was lost may have been seen as a waiter.
        let mut waited = before.is_none();
        let mut state = match before {
            Some(before) => (self.decide(&before), revision),
            None => self.check().await?,
        };
        loop {
            if state.0 == Decision::Granted {
                if waited && self.resource.kind() == Kind::Semaphore {
                    self.mark_granted().await?;
                }
                return self.granted().map(Some);
            }
            if withdraw.is_cancelled() {
                return self.leave().await.map(|()| None);
            }
            waited = true;
            state = tokio::select! {
                biased;
                () = withdraw.cancelled() => return self.leave().await.map(|()| None),
                () = self.life.wait_for_end() => return Err(self.ended()),
                () = self.deadline() => return Err(self.ended()),
                next = self.next_state(state) => next?,
            };
        }
    }

    /// Waits for what blocks the claim, and decides again.
    async fn next_state(&self, (decision, revision): (Decision, i64)) -> Result<(Decision, i64)> {
        let change = wait_for_change(&self.session, &self.claim.queue, decision, revision);
        match tokio::time::timeout(CHECK_INTERVAL, change).await {
            Ok(Some(Decision::Granted)) => Ok((Decision::Granted, revision)),
            _ => self.check().await,
        }
    }

    fn decide(&self, before: &[Predecessor]) -> Decision {
        queue::decide(self.resource.kind(), self.claim.value.weight, self.claim.value.capacity, before)
    }

    /// A linearizable read: that the claim is still ours, and what is in front of it.
    async fn check(&self) -> Result<(Decision, i64)> {
        let request =
            txn::check(&self.claim, &self.session.key, self.revision, self.resource.kind() == Kind::Mutex);
        let mut reply = self.send_until_ended(request).await?;
        if !reply.succeeded {
            return Err(self.vanished());
        }
        let revision = txn::revision_of(reply.header.as_ref())?;
        let before: Vec<Predecessor> = txn::kvs_at(&mut reply, 0)?.iter().map(Predecessor::of).collect();
        Ok((self.decide(&before), revision))
    }

    /// Sends a request that may be repeated. A store that cannot be reached is asked again for as long as the session lives:
    /// our place in the queue lives that long too.
    async fn send_until_ended(&self, request: TxnRequest) -> Result<TxnResponse> {
        loop {
            match self.session.client.send(request.clone()).await {
                Ok(answer) => return Ok(answer.reply),
                Err(failure)
                    if failure.error.can_retry()
                        && self.life.ended().is_none()
                        && self.session.is_alive() =>
                {
                    tokio::time::sleep(WATCH_PAUSE).await;
                }
                Err(failure) => return Err(failure.error),
            }
        }
    }

    /// Writes into the claim's key that it is granted: the waiter behind it watches that key.
    async fn mark_granted(&mut self) -> Result<()> {
        let request = txn::mark_granted(&self.claim, &self.session.key, self.revision);
        let reply = self.send_until_ended(request).await?;
        self.is_marked = true;
        if reply.succeeded { Ok(()) } else { Err(self.vanished()) }
    }

    fn granted(self) -> Result<Entry> {
        let unmarked = (!self.is_marked).then(|| {
            let value = self.claim.value.granted_now();
            (ClaimKey { value, ..self.claim.clone() }, self.revision)
        });
        self.session.mark_held(self.id, unmarked);
        if self.life.ended().is_some() || self.session.clock.now() >= self.life.deadline() {
            return Err(self.ended());
        }
        Ok(self)
    }

    /// Our key is gone although we did not delete it.
    fn vanished(&self) -> Error {
        if self.session.is_alive() && self.life.ended().is_none() {
            return Error::new(
                ErrorKind::Unavailable,
                "its claim was deleted from the queue by another program",
            )
            .advise("acquire again");
        }
        self.ended()
    }

    fn ended(&self) -> Error {
        let reason = self.life.ended().or_else(|| self.session.life.ended()).map(ToString::to_string);
        let reason = reason.unwrap_or_else(|| "its lease could not be renewed in time".to_owned());
        errors::unavailable(format!("the session of the claim ended: {reason}"))
    }

    async fn deadline(&self) {
        loop {
            let left = self.life.deadline().since(self.session.clock.now());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(Duration::from_secs(1))).await;
        }
    }
}

/// Waits for what blocks the claim. `Some(Granted)` if the events alone say that it is granted; otherwise read again.
async fn wait_for_change(
    session: &EtcdSession,
    queue: &KeyRange,
    decision: Decision,
    revision: i64,
) -> Option<Decision> {
    match decision {
        Decision::Granted => return Some(Decision::Granted),
        Decision::WaitFor { key, grants } => {
            let mut events = session.watches.open(&KeyRange::one(key), revision + 1, !grants);
            if events.next().await.is_some() {
                return None;
            }
        }
        Decision::WaitForWeight(mut held) => {
            let mut events = session.watches.open(queue, revision + 1, true);
            while let Some(batch) = events.next().await {
                let deleted = batch.iter().filter(|event| event.what == Change::Deleted);
                let mut granted = false;
                deleted.for_each(|event| granted = held.remove(&event.key));
                if granted {
                    return Some(Decision::Granted);
                }
            }
        }
    }
    // The watch failed. The next read is no hurry, and may fail too.
    tokio::time::sleep(WATCH_PAUSE).await;
    None
}
