//! Releasing mutexes, and handing them off to the next waiter. The module's documentation has the design.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use distlock_core::store::support::batch::{all_failed, chunks_by_key};
use distlock_core::store::{Batch, GRANT_WINDOW, Lease, Released};
use distlock_core::{LockId, Result};
use futures_util::future::{join, join_all};
use mongodb::bson::{Document, doc};

use super::{is_held_by_any, read, update_held, wait_queue};
use crate::batch;
use crate::commands::{DocumentUpdate, Durability, MULTI_UPDATE_SIZE, MultiUpdate, Namespace, Snapshot};
use crate::documents::{LockDocument, stored_token, whole_ms};
use crate::error;
use crate::pipelines::{self, CONVERSION_FAILURE, MergeHandoff};
use crate::state::StoreState;
use crate::waiter_cache::WaiterState;

/// One answer per lease.
pub(crate) async fn release(state: &Arc<StoreState>, leases: Vec<&Lease>) -> Batch<Released> {
    let (queued, direct) = batch::partition(&leases, |lease| state.waiters.state(&lease.lock_id).is_some());
    let in_queue = batch::pick(&leases, &queued);
    let in_queue = join_all(in_queue.into_iter().map(|lease| leave_queue(state, lease)));
    let at_once = release_directly(state, batch::pick(&leases, &direct));
    let (in_queue, at_once) = join(in_queue, at_once).await;
    let answers = batch::merge((queued, in_queue), (direct, at_once)).into_iter().zip(leases);
    Ok(answers.map(|(answer, lease)| answer.map_err(|error| error.about(&lease.resource))).collect())
}

/// Releases a lock id that is in the wait queue, as holder or as waiter. One that has left leaves again: an attempt that was
/// in flight meanwhile may have brought it back.
async fn leave_queue(state: &Arc<StoreState>, lease: &Lease) -> Result<Released> {
    let (name, lock_id) = (lease.resource.name(), &lease.lock_id);
    let was = state.waiters.leave(lock_id);
    let left = match was {
        Some(WaiterState::Holding) => {
            if state.waiters.overtook(lock_id) {
                keep_overtaken(state, name, lock_id).await;
            }
            hand_off(state, name, lock_id, stored_token(lease.token)).await
        }
        _ => withdraw(state, lease).await,
    };
    if let (Err(_), Some(was)) = (&left, was) {
        state.waiters.restore(lock_id, was);
    }
    left
}

/// A handoff ends the entries before the holder's own, because their waiters are done. If the holder overtook waiters, its
/// own entry is removed instead, and the handoff begins at the head. Entries of lock ids that are done are passed on by
/// their process.
async fn keep_overtaken(state: &Arc<StoreState>, name: &str, lock_id: &LockId) {
    if let Err(error) = wait_queue::withdraw(state, name, lock_id).await {
        tracing::debug!(%error, "waiters that were overtaken poll");
    }
}

async fn withdraw(state: &Arc<StoreState>, lease: &Lease) -> Result<Released> {
    let was_waiting = match wait_queue::withdraw(state, lease.resource.name(), &lease.lock_id).await {
        Err(error) if !error.can_retry() => {
            // There is no wait queue any more; the lock itself may still be ours.
            state.refuse_wait_queues(&error);
            false
        }
        withdrawn => withdrawn?,
    };
    // The lock may have been handed to it just before.
    match release_one(state, lease).await? {
        Released::NotYours if was_waiting => Ok(Released::Done { woke: false }),
        released => Ok(released),
    }
}

async fn release_directly(state: &Arc<StoreState>, leases: Vec<&Lease>) -> Vec<Result<Released>> {
    if let [lease] = leases.as_slice() {
        return vec![release_alone(state, lease).await];
    }
    // A document cannot show which of two leases of one name was ours.
    let mut count: HashMap<&str, usize> = HashMap::with_capacity(leases.len());
    for lease in &leases {
        *count.entry(lease.resource.name()).or_default() += 1;
    }
    let (repeated, unique) = batch::partition(&leases, |lease| count[lease.resource.name()] > 1);
    let one_by_one =
        join_all(batch::pick(&leases, &repeated).into_iter().map(|lease| release_one(state, lease)));
    let many = batch::pick(&leases, &unique);
    let (one_by_one, together) = join(one_by_one, release_many(state, &many)).await;
    batch::merge((repeated, one_by_one), (unique, together))
}

