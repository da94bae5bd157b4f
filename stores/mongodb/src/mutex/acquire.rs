//! Acquiring a mutex, from the claims of a batch to their answers.
//!
//! A single claim is one `findAndModify`; many are one `update` and one read that shows who won. A claim that waits and
//! finds the lock held registers in the wait queue and tries once more, which announces it to the holder. Where other
//! clients were seen a moment ago it registers first, and tries the lock only if it is at the head of the queue.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::store::support::batch::{all_failed, chunks_by_key};
use distlock_core::store::{Attempt, Batch, Claim, Waiting};
use distlock_core::{LockId, Result};
use futures_util::future::{join, join_all};
use mongodb::bson::Document;

use super::wait_queue;
use crate::batch;
use crate::commands::{
    DocumentUpdate, Durability, Image, MULTI_UPDATE_SIZE, MultiUpdate, Namespace, NewDocument, Snapshot,
};
use crate::documents::{LockDocument, WaitQueueDocument, date_ms, poll_interval, token, whole_ms};
use crate::error;
use crate::pipelines::{self, LockClaim};
use crate::state::StoreState;
use crate::waiter_cache::{AnsweredAttempt, WaiterState};

/// A waiter behind others tries the lock after this long for each of them: by then it was handed the lock, or one of them
/// holds it for longer, and only the lock document says until when.
const TRY_AFTER_EACH: Duration = Duration::from_millis(50);
const TRY_AFTER_AT_MOST: Duration = Duration::from_secs(1);
/// The age of the tombstone that a batch creates for a new name: older than any request, so that no release of another client
/// is taken for the one that left it.
const NEW_DOCUMENT_AGE_MS: i64 = 60_000;
/// Other programs release by deleting the document and wake no waiter: poll this often, at random in between.
const FOREIGN_POLL: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(200));

/// One answer per claim.
pub(crate) async fn try_acquire(state: &Arc<StoreState>, claims: Vec<&Claim>) -> Batch<Attempt> {
    let (queued, direct) = batch::partition(&claims, |claim| registers_first(state, claim));
    let in_queue = batch::pick(&claims, &queued);
    let in_queue = join_all(in_queue.into_iter().map(|claim| wait(state, claim)));
    let at_once = acquire_directly(state, batch::pick(&claims, &direct));
    let (in_queue, at_once) = join(in_queue, at_once).await;
    let answers = batch::merge((queued, in_queue), (direct, at_once)).into_iter().zip(claims);
    Ok(answers.map(|(answer, claim)| answer.map_err(|error| error.about(&claim.resource))).collect())
}

fn registers_first(state: &StoreState, claim: &Claim) -> bool {
    claim.waiting.is_some()
        && state.has_wait_queues()
        && (claim.no_overtaking
            || matches!(
                state.waiters.state(&claim.lock_id),
                Some(WaiterState::Waiting | WaiterState::Holding)
            )
            || state.waiters.is_contended(claim.resource.name()))
}

/// Tries the lock documents. A claim that waits and found its lock held joins the wait queue.
async fn acquire_directly(state: &Arc<StoreState>, claims: Vec<&Claim>) -> Vec<Result<Attempt>> {
    let decisions = match claims.as_slice() {
        [] => Vec::new(),
        [claim] => vec![try_lock(state, claim, None).await],
        _ => try_locks(state, &claims).await,
    };
    join_all(decisions.into_iter().zip(claims).map(|(decision, claim)| async move {
        match decision? {
            decision if decision.is_ours(claim) => Ok(decision.granted()),
            _ if claim.waiting.is_some() && state.has_wait_queues() => wait(state, claim).await,
            decision => Ok(decision.busy(state)),
        }
    }))
    .await
}

/// The lock document after an attempt, and the server's clock then.
struct Decision {
    lock: LockDocument,
    now: Option<i64>,
}

impl Decision {
    fn is_ours(&self, claim: &Claim) -> bool {
        self.lock.lock_id == claim.lock_id
    }

    /// No lock id holds it.
    fn is_free(&self) -> bool {
        match self.now {
            Some(now) => self.lock.time_left(now).is_none(),
            None => self.lock.expires_at.is_none(),
        }
    }

    fn granted(&self) -> Attempt {
        Attempt::granted(token(self.lock.token))
    }

