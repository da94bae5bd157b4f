//! Acquiring a part of a pool: a single claim is one `findAndModify`, many are one `update` and one read.

use std::sync::Arc;

use distlock_core::Result;
use distlock_core::store::support::{batch, errors};
use distlock_core::store::{Attempt, Batch, Claim};
use futures_util::future::join_all;

use super::{document_id, is_pool};
use crate::commands::{DocumentUpdate, Durability, Image, Namespace, Snapshot};
use crate::documents::{PoolDocument, check_countable, poll_interval, positive_ms, token, whole_ms};
use crate::error::{self, DUPLICATE_KEY};
use crate::pipelines::{self, PoolClaim};
use crate::state::StoreState;
use crate::wake_messages;

/// One answer per claim.
pub(crate) async fn try_acquire(state: &Arc<StoreState>, claims: Vec<&Claim>) -> Batch<Attempt> {
    let answers = batch::with_possible_weights(claims.iter().copied(), |claims| send(state, claims)).await?;
    let answers = answers.into_iter().zip(&claims);
    Ok(answers.map(|(answer, claim)| answer.map_err(|error| error.about(&claim.resource))).collect())
}

async fn send(state: &Arc<StoreState>, claims: Vec<&Claim>) -> Batch<Attempt> {
    match claims.as_slice() {
        [claim] => Ok(vec![acquire_one(state, claim).await]),
        claims => acquire_many(state, claims).await,
    }
}

fn update(state: &StoreState, claim: &Claim) -> DocumentUpdate {
    // A holder that never waited is told too if its lock is broken.
    let inbox = claim.waiting.as_ref().map(|waiting| waiting.inbox.clone()).or_else(|| claim.lock_id.inbox());
    let address = inbox.map(|inbox| wake_messages::recipient(&claim.lock_id, &inbox)).unwrap_or_default();
    let attempt = claim.waiting.as_ref().map(|waiting| waiting.attempt);
    let pool_claim = PoolClaim {
        lock_id: claim.lock_id.as_str(),
        address: &address,
        weight: i64::from(claim.weight),
        capacity: i64::from(claim.capacity),
        resizes: claim.resizes,
        expiry_ms: whole_ms(claim.expiry),
        ttl_ms: claim.waiting.as_ref().map(|waiting| whole_ms(waiting.ttl)),
        attempt: attempt.and_then(|attempt| i64::try_from(attempt).ok()).unwrap_or(i64::MAX),
        terms: state.grant_terms(),
    };
    DocumentUpdate {
        id: document_id(claim.resource.kind(), claim.resource.name()),
        filter: is_pool(),
        pipeline: pipelines::pool_acquire(&pool_claim),
        upsert: true,
    }
}

async fn acquire_one(state: &Arc<StoreState>, claim: &Claim) -> Result<Attempt> {
    let update = update(state, claim);
    let found = state
        .commands
        .find_and_modify(Namespace::Queues, &update, Image::After, Durability::Majority)
        .await?;
    let found = found.ok_or_else(|| error::unexpected_reply("an upsert without a document"))?;
    read_attempt(state, claim, &found)
}

async fn acquire_many(state: &Arc<StoreState>, claims: &[&Claim]) -> Batch<Attempt> {
    let updates: Vec<DocumentUpdate> = claims.iter().map(|claim| update(state, claim)).collect();
    let mut ids: Vec<&str> = updates.iter().map(|update| update.id.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    let outcome = state.commands.update_each(Namespace::Queues, &updates).await?;
    let found = state.commands.read(Namespace::Queues, &ids, outcome.time).await;
    // The updates are applied, whether or not their result can be read.
    let found = found.map_err(|error| error.with_unknown_outcome())?;
    let answers = claims.iter().zip(&updates).enumerate().map(|(index, (claim, update))| {
        let (failed, found) = (outcome.failed.get(&index), found.get(&update.id));
        async move {
            match (failed, found) {
                (Some(failed), _) if failed.code != DUPLICATE_KEY => Err(failed.to_error()),
                (Some(_), _) | (None, None) => acquire_one(state, claim).await,
                (None, Some(found)) => read_attempt(state, claim, found),
            }
        }
    });
    Ok(join_all(answers).await)
}

fn read_attempt(state: &Arc<StoreState>, claim: &Claim, found: &Snapshot) -> Result<Attempt> {
    state.observe_clock(found.now);
    let pool = PoolDocument::read(&found.document)?;
    check_countable(&found.document, "token", state.commands.collection(Namespace::Queues))?;
    if pool.is_in_use() && pool.capacity != claim.capacity && !claim.resizes {
        return Err(errors::capacity_mismatch(&claim.resource, pool.capacity, claim.capacity));
    }
    if let Some(held) = pool.holders.iter().find(|held| held.lock_id == claim.lock_id) {
        return Ok(Attempt::granted(token(held.token)));
    }
    let position = pool.queue.iter().position(|waiter| waiter.lock_id == claim.lock_id);
    let decided_at = position.map(|position| pool.queue[position].decided_at);
    let ahead = pool.queue.iter().take(position.unwrap_or(pool.queue.len()));
    let expiries =
        pool.holders.iter().map(|held| held.expires_at).chain(ahead.map(|waiter| waiter.expires_at));
    let now = found.now.or(decided_at);
    let mut retry_after = expiries.min().zip(now).and_then(|(expiry, now)| positive_ms(expiry - now));
    if let (Some(position), Some(now), false) = (position, now, state.topology.has_change_streams()) {
        // A part that is granted to the queue head stays unused until that waiter polls.
        let latest = pool.holders.iter().filter_map(|held| held.acquired_at).max();
        let interval = latest.map(|latest| poll_interval(latest, now));
        let interval =
            interval.map(|each| each.saturating_mul(u32::try_from(position + 1).unwrap_or(u32::MAX)));
        retry_after = retry_after.into_iter().chain(interval).min();
    }
    Ok(Attempt::busy(retry_after))
}