/// Starts with the handoff if the last release of the name needed one: a release that finds that a waiter has announced
/// itself would be a request more before that waiter is granted the lock.
async fn release_alone(state: &Arc<StoreState>, lease: &Lease) -> Result<Released> {
    let (name, lock_id) = (lease.resource.name(), &lease.lock_id);
    if state.waiters.expects_waiter(name) && hand_off_by_merge(state, name, lock_id).await? {
        state.waiters.set_found_waiter(name, true);
        return Ok(Released::Done { woke: true });
    }
    let released = release_one(state, lease).await?;
    if let Released::Done { woke } = released {
        state.waiters.set_found_waiter(name, woke);
    }
    Ok(released)
}

/// The condition that the lock is ours stands in the pipeline, so that the server finds the document by its id alone.
async fn release_one(state: &Arc<StoreState>, lease: &Lease) -> Result<Released> {
    let (name, lock_id) = (lease.resource.name(), &lease.lock_id);
    let token = state.has_wait_queues().then(|| stored_token(lease.token));
    let update = DocumentUpdate {
        id: name.to_owned(),
        filter: Document::new(),
        pipeline: pipelines::lock_release_if_held(lock_id.as_str(), token),
        upsert: false,
    };
    let found = match state.commands.modify_lock(&update).await {
        Ok(Some(document)) => Snapshot { document, now: None },
        Ok(None) => return Ok(Released::NotYours),
        Err(failure) if failure.code == Some(CONVERSION_FAILURE) => return Ok(Released::NotYours),
        Err(failure) => return Err(failure.error),
    };
    let lock = read(state, &found)?;
    if lock.lock_id == *lock_id {
        return hand_off(state, name, lock_id, lock.token).await;
    }
    Ok(Released::Done { woke: false })
}

/// How often a release is repeated because yet another waiter announced itself. The last one is unconditional, and that
/// waiter polls.
const MAX_ROUNDS: usize = 3;

/// Gives a lock to the next waiter, or releases it if there is none. `token` is the newest token known of the document.
async fn hand_off(state: &Arc<StoreState>, name: &str, lock_id: &LockId, mut token: i64) -> Result<Released> {
    if hand_off_by_merge(state, name, lock_id).await? {
        return Ok(Released::Done { woke: true });
    }
    let mut round = 0;
    loop {
        round += 1;
        // Without an answer the lock is released, and waiters poll.
        let next = wait_queue::next(state, name, lock_id).await.unwrap_or_else(|error| {
            tracing::debug!(%error, "cannot read the wait queue");
            None
        });
        let pipeline = match &next {
            Some(next) if next.direct => {
                let window = whole_ms(next.expiry.min(GRANT_WINDOW));
                pipelines::lock_transfer(next.lock_id.as_str(), window, state.clock.lowest_token())
            }
            None if round < MAX_ROUNDS => pipelines::lock_release_if(token),
            _ => pipelines::lock_release(),
        };
        let Some(lock) = update_held(state, name, lock_id, pipeline).await? else {
            return Ok(Released::NotYours);
        };
        let Some(next) = next else {
            if lock.lock_id == *lock_id {
                token = lock.token;
                continue;
            }
            state.waiters.set_uncontended(name);
            return Ok(Released::Done { woke: false });
        };
        state.waiters.set_contended(name);
        if !next.direct
            && let Err(error) = wait_queue::wake_head(state, name).await
        {
            tracing::debug!(%error, "no wake-up was sent, the waiter polls");
        }
        return Ok(Released::Done { woke: next.lock_id.inbox() != lock_id.inbox() });
    }
}