    /// Held by another lock id, and when to try again.
    fn busy(&self, state: &StoreState) -> Attempt {
        let now = self.now.or_else(|| state.clock.estimate());
        let left = now.and_then(|now| self.lock.time_left(now));
        let sooner = if is_foreign(&self.lock.lock_id) {
            Some(FOREIGN_POLL.0 + (FOREIGN_POLL.1 - FOREIGN_POLL.0).mul_f64(fastrand::f64()))
        } else if state.has_wait_queues() {
            None
        } else {
            self.lock.acquired_at.zip(self.now).map(|(since, now)| poll_interval(since, now))
        };
        Attempt::busy(left.into_iter().chain(sooner).min())
    }
}

/// A lock id of another program: ours have a label and a `#`.
fn is_foreign(lock_id: &LockId) -> bool {
    !lock_id.as_str().contains('#')
}

/// One attempt on the lock document. `announce` is for a waiter: see [`LockClaim::announce`].
async fn try_lock(state: &Arc<StoreState>, claim: &Claim, announce: Option<i64>) -> Result<Decision> {
    let lock_claim = LockClaim {
        lock_id: claim.lock_id.as_str(),
        expiry_ms: whole_ms(claim.expiry),
        lowest_token: state.clock.lowest_token(),
        announce,
    };
    let update = DocumentUpdate {
        id: claim.resource.name().to_owned(),
        filter: Document::new(),
        pipeline: pipelines::lock_acquire(lock_claim),
        upsert: true,
    };
    // The first attempt does without the server's clock, which would make it more expensive. A waiter's later attempts
    // need it, and so do waiters that poll.
    let found = if announce.is_none() && state.has_wait_queues() {
        let document = state.commands.modify_lock(&update).await.map_err(|failure| failure.error)?;
        document.map(|document| Snapshot { now: grant_time(claim, &document), document })
    } else {
        let (image, durability) = (Image::After, Durability::Majority);
        state.commands.find_and_modify(Namespace::Locks, &update, image, durability).await?
    };
    let found = found.ok_or_else(|| error::unexpected_reply("an upsert without a document"))?;
    read_decision(state, claim, &found).await
}

/// The server's clock when it decided on a claim that holds the lock: every grant lasts its expiry from then on.
fn grant_time(claim: &Claim, document: &Document) -> Option<i64> {
    let is_ours = document.get_str("lockId").is_ok_and(|id| id == claim.lock_id.as_str());
    let until = date_ms(document, "expiresAt").filter(|_| is_ours)?;
    Some(until.saturating_sub(whole_ms(claim.expiry)))
}

async fn read_decision(state: &Arc<StoreState>, claim: &Claim, found: &Snapshot) -> Result<Decision> {
    let collection = state.commands.collection(Namespace::Locks);
    let lock = LockDocument::read_countable(&found.document, collection)?;
    if lock.lock_id == claim.lock_id {
        state.observe_grant(lock.token, found.now).await?;
    } else {
        state.observe_clock(found.now);
    }
    Ok(Decision { lock, now: found.now })
}

/// One attempt on each of many lock documents: an update of all of them, and a read that shows who won. If a name occurs
/// twice, the update is for the first of its claims, and the other finds the lock held.
async fn try_locks(state: &Arc<StoreState>, claims: &[&Claim]) -> Vec<Result<Decision>> {
    let names: Vec<&str> = claims.iter().map(|claim| claim.resource.name()).collect();
    let released_at = state.clock.estimate().unwrap_or_default().saturating_sub(NEW_DOCUMENT_AGE_MS).max(0);
    let new = names
        .iter()
        .filter(|name| !state.documents.contains(name))
        .map(|name| NewDocument { id: (*name).to_owned(), fields: pipelines::new_lock(released_at) });
    let chunks = chunks_by_key(claims, MULTI_UPDATE_SIZE, |claim| claim.expiry);
    let updates = chunks.iter().map(|indices| multi_update(state, &batch::pick(claims, indices)));
    let found = async {
        let outcome = state.commands.update_many(Namespace::Locks, new.collect(), updates.collect()).await?;
        let found = state.commands.read(Namespace::Locks, &names, outcome.time).await;
        // The update is applied, whether or not its result can be read.
        Ok((outcome, found.map_err(|error| error.with_unknown_outcome())?))
    };
    let (outcome, found) = match found.await {
        Ok(found) => found,
        Err(error) => return all_failed(&error, claims.len()),
    };
    state.documents.insert(found.keys().map(String::as_str));
    let failed: HashSet<usize> = outcome.failed.keys().flat_map(|index| &chunks[*index]).copied().collect();
    join_all(claims.iter().enumerate().map(|(index, claim)| {
        let found = found.get(claim.resource.name()).filter(|_| !failed.contains(&index));
        async move {
            if let Some(found) = found {
                let decision = read_decision(state, claim, found).await?;
                if !decision.is_free() {
                    return Ok(decision);
                }
            }
            // Another document of its update failed, its own was deleted, or it is free by now: try it alone.
            try_lock(state, claim, None).await
        }
    }))
    .await
}