/// What `$merge` answers if the document that it is to update does not exist.
const MERGE_WITHOUT_MATCH: i32 = 13113;

/// Hands the lock off in one request. False: nothing was changed, since the lock is not ours, or there is no next waiter
/// that can be handed the lock, or the server cannot do it.
async fn hand_off_by_merge(state: &Arc<StoreState>, name: &str, lock_id: &LockId) -> Result<bool> {
    if !state.can_merge() {
        return Ok(false);
    }
    let names = state.commands.names();
    let handoff = MergeHandoff {
        name,
        lock_id: lock_id.as_str(),
        queue: &wait_queue::queue_id(name),
        locks: &names.locks,
        window_ms: whole_ms(GRANT_WINDOW),
        lowest_token: state.clock.lowest_token(),
    };
    let merged = state.commands.try_run(doc! {
        "aggregate": &names.queues,
        "pipeline": pipelines::lock_merge_handoff(handoff),
        "cursor": {},
        "writeConcern": Durability::Majority.write_concern(),
    });
    match merged.await {
        Ok(_) => {
            state.waiters.set_contended(name);
            state.waiters.add_finished(name, lock_id);
            Ok(true)
        }
        Err(failure) if matches!(failure.code, Some(CONVERSION_FAILURE | MERGE_WITHOUT_MATCH)) => Ok(false),
        Err(failure) if failure.error.can_retry() => Err(failure.error),
        Err(failure) => {
            state.refuse_merge(&failure.error);
            Ok(false)
        }
    }
}

/// The first pause before a handoff to a lock id that has left is passed on again after an error.
const PASS_ON_PAUSE: Duration = Duration::from_millis(20);

/// The lock was handed to a lock id of this process that has left: hands it to the next waiter. Without a success the lock
/// stays with that lock id until its window ends, so errors are retried until then.
pub(crate) async fn pass_on(state: Arc<StoreState>, name: String, lock_id: LockId, token: i64) {
    let (begun, mut pause) = (Instant::now(), PASS_ON_PAUSE);
    while let Err(error) = hand_off(&state, &name, &lock_id, token).await {
        let retries = error.can_retry() && begun.elapsed() + pause < GRANT_WINDOW;
        tracing::debug!(%error, retries, "a handoff to a waiter that left was not passed on");
        if !retries {
            return;
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
}

/// One update for all of them. The server says how many documents changed, not which. If not all did, the documents show
/// which leases were lost and which locks have waiters.
async fn release_many(state: &Arc<StoreState>, leases: &[&Lease]) -> Vec<Result<Released>> {
    if leases.is_empty() {
        return Vec::new();
    }
    let chunks = chunks_by_key(leases, MULTI_UPDATE_SIZE, |_| ());
    let updates = chunks.iter().map(|indices| multi_update(state, &batch::pick(leases, indices))).collect();
    let sent = Instant::now();
    let outcome = match state.commands.update_many(Namespace::Locks, Vec::new(), updates).await {
        Ok(outcome) => outcome,
        Err(error) => return all_failed(&error, leases.len()),
    };
    if usize::try_from(outcome.modified) == Ok(leases.len()) {
        return leases.iter().map(|_| Ok(Released::Done { woke: false })).collect();
    }
    let names: Vec<&str> = leases.iter().map(|lease| lease.resource.name()).collect();
    let found = match state.commands.read(Namespace::Locks, &names, outcome.time).await {
        Ok(found) => found,
        Err(error) => return all_failed(&error.with_unknown_outcome(), leases.len()),
    };
    let took = sent.elapsed();
    let chunk_of = |index: usize| chunks.iter().position(|indices| indices.contains(&index));
    join_all(leases.iter().enumerate().map(|(index, lease)| {
        let failed = chunk_of(index).and_then(|chunk| outcome.failed.get(&chunk));
        let found = found.get(lease.resource.name());
        async move {
            if let Some(failed) = failed {
                // The documents before the one that failed were released.
                return Err(failed.to_error().with_unknown_outcome());
            }
            let Some(found) = found else { return Ok(Released::NotYours) };
            let lock = read(state, found)?;
            match BatchedRelease::of(&lock, lease, found.now, took) {
                BatchedRelease::HasWaiter => {
                    hand_off(state, lease.resource.name(), &lease.lock_id, lock.token).await
                }
                BatchedRelease::Done => Ok(Released::Done { woke: false }),
                BatchedRelease::Lost => Ok(Released::NotYours),
                BatchedRelease::Unknown => Err(error::ambiguous_release()),
            }
        }
    }))
    .await
}

fn multi_update(state: &StoreState, leases: &[&Lease]) -> MultiUpdate {
    let lock_ids: Vec<&str> = leases.iter().map(|lease| lease.lock_id.as_str()).collect();
    let tokens: Vec<i64> = leases.iter().map(|lease| stored_token(lease.token)).collect();
    MultiUpdate {
        ids: leases.iter().map(|lease| lease.resource.name().to_owned()).collect(),
        filter: is_held_by_any(&lock_ids),
        pipeline: if state.has_wait_queues() {
            pipelines::lock_release_each(&lock_ids, &tokens)
        } else {
            pipelines::lock_release()
        },
    }
}

/// What a document shows of one lease after an update that released some of many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BatchedRelease {
    Done,
    /// It is still held: a waiter has announced itself.
    HasWaiter,
    /// It was lost before.
    Lost,
    /// It was acquired again during the update: whether it was ours until then cannot be seen.
    Unknown,
}

impl BatchedRelease {
    /// `took`: how long ago the update was sent.
    fn of(lock: &LockDocument, lease: &Lease, now: Option<i64>, took: Duration) -> Self {
        let during_update = lock.acquired_at.zip(now).map(|(since, now)| now - since <= whole_ms(took));
        if lock.lock_id == lease.lock_id {
            // Without the server's clock: the handoff finds out whether it is still ours.
            let is_held = now.is_none_or(|now| lock.time_left(now).is_some());
            return if is_held { BatchedRelease::HasWaiter } else { BatchedRelease::Lost };
        }
        let is_tombstone = lock.lock_id.as_str().is_empty();
        match during_update {
            Some(false) => BatchedRelease::Lost,
            // A tombstone has the time of its release.
            Some(true) if is_tombstone => BatchedRelease::Done,
            _ => BatchedRelease::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distlock_core::{FencingToken, Kind, Resource};

    const NOW: i64 = 1_000_000;

    fn shown(lock_id: &str, acquired_at: i64, expires_at: Option<i64>, now: Option<i64>) -> BatchedRelease {
        let lock_id = LockId::from_stored(lock_id);
        let lock = LockDocument { lock_id, acquired_at: Some(acquired_at), expires_at, token: 7 };
        let lease = Lease::new(
            Resource::new(Kind::Mutex, "name").expect("a good name"),
            LockId::from_stored("ours"),
            FencingToken::new(7),
            Duration::from_secs(9),
        );
        BatchedRelease::of(&lock, &lease, now, Duration::from_millis(20))
    }

    #[test]
    fn a_document_shows_whether_a_batched_release_was_in_time() {
        use BatchedRelease::{Done, HasWaiter, Lost, Unknown};
        assert_eq!(shown("ours", NOW - 5000, Some(NOW + 1), Some(NOW)), HasWaiter);
        assert_eq!(shown("ours", NOW - 5000, Some(NOW), Some(NOW)), Lost, "it had expired");
        assert_eq!(shown("", NOW - 20, None, Some(NOW)), Done);
        assert_eq!(shown("", NOW - 21, None, Some(NOW)), Lost, "it was broken before");
        assert_eq!(shown("theirs", NOW - 21, Some(NOW + 1), Some(NOW)), Lost);
        assert_eq!(shown("theirs", NOW - 3, Some(NOW + 1), Some(NOW)), Unknown);
        assert_eq!(shown("", NOW - 3, None, None), Unknown, "a server that does not send its clock");
    }
}