fn multi_update(state: &StoreState, claims: &[&Claim]) -> MultiUpdate {
    let names: Vec<&str> = claims.iter().map(|claim| claim.resource.name()).collect();
    let lock_ids: Vec<&str> = claims.iter().map(|claim| claim.lock_id.as_str()).collect();
    let expiry = claims.first().map(|claim| whole_ms(claim.expiry)).unwrap_or_default();
    MultiUpdate {
        ids: names.iter().map(|name| (*name).to_owned()).collect(),
        filter: Document::new(),
        pipeline: pipelines::lock_acquire_each(&names, &lock_ids, expiry, state.clock.lowest_token()),
    }
}

/// An attempt of a waiter: registers in the wait queue or renews its entry, then tries the lock unless other waiters are
/// before it.
async fn wait(state: &Arc<StoreState>, claim: &Claim) -> Result<Attempt> {
    let Some(waiting) = &claim.waiting else { return Ok(Attempt::busy(None)) };
    let (name, lock_id, waiters) = (claim.resource.name(), &claim.lock_id, &state.waiters);
    let answered = |at| AnsweredAttempt { attempt: waiting.attempt, at };
    let was = waiters.state(lock_id);
    if was == Some(WaiterState::Holding) {
        // The lock was handed to it, and the wake-up has not arrived or arrived too late.
        let decision = try_lock(state, claim, None).await?;
        if decision.is_ours(claim) {
            waiters.set_found_handoff(lock_id, &decision.lock);
            return Ok(decision.granted());
        }
        waiters.set_busy(lock_id, decision.lock.token);
    }
    let is_new = was != Some(WaiterState::Waiting);
    let mut registered_at = None;
    if is_new || waiters.needs_registration(lock_id) {
        let queue = register(state, claim, waiting).await?;
        let position = queue.position(lock_id);
        registered_at = position.map(|position| queue.queue[position].decided_at);
        let ahead = u32::try_from(position.unwrap_or_default()).unwrap_or(u32::MAX);
        waiters.set_ahead(lock_id, ahead);
        if is_new && ahead > 0 {
            waiters.set_answered(lock_id, answered(registered_at));
            waiters.set_contended(name);
            return Ok(Attempt::busy(TRY_AFTER_EACH.saturating_mul(ahead).min(TRY_AFTER_AT_MOST)));
        }
    }
    let decision = try_lock(state, claim, Some(waiters.seen_token(lock_id))).await?;
    if decision.is_ours(claim) {
        waiters.set_granted(lock_id, &decision.lock);
        return Ok(decision.granted());
    }
    waiters.set_contended(name);
    waiters.set_busy(lock_id, decision.lock.token);
    waiters.set_answered(lock_id, answered(decision.now.or(registered_at)));
    Ok(decision.busy(state))
}

/// The wait queue after the registration; empty if the server refuses us the wait queues.
async fn register(state: &Arc<StoreState>, claim: &Claim, waiting: &Waiting) -> Result<WaitQueueDocument> {
    state.waiters.start_waiting(&claim.lock_id, claim.resource.name());
    match wait_queue::register(state, claim, waiting).await {
        Err(error) if !error.can_retry() => {
            state.refuse_wait_queues(&error);
            state.waiters.forget(&claim.lock_id);
            Ok(WaitQueueDocument::default())
        }
        registered => registered,
    }
}
